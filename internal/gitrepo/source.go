package gitrepo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Errors of a source that has no base to give.
var (
	// ErrNotRepository reports a path that is not the top of a work tree or a bare repository.
	ErrNotRepository = errors.New("not the top of a git repository")
	// ErrUnborn reports a repository whose current branch has no commit yet.
	ErrUnborn = errors.New("no commit yet")
	// ErrNoRef reports a ref that the repository does not have.
	ErrNoRef = errors.New("no such branch, tag or commit")
)

const (
	headsPrefix = "refs/heads/"
	tagsPrefix  = "refs/tags/"
	// maxInfoFile bounds what is taken over of .git/info/exclude and attributes, in bytes.
	maxInfoFile = 1 << 20
)

// Identity is who commits are by.
type Identity struct {
	Name, Email string
}

// Whole tells whether git can commit as it.
func (i Identity) Whole() bool { return i.Name != "" && i.Email != "" }

// tip is a resolved ref.
type tip struct {
	commit string
	branch string // "" for a tag, a commit or a detached HEAD
}

// source is where a base comes from: object directory, commit, and the settings that shape a checkout.
type source struct {
	tip
	label   string // for people
	key     string // names the record of the source
	gitDir  string
	objects string
	shallow []byte // the boundary of a shallow repository, normalised
	remote  string // what the base's origin is, "" for none
	mirror  bool   // it is a mirror: no work tree of an original is beside it
	fills   bool   // a Bring that follows fills submodules, and says what it did not
	bare    bool
	settings
}

// settings is what a base takes over from the configuration of its source. Everything else stays behind.
type settings struct {
	core       []string // "core.name=value" that decide how files are checked out
	author     Identity
	exclude    []byte
	attributes []byte
}

// format is the object format, which the length of an object name tells.
func (t tip) format() string {
	if len(t.commit) == 64 {
		return "sha256"
	}
	return "sha1"
}

// resolve finds the commit and branch of a ref: "" or HEAD is the repository's HEAD; a full ref, a
// branch, a tag, a branch of origin, and any other name of a commit are tried in this order.
func (g Git) resolve(ctx context.Context, gitDir, ref string) (tip, error) {
	if err := checkRef(ref); err != nil {
		return tip{}, err
	}
	if ref != "" && ref != "HEAD" {
		return g.firstCommit(ctx, gitDir, ref)
	}
	out, err := g.Output(ctx, Call{GitDir: gitDir, Args: []string{"symbolic-ref", "--quiet", "HEAD"}})
	if ExitCode(err) == 1 {
		return g.firstCommit(ctx, gitDir, "HEAD")
	}
	if err != nil {
		return tip{}, err
	}
	full := strings.TrimRight(string(out), "\n")
	t, err := g.firstCommit(ctx, gitDir, full)
	t.branch = branchOf(full)
	if errors.Is(err, ErrNoRef) {
		return t, ErrUnborn
	}
	return t, err
}

// branchOf is the short name of a branch, "" for another ref or a name that looks like an option.
func branchOf(ref string) string {
	name, ok := strings.CutPrefix(ref, headsPrefix)
	if !ok || strings.HasPrefix(name, "-") || isExpression(name) {
		return ""
	}
	return name
}

// candidates are the full names a ref may stand for, best first. A name with a byte that no ref can
// hold (git-check-ref-format) is an expression, HEAD~2 say, and no branch even if it begins with one.
func candidates(ref string) []string {
	if ref == "HEAD" || strings.HasPrefix(ref, "refs/") || isExpression(ref) {
		return []string{ref}
	}
	return []string{headsPrefix + ref, tagsPrefix + ref, "refs/remotes/origin/" + ref, ref}
}

