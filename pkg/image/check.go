package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"
)

// ErrLeft reports something that build steps left and no image may hold.
var ErrLeft = errors.New("left by the build and refused")

const (
	// checkTimeout bounds each look at what a build left.
	checkTimeout = 5 * time.Minute
	// maxConfig bounds a repository's configuration, in bytes.
	maxConfig = 1 << 20
	// hooksPath is the setting of a directory of hooks.
	hooksPath = "core.hookspath"
)

// safeKeys are the settings that a repository of an image may have, as path.Match patterns of lower-case keys: those that
// start no program, read no other file and send nothing elsewhere. It lists what is allowed, since git's list grows.
var safeKeys = []string{
	"core.repositoryformatversion", "core.filemode", "core.bare", "core.logallrefupdates", "core.symlinks", "core.ignorecase",
	"core.precomposeunicode", "core.autocrlf", "core.eol", "core.safecrlf", "core.quotepath", "core.longpaths", "core.abbrev",
	"core.untrackedcache", "core.checkstat", "core.trustctime", "core.sparsecheckout", "core.sparsecheckoutcone", "core.protectntfs", "core.protecthfs",
	"core.bigfilethreshold", "core.compression", "core.loosecompression", "core.commitgraph", "core.preloadindex", "core.sharedrepository",
	"extensions.objectformat", "extensions.refstorage", "extensions.noop", "extensions.preciousobjects",
	"user.name", "user.email", "author.name", "author.email", "committer.name", "committer.email",
	"remote.*.fetch", "remote.*.tagopt", "remote.*.prune", "remote.*.prunetags", "remote.*.skipdefaultupdate",
	"branch.*.remote", "branch.*.merge", "branch.*.rebase", "branch.*.description",
	"advice.*", "color.*", "column.*", "checkout.*", "fetch.prune", "fetch.prunetags", "fetch.writecommitgraph", "gc.auto", "gc.autodetach",
	"index.version", "index.threads", "init.defaultbranch", "merge.conflictstyle", "merge.ff", "merge.renames", "diff.algorithm", "diff.renames", "diff.mnemonicprefix",
	"maintenance.auto", "pull.rebase", "pull.ff", "push.default", "push.autosetupremote", "push.followtags", "rebase.autosquash", "rebase.autostash",
	"rerere.enabled", "status.*", "submodule.*.active", "submodule.active", "submodule.recurse", "log.date", "log.decorate", "feature.manyfiles",
}

// script lists what of .git an image must not have, each as a word and a path, ended by NUL. Hooks are removed at the end, when
// nothing was found that refuses the image.
const script = `
if [ ! -e .git ] && [ ! -L .git ]; then printf '` + gone + `\0'; exit 0; fi
if [ -L .git ] || [ ! -d .git ]; then printf 'not a directory: .git\0'; exit 0; fi
` + findBroken + `
find .git \( -name config -o -name hooks -o -name info -o -name objects -o -name modules -o -name alternates \) -type l -printf 'a link: %p\0'
find .git -path '*/objects/info/alternates' -size +0 -printf 'reads objects elsewhere: %p\0'
find .git -path '*/objects/info/http-alternates' -printf 'reads objects elsewhere: %p\0'
find .git \( -name commondir -o -name config.worktree \) ! -path '.git/refs/*' ! -path '.git/logs/*' -printf 'more configuration: %p\0'
find .git -name config -type f ! -path '.git/refs/*' ! -path '.git/logs/*' -printf 'config: %p\0'
` + findHooks + `-printf 'hook: %p\0'
`

// gone is what script prints where there is no repository.
const gone = "missing: .git"

// findHooks finds what git takes for hooks: of submodules and links, too.
const findHooks = `find .git -path '*/hooks/*' ! -path '.git/refs/*' ! -path '.git/logs/*' ! -name '*.sample' ! -type d -perm /111 `

// close refuses a .git that is no repository of the commit any more, and what the build must not leave in it: settings that are not known to be harmless, objects that lie
// elsewhere, configuration in other places. Hooks are removed, and notes say so: ordinary tools put them there (husky, pre-commit, lefthook),
// and an image that is shared by machines has no use for them.
func (j Job) close(ctx context.Context) (notes []string, err error) {
	out, err := j.output(ctx, Command{Argv: []string{"/bin/sh", "-euc", script}})
	if err != nil {
		return nil, err
	}
	var hooks, configs []string
	for item := range strings.SplitSeq(string(out), "\x00") {
		if item == "" {
			continue
		}
		if what, is := strings.CutPrefix(item, brokenWord); is || item == gone && j.Commit != "" {
			return nil, broken(what)
		} else if item == gone {
			return nil, nil
		} else if name, is := strings.CutPrefix(item, "config: "); is {
			configs = append(configs, name)
		} else if name, is := strings.CutPrefix(item, "hook: "); is {
			hooks = append(hooks, name)
		} else {
			return nil, left("%s: remove it at the end of the setup steps", printable(item))
		}
	}
	for _, name := range configs {
		note, err := j.checkConfig(ctx, name)
		if err != nil {
			return nil, err
		}
		if note != "" {
			notes = append(notes, note)
		}
	}
	if err := j.checkHead(ctx); err != nil {
		return nil, err
	}
	if len(hooks) == 0 {
		return notes, nil
	}
	_, err = j.output(ctx, Command{Argv: []string{"/bin/sh", "-euc", findHooks + "-exec rm -f -- {} +"}})
	return append(notes, fmt.Sprintf("%d hooks in .git were removed, as %s: an image has none", len(hooks), cut(printable(hooks[0]), toldStep))), err
}

