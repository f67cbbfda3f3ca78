package gitrepo

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

const (
	// maxSubmodules bounds how many submodules one Bring fills, those of submodules included, and maxNesting how deep.
	maxSubmodules = 100
	maxNesting    = 4
	// failedFor is how long a submodule that could not be fetched is not tried again: whoever waits for a sandbox would wait for it.
	failedFor = time.Minute
)

// errSubmodule says why a submodule is not filled.
var errSubmodule = errors.New("submodule is refused")

// submodule is one of a commit, as .gitmodules and tree have it. Both are whatever the repository's authors want.
type submodule struct {
	path, name, url, commit string
	dir                     string // the mirror that has its commit
	of                      string // the path of the repository around it, "" for the top
}

// fetchFailure is why a submodule could not be fetched, and when.
type fetchFailure struct {
	at  time.Time
	why string
}

// fetchSubmodules finds the submodules of a tip and brings those that may be fetched into mirrors of their own. Notes name the
// others. What fails is a note: the work tree is right without.
func (s *Store) fetchSubmodules(ctx context.Context, r Remote, rem remote, t Tip) ([]submodule, []string) {
	c := collector{store: s, remote: r}
	c.collect(ctx, level{dir: s.mirrorDir(rem), url: rem.url, commit: t.Commit})
	return c.found, c.notes
}

// collector collects the submodules of a tip.
type collector struct {
	store  *Store
	remote Remote
	found  []submodule
	notes  []string
}

// level is a commit whose submodules are looked for.
type level struct {
	dir, url, commit string
	below            string // its path in the work tree, "" for the top
	depth            int
}

func (c *collector) collect(ctx context.Context, l level) {
	mods, err := c.store.git.submodulesOf(ctx, l)
	if err != nil {
		c.note(l.below, "", err)
		return
	}
	for _, m := range mods {
		where := path.Join(l.below, m.path)
		switch {
		case ctx.Err() != nil:
			return
		case l.depth >= maxNesting:
			c.note(where, m.url, fmt.Errorf("%w: it lies more than %d deep", errSubmodule, maxNesting))
			continue
		case len(c.found) >= maxSubmodules:
			c.notes = append(c.notes, fmt.Sprintf("there are more than %d submodules: others are not filled", maxSubmodules))
			return
		}
		if m, err = c.fetch(ctx, l, m); err != nil {
			c.note(where, m.url, err)
			continue
		}
		m.path, m.of = where, l.below
		c.found = append(c.found, m)
		c.collect(ctx, level{dir: m.dir, url: m.url, commit: m.commit, below: where, depth: l.depth + 1})
	}
}

func (c *collector) note(where, url string, err error) {
	c.notes = append(c.notes, fmt.Sprintf("submodule %q (%s) is not filled: %v", where, strip(url), err))
}

// fetch has a submodule's commit in a mirror. A commit does not change, so it is asked for once.
func (c *collector) fetch(ctx context.Context, l level, m submodule) (submodule, error) {
	url, err := resolveSubmodule(l.url, m.url)
	if err != nil {
		return m, err
	}
	rem, err := parseRemote(url)
	if err != nil {
		return m, err
	}
	m.url = rem.url
	if !listed(rem, c.remote.Submodules) {
		return m, fmt.Errorf("%w: submodules of the pool file does not list it", errSubmodule)
	}
	m.dir = c.store.mirrorDir(rem)
	r := Remote{URL: rem.url, Ref: m.commit, Who: c.remote.Who}
	if top, err := parseRemote(c.remote.URL); err == nil && top.host == rem.host {
		r.Credential = c.remote.Credential // it is for that host
	}
	if _, known := c.store.Known(r); known {
		return m, nil
	}
	key := knownKey(rem, r)
	if last, ok := c.store.failed.Load(key); ok && time.Since(last.(fetchFailure).at) < failedFor {
		return m, errors.New(last.(fetchFailure).why)
	}
	if _, err := c.store.Sync(ctx, r); err != nil {
		if ctx.Err() == nil {
			c.store.failed.Store(key, fetchFailure{time.Now(), err.Error()})
		}
		return m, err
	}
	c.store.failed.Delete(key)
	return m, nil
}