func isExpression(ref string) bool {
	return strings.ContainsAny(ref, `~^:?*[\`) || strings.Contains(ref, "@{") || strings.Contains(ref, "..")
}

// firstCommit resolves a ref by one git process. Names go by stdin, where none is an option.
func (g Git) firstCommit(ctx context.Context, gitDir, ref string) (tip, error) {
	names := candidates(ref)
	var in strings.Builder
	for _, n := range names {
		fmt.Fprintf(&in, "%s^{commit}\n", n)
	}
	out, err := g.Output(ctx, Call{GitDir: gitDir, Args: []string{"cat-file", "--batch-check"}, Stdin: strings.NewReader(in.String())})
	if err != nil {
		return tip{}, err
	}
	lines := strings.Split(strings.TrimRight(string(out), "\n"), "\n")
	if len(lines) != len(names) {
		return tip{}, fmt.Errorf("git cat-file: %d answers to %d questions", len(lines), len(names))
	}
	for i, line := range lines {
		if f := strings.Fields(line); len(f) == 3 && f[1] == "commit" {
			return tip{commit: f[0], branch: branchOf(names[i])}, nil
		}
	}
	return tip{}, fmt.Errorf("%w: %q", ErrNoRef, ref)
}

// pathSource describes the repository at a path.
func (g Git) pathSource(ctx context.Context, path, ref string) (source, error) {
	info, err := locate(path)
	if err != nil {
		return source{}, err
	}
	if err := usable(info); err != nil {
		return source{}, err
	}
	s := source{label: info.Root, gitDir: info.GitDir, bare: info.Kind == KindBare}
	if s.objects, err = filepath.EvalSymlinks(filepath.Join(info.CommonDir, "objects")); err != nil {
		return source{}, fmt.Errorf("gitrepo: read %q: %w", path, err)
	}
	if s.tip, err = g.resolve(ctx, info.GitDir, ref); err != nil {
		return source{}, fmt.Errorf("gitrepo: resolve %q: %w", path, err)
	}
	if s.shallow, err = shallowOf(info.CommonDir); err != nil {
		return source{}, fmt.Errorf("gitrepo: read %q: %w", path, err)
	}
	if s.settings, err = g.settingsOf(ctx, info.GitDir, info.CommonDir); err != nil {
		return source{}, fmt.Errorf("gitrepo: read settings of %q: %w", path, err)
	}
	s.key = keyOf("path", info.CommonDir, s.format(), string(s.shallow))
	return s, nil
}

// usable refuses kinds that git_worktree has no base for, saying what the path is.
func usable(info Info) error {
	switch info.Kind {
	case KindNone:
		return fmt.Errorf("gitrepo: strategy git_worktree on %q: %w: a plain directory", info.Path, ErrNotRepository)
	case KindSubdirectory:
		return fmt.Errorf("gitrepo: strategy git_worktree on %q: %w: it lies inside the work tree %q", info.Path, ErrNotRepository, info.Root)
	case KindGitDir:
		return fmt.Errorf("gitrepo: strategy git_worktree on %q: %w: it lies inside a git directory", info.Path, ErrNotRepository)
	}
	return nil
}

// shallowOf reads the boundary of a shallow repository, sorted; nil for a full one.
func shallowOf(commonDir string) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(commonDir, "shallow"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	lines := strings.Fields(string(b))
	if len(lines) == 0 {
		return nil, nil
	}
	slices.Sort(lines)
	return []byte(strings.Join(lines, "\n") + "\n"), nil
}

// keptSettings matches the settings that a base takes over.
const keptSettings = `^(core\.(autocrlf|eol|filemode|ignorecase|precomposeunicode|symlinks)|user\.(name|email))$`

func (g Git) settingsOf(ctx context.Context, dir, common string) (settings, error) {
	var s settings
	out, err := g.Output(ctx, Call{GitDir: dir, Args: []string{"config", "-z", "--get-regexp", keptSettings}})
	if err != nil && ExitCode(err) != 1 {
		return s, err
	}
	last := map[string]string{}
	for entry := range bytes.SplitSeq(out, []byte{0}) {
		if key, value, ok := strings.Cut(string(entry), "\n"); ok {
			last[key] = value
		} else if key != "" {
			last[key] = "true" // a name without "=" is a boolean
		}
	}
	s.author = Identity{Name: last["user.name"], Email: last["user.email"]}
	for key, value := range last {
		if strings.HasPrefix(key, "core.") {
			s.core = append(s.core, key+"="+value)
		}
	}
	slices.Sort(s.core)
	if s.exclude, err = infoFile(common, "exclude"); err != nil {
		return s, err
	}
	s.attributes, err = infoFile(common, "attributes")
	return s, err
}

// infoFile reads a file of .git/info; an absent one is empty. One that is no plain file is left alone.
func infoFile(commonDir, name string) ([]byte, error) {
	path := filepath.Join(commonDir, "info", name)
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxInfoFile {
		return nil, nil
	}
	return os.ReadFile(path)
}