func left(format string, args ...any) error {
	return fmt.Errorf("image: %s: %w", oneLine(fmt.Sprintf(format, args...)), ErrLeft)
}

// checkConfig lets the sandbox's own git read the file, so that it is read here as it will be there. A directory of hooks is unset, and
// the note says so.
func (j Job) checkConfig(ctx context.Context, name string) (note string, err error) {
	out, err := j.config(ctx, name, "-z", "--list")
	if err != nil {
		return "", err
	}
	for entry := range strings.SplitSeq(string(out), "\x00") {
		key, value, _ := strings.Cut(entry, "\n")
		if key == hooksPath {
			note = fmt.Sprintf("core.hooksPath, which was %s, was unset in %s: an image has no hooks", cut(oneLine(printable(value)), toldStep), cut(printable(name), toldStep))
		} else if key != "" && !safe(key, value) && !ofSubmodule(name, key, value) {
			return "", left("%s sets %s, which is not on the list of harmless settings: unset it at the end of the setup steps (git config --unset %s)",
				printable(name), cut(printable(key), toldStep), cut(printable(key), toldStep))
		}
	}
	if note != "" {
		_, err = j.config(ctx, name, "--unset-all", hooksPath)
	}
	return note, err
}

// config runs git config on one file and nothing that it includes.
func (j Job) config(ctx context.Context, name string, args ...string) ([]byte, error) {
	return j.output(ctx, Command{
		Argv: append([]string{"git", "config", "--file", "./" + name, "--no-includes"}, args...),
		Env:  ownConfig(),
	})
}

// safe tells whether a repository of an image may have a setting.
func safe(key, value string) bool {
	section, name := key[:strings.Index(key+".", ".")], key[strings.LastIndex(key, ".")+1:]
	middle := strings.TrimSuffix(strings.TrimPrefix(key, section+"."), name)
	plain := strings.ToLower(section) + "." + strings.ToLower(name)
	if middle != "" {
		plain = strings.ToLower(section) + ".x." + strings.ToLower(name)
	}
	if plain == "remote.x.url" || plain == "remote.x.pushurl" || plain == "submodule.x.url" {
		return safeURL(value)
	}
	return slices.ContainsFunc(safeKeys, func(pattern string) bool {
		ok, err := path.Match(strings.ToLower(pattern), plain)
		return err == nil && ok
	})
}

// safeURL tells whether a remote's URL starts no program and holds no credential.
func safeURL(text string) bool {
	if strings.HasPrefix(text, "-") || strings.Contains(text, "::") {
		return false
	}
	if !strings.Contains(text, "://") {
		return true // a path, or host:path, whose user is no secret
	}
	u, err := url.Parse(text)
	if err != nil || !slices.Contains([]string{"https", "http", "ssh", "git", "file"}, u.Scheme) {
		return false
	}
	_, secret := u.User.Password()
	return !secret && (u.User == nil || u.Scheme == "ssh")
}

// output runs a command that must succeed and returns its whole output.
func (j Job) output(ctx context.Context, c Command) ([]byte, error) {
	var out bounded
	var said tail
	c.Timeout, c.Stdout, c.Stderr = checkTimeout, &out, &said
	ended, err := j.Box.Run(ctx, c)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, fmt.Errorf("image: look at what the build left: %w", err)
	case out.over:
		return nil, left("more than %d bytes of configuration in .git", maxConfig)
	case !ended.ok():
		return nil, left("%s cannot be looked at: %s", ".git", said.lines())
	}
	return out.b.Bytes(), nil
}

// bounded keeps the first maxConfig bytes and says when there were more.
type bounded struct {
	b    bytes.Buffer
	over bool
}

// Write implements io.Writer.
func (w *bounded) Write(p []byte) (int, error) {
	if w.b.Len()+len(p) > maxConfig {
		w.over = true
		return len(p), nil
	}
	return w.b.Write(p)
}
