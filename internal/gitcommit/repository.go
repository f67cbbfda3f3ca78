package gitcommit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/warmfleet/warmfleet/internal/gitrepo"
)

const headsPrefix = "refs/heads/"

// ErrMoved reports a branch that is not where it was seen last.
var ErrMoved = errors.New("branch moved")

// Repository is a repository at a path, to be written to.
type Repository struct {
	git  gitrepo.Git
	info gitrepo.Info
	as   *gitrepo.Account

	format string // of its objects
}

// Open opens the repository that Locate described: the top of a work tree of any kind, or a bare one.
func Open(ctx context.Context, git gitrepo.Git, info gitrepo.Info) (*Repository, error) {
	as, err := gitrepo.OwnerToBe(info.CommonDir)
	if err != nil {
		return nil, fmt.Errorf("gitcommit: open %q: %w", info.Path, err)
	}
	format, err := git.Output(ctx, gitrepo.Call{GitDir: info.GitDir, Args: []string{"rev-parse", "--show-object-format"}})
	if err != nil {
		return nil, fmt.Errorf("gitcommit: open %q: %w", info.Path, err)
	}
	return &Repository{git: git, info: info, as: as, format: strings.TrimSpace(string(format))}, nil
}

// Facts are what a workshop needs of the repository.
func (r *Repository) Facts(ctx context.Context) (gitrepo.Facts, error) {
	return r.git.FactsOf(ctx, r.info)
}

// Target is the branch that a commit goes to.
type Target struct {
	Branch string
	// Tip is where it is, "" where it does not exist.
	Tip string
	// Here says that the branch is checked out in the repository's work tree.
	Here bool
}

// Ref is the target's full name.
func (t Target) Ref() string { return headsPrefix + t.Branch }

// Target finds the branch to commit to, for "" the one that HEAD names. It is a *Refusal when the branch is checked out elsewhere,
// when an operation of git's is not finished in this work tree, or when HEAD names no branch.
func (r *Repository) Target(ctx context.Context, branch string) (Target, error) {
	bare := r.info.Kind == gitrepo.KindBare
	if what := r.unfinished(); what != "" && !bare {
		return Target{}, refuse(CodeInProgress, r.info.Path, "%s is not finished there: finish or abort it, then run the plan again", what)
	}
	head, err := r.head(ctx)
	if err != nil {
		return Target{}, fmt.Errorf("gitcommit: read HEAD of %q: %w", r.info.Path, err)
	}
	t := Target{Branch: branch}
	if branch == "" {
		t.Branch = head
	}
	if t.Branch == "" {
		return Target{}, refuse(CodeNoBranch, r.info.Path, "HEAD is detached, so there is no branch to commit to: name one in commit.branch")
	}
	t.Here = !bare && t.Branch == head
	if !t.Here {
		if err := r.elsewhere(ctx, t.Branch); err != nil {
			return Target{}, err
		}
	}
	t.Tip, err = r.git.Resolve(ctx, r.info.GitDir, t.Ref())
	if errors.Is(err, gitrepo.ErrNoRef) {
		return t, nil
	}
	if err != nil {
		return Target{}, fmt.Errorf("gitcommit: read branch %q: %w", t.Branch, err)
	}
	return t, nil
}

// head is the branch that HEAD names, "" when detached.
func (r *Repository) head(ctx context.Context) (string, error) {
	out, err := r.git.Output(ctx, gitrepo.Call{GitDir: r.info.GitDir, Args: []string{"symbolic-ref", "--quiet", "HEAD"}})
	if gitrepo.ExitCode(err) == 1 {
		return "", nil
	}
	branch, _ := strings.CutPrefix(strings.TrimRight(string(out), "\n"), headsPrefix)
	return branch, err
}

// unfinished names what git has begun in the work tree, by the files that `git status` looks for; "" for nothing.
func (r *Repository) unfinished() string {
	for _, sign := range []struct{ name, what string }{
		{"MERGE_HEAD", "a merge"},
		{"rebase-merge", "a rebase"},
		{"rebase-apply", "a rebase or am"},
		{"CHERRY_PICK_HEAD", "a cherry-pick"},
		{"REVERT_HEAD", "a revert"},
		{"BISECT_LOG", "a bisect"},
	} {
		if _, err := os.Lstat(filepath.Join(r.info.GitDir, sign.name)); err == nil {
			return sign.what
		}
	}
	return ""
}