// submodulesOf lists the submodules that a commit's .gitmodules names and its tree has.
func (g Git) submodulesOf(ctx context.Context, l level) ([]submodule, error) {
	out, err := g.Output(ctx, Call{GitDir: l.dir, Args: []string{"config", "--no-includes", "-z", "--blob", l.commit + ":.gitmodules", "--list"}})
	if ExitCode(err) > 0 {
		return nil, nil // there is none, or git does not understand it
	}
	if err != nil {
		return nil, err
	}
	named := map[string]*submodule{}
	var order []string
	for entry := range strings.SplitSeq(string(out), "\x00") {
		key, value, _ := strings.Cut(entry, "\n")
		rest, ok := strings.CutPrefix(key, "submodule.")
		at := strings.LastIndexByte(rest, '.')
		if !ok || at < 0 {
			continue
		}
		name := rest[:at]
		if named[name] == nil {
			named[name] = &submodule{name: name}
			order = append(order, name)
		}
		switch rest[at+1:] {
		case "path":
			named[name].path = value
		case "url":
			named[name].url = value
		}
	}
	var all []submodule
	for _, name := range order {
		if m := *named[name]; m.path != "" && m.url != "" {
			all = append(all, m)
		}
	}
	return g.linked(ctx, l, all)
}

// linked keeps those that the tree has a commit for; at most one more than are filled.
func (g Git) linked(ctx context.Context, l level, all []submodule) ([]submodule, error) {
	var found []submodule
	for _, m := range all {
		if !plainName(m.path) || !plainName(m.name) {
			continue // as git does, which takes such a name for an attack
		}
		out, err := g.Output(ctx, Call{GitDir: l.dir, Args: []string{"--literal-pathspecs", "ls-tree", "-z", "--full-tree", l.commit, "--", m.path}})
		if err != nil {
			return nil, err
		}
		meta, name, _ := strings.Cut(strings.TrimRight(string(out), "\x00"), "\t")
		if f := strings.Fields(meta); len(f) == 3 && f[0] == "160000" && name == m.path && fullHash.MatchString(f[2]) {
			m.commit = f[2]
			found = append(found, m)
		}
		if len(found) > maxSubmodules {
			break
		}
	}
	return found, nil
}

// plainName tells whether the path or name of a submodule stays where it is put and is no option.
func plainName(p string) bool {
	if p == "" || len(p) > 1024 || strings.HasPrefix(p, "-") || path.IsAbs(p) || path.Clean(p) != p || strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return false
	}
	return !slices.ContainsFunc(strings.Split(p, "/"), func(part string) bool {
		return part == ".." || part == "." || strings.EqualFold(strings.TrimRight(part, ". "), ".git") || strings.HasPrefix(strings.ToLower(part), "git~")
	})
}

// resolveSubmodule makes a URL of .gitmodules absolute, as git does: ./ and ../ are relative to the URL of the repository around it.
// It never leaves that repository's host.
func resolveSubmodule(of, url string) (string, error) {
	if !strings.HasPrefix(url, "./") && !strings.HasPrefix(url, "../") {
		return url, nil
	}
	base, rest := strings.TrimRight(of, "/"), url
	root := 0
	if at := strings.Index(base, "://"); at >= 0 {
		root = at + len("://") + strings.IndexByte(base[at+len("://"):]+"/", '/')
	} else if !strings.HasPrefix(base, "/") {
		root = strings.IndexByte(base, ':')
	}
	for {
		if after, ok := strings.CutPrefix(rest, "./"); ok {
			rest = after
			continue
		}
		after, ok := strings.CutPrefix(rest, "../")
		if !ok {
			break
		}
		at := strings.LastIndexByte(base, '/')
		if at < root {
			return "", fmt.Errorf("%w: %q leads out of %s", errSubmodule, url, strip(of))
		}
		base, rest = base[:at], after
	}
	return base + "/" + rest, nil
}

// listed tells whether a repository is one of those that may be fetched: of that URL, or below one that ends with a slash.
func listed(r remote, allowed []string) bool {
	if dotted(r.url) {
		return false
	}
	for _, entry := range allowed {
		e, err := parseRemote(entry)
		if err != nil {
			continue
		}
		prefix := strings.TrimRight(e.url, "/")
		if strings.TrimRight(r.url, "/") == prefix || strings.HasSuffix(entry, "/") && strings.HasPrefix(r.url, prefix+"/") {
			return true
		}
	}
	return false
}