// elsewhere refuses a branch that another work tree has checked out, or is rebasing.
func (r *Repository) elsewhere(ctx context.Context, branch string) error {
	out, err := r.git.Output(ctx, gitrepo.Call{GitDir: r.info.CommonDir, Args: []string{"worktree", "list", "--porcelain", "-z"}})
	if err != nil {
		return fmt.Errorf("gitcommit: list work trees of %q: %w", r.info.Path, err)
	}
	at := ""
	for line := range strings.SplitSeq(string(out), "\x00") {
		if dir, ok := strings.CutPrefix(line, "worktree "); ok {
			at = dir
		}
		if line == "branch "+headsPrefix+branch && at != r.info.Root {
			return refuse(CodeCheckedOut, branch, "the branch is checked out in the work tree %s: commit to another branch, or apply there", at)
		}
	}
	rebasing, err := filepath.Glob(filepath.Join(globbed(r.info.CommonDir), "worktrees", "*", "rebase-*", "head-name"))
	if err != nil {
		return err
	}
	for _, name := range rebasing {
		if b, err := os.ReadFile(name); err == nil && strings.TrimSpace(string(b)) == headsPrefix+branch {
			return refuse(CodeCheckedOut, branch, "the branch is being rebased in the work tree of %s: finish that first", filepath.Dir(filepath.Dir(name)))
		}
	}
	return nil
}

// globbed quotes a directory for filepath.Glob.
func globbed(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

// manyPaths is from how many changed paths on objects are stored as a pack.
const manyPaths = 100

// Keep stores a commit with all that the repository lacks of it, on disk before it returns. Nothing refers to it yet.
func (r *Repository) Keep(ctx context.Context, w *Workshop, made Made) error {
	revs := made.Commit + "\n"
	if made.Onto != "" {
		revs += "^" + made.Onto + "\n"
	}
	unpack := []string{"unpack-objects", "-q"}
	if made.Changed >= manyPaths {
		unpack = []string{"index-pack", "--stdin"}
	}
	err := r.git.Pipe(ctx, gitrepo.Call{
		GitDir: w.GitDir(), Alternates: w.facts.Objects, Args: []string{"pack-objects", "--revs", "--stdout", "-q"}, Stdin: strings.NewReader(revs),
	}, gitrepo.Call{
		GitDir: r.info.GitDir, As: r.as, Args: unpack, Config: []string{"core.fsync=all", "core.fsyncMethod=fsync"}, Stdout: io.Discard,
	})
	if err != nil {
		return r.refused(err)
	}
	return nil
}

// Reflog is what the log of a moved branch says.
type Reflog struct {
	Message string
	By      gitrepo.Identity
	At      int64 // seconds
}

// Move makes the branch a commit, if it still is where the target says; else ErrMoved, and nothing is changed.
func (r *Repository) Move(ctx context.Context, t Target, commit string, log Reflog) error {
	old := t.Tip
	if old == "" {
		old = strings.Repeat("0", len(commit))
	}
	return r.move(ctx, move{ref: t.Ref(), from: old, to: commit, log: log})
}

// move is one change of a ref from one value to another; zeros are no ref.
type move struct {
	ref, from, to string
	log           Reflog
}

func (r *Repository) move(ctx context.Context, m move) error {
	args := []string{"update-ref", "-m", m.log.Message, m.ref, m.to, m.from}
	if zero(m.to) {
		args = []string{"update-ref", "-m", m.log.Message, "-d", m.ref, m.from}
	}
	err := r.git.Run(ctx, gitrepo.Call{
		GitDir: r.info.GitDir, As: r.as, Args: args, Config: []string{"core.fsync=all"},
		Env: identityEnv(m.log.By, fmt.Sprintf("@%d +0000", m.log.At)),
	})
	if err == nil {
		return nil
	}
	if gitrepo.ExitCode(err) < 0 {
		return fmt.Errorf("gitcommit: move %s: %w", m.ref, err)
	}
	now, lookErr := r.value(ctx, m.ref)
	if lookErr != nil {
		return errors.Join(err, lookErr)
	}
	if now != m.from && !(now == "" && zero(m.from)) {
		return fmt.Errorf("gitcommit: move %s: %w", m.ref, ErrMoved)
	}
	return refuse(CodeRef, m.ref, "%v: see whether another git holds it, or name another branch", err)
}

// value is the commit of a ref, "" where there is none.
func (r *Repository) value(ctx context.Context, ref string) (string, error) {
	id, err := r.git.Resolve(ctx, r.info.GitDir, ref)
	if errors.Is(err, gitrepo.ErrNoRef) {
		return "", nil
	}
	return id, err
}

// Contains tells whether a commit is in the history of the branch.
func (r *Repository) Contains(ctx context.Context, t Target, commit string) (bool, error) {
	if t.Tip == "" {
		return false, nil
	}
	return r.git.Contains(ctx, r.info.GitDir, t.Tip, commit)
}

// refused turns a git that failed to write into one line for people.
func (r *Repository) refused(err error) error {
	if gitrepo.ExitCode(err) < 0 {
		return fmt.Errorf("gitcommit: write into %q: %w", r.info.GitDir, err)
	}
	return refuse(CodeWrite, r.info.GitDir, "%v: the worker has to be allowed to write there", err)
}