// dotted tells whether a URL has a part that leads upwards, however it is spelled.
func dotted(url string) bool {
	lower := strings.ToLower(url)
	return slices.ContainsFunc(strings.Split(lower, "/"), func(part string) bool {
		return strings.ReplaceAll(part, "%2e", ".") == ".." || strings.Contains(part, "%2f") || strings.Contains(part, "%5c") || strings.Contains(part, `\`)
	})
}

// fill puts submodules into the sandbox at their recorded commits, each with a repository of its own, from mirrors. It tells
// whether one was moved. What a sandbox refuses is a note.
func (b bringer) fill(ctx context.Context, mods []submodule) (moved bool, notes []string, err error) {
	for _, m := range mods {
		did, err := b.fillOne(ctx, m)
		if ctx.Err() != nil {
			return moved, notes, context.Cause(ctx)
		}
		if err != nil {
			notes = append(notes, fmt.Sprintf("submodule %q (%s) is not filled: %v", m.path, strip(m.url), err))
		}
		moved = moved || did
	}
	return moved, notes, nil
}

// beginSubmodule makes the repository of a submodule where there is none and tells its commit; nothing where something of it
// differs from that commit.
const beginSubmodule = `!p=$WARMFLEET_SUBMODULE
d=$p
while [ "$d" != . ]; do [ ! -L "$d" ] || { echo "$d is a link" >&2; exit 3; }; d=$(dirname -- "$d"); done
unset GIT_DIR GIT_WORK_TREE GIT_COMMON_DIR
[ -e "$p/.git" ] || git init -q --template= --object-format="$WARMFLEET_FORMAT" -- "$p" || exit
export GIT_DIR="$p/.git" GIT_WORK_TREE="$p"
at=$(git rev-parse -q --verify HEAD) || exit 0
differs=$(git status --porcelain --untracked-files=no --ignore-submodules=all) || exit 0
[ -n "$differs" ] || echo clean
echo "$at"`

func (b bringer) fillOne(ctx context.Context, m submodule) (moved bool, err error) {
	format := tip{commit: m.commit}.format()
	b.sandbox.more = []string{"WARMFLEET_SUBMODULE=" + m.path, "WARMFLEET_FORMAT=" + format}
	out, err := b.sandbox.script(ctx, nil, beginSubmodule)
	b.sandbox.more = nil
	if err != nil {
		return false, err
	}
	at := strings.Fields(string(out))
	if slices.Equal(at, []string{"clean", m.commit}) {
		return false, nil
	}
	sub := bringer{git: b.git, dir: m.dir, sandbox: &sandboxGit{tree: b.sandbox.tree, in: m.path}}
	have := ""
	if len(at) > 0 && fullHash.MatchString(at[len(at)-1]) {
		have = at[len(at)-1]
	}
	if err := sub.place(ctx, m, have); err != nil {
		return true, err
	}
	around := sandboxGit{tree: b.sandbox.tree, in: m.of}
	for _, set := range [][2]string{{"submodule." + m.name + ".url", m.url}, {"submodule." + m.name + ".active", "true"}} {
		if err := around.run(ctx, nil, "config", set[0], set[1]); err != nil {
			return true, err
		}
	}
	return true, nil
}

// place brings the submodule's own repository to its commit.
func (b bringer) place(ctx context.Context, m submodule, have string) error {
	if have != m.commit {
		known := ""
		if _, err := b.git.firstCommit(ctx, b.dir, have); have != "" && err == nil {
			known = "--not\n" + have + "\n"
		}
		if _, err := b.send(ctx, m.commit+"\n"+known); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"update-ref", "--no-deref", "HEAD", m.commit},
		{"reset", "--hard", "--quiet"},
		{"config", "remote.origin.url", m.url},
		{"config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"},
	} {
		if err := b.sandbox.run(ctx, nil, args...); err != nil {
			return err
		}
	}
	out, err := b.sandbox.output(ctx, nil, "rev-parse", "HEAD")
	if err == nil && strings.TrimSpace(string(out)) != m.commit {
		err = ErrNotBrought
	}
	return err
}
