package gitcommit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/plan/applier"
)

// TestMain runs one apply instead of the tests when this binary was started by one of them.
func TestMain(m *testing.M) {
	if dir := os.Getenv("GITCOMMIT_CHILD"); dir != "" {
		os.Exit(child(dir))
	}
	os.Exit(m.Run())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sh runs a script in a directory; it is how tests say what a user or a plan did.
func sh(t testing.TB, dir, script string) string {
	t.Helper()
	cmd := exec.Command("bash", "-euc", "umask 022; "+script)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "LC_ALL=C",
		"GIT_AUTHOR_NAME=u", "GIT_AUTHOR_EMAIL=u@example.com", "GIT_COMMITTER_NAME=u", "GIT_COMMITTER_EMAIL=u@example.com",
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
	return string(out)
}

// dirTree is a Tree of a directory.
type dirTree string

func (d dirTree) Lookup(p layer.Path) (layer.Entry, error) {
	name := filepath.Join(string(d), string(p))
	fi, err := os.Lstat(name)
	if err != nil {
		var pathErr *fs.PathError
		if errors.As(err, &pathErr) && strings.Contains(err.Error(), "not a directory") {
			return layer.Entry{}, fs.ErrNotExist
		}
		return layer.Entry{}, err
	}
	e := layer.Entry{Path: p, Mode: uint32(fi.Mode().Perm()), UID: os.Getuid(), GID: os.Getgid(), MTime: fi.ModTime()}
	switch {
	case fi.Mode().IsRegular():
		e.Type, e.Size = layer.File, fi.Size()
		e.Digest, _, err = digestFile(name)
	case fi.IsDir():
		e.Type = layer.Dir
	case fi.Mode()&fs.ModeSymlink != 0:
		var text string
		text, err = os.Readlink(name)
		e.Type, e.Link = layer.Symlink, layer.LinkText(text)
	default:
		e.Type = layer.Fifo
	}
	return e, err
}

func (d dirTree) Open(p layer.Path) (io.ReadCloser, error) {
	return os.Open(filepath.Join(string(d), string(p)))
}

// changes compares two directories; repositories are left out.
func changes(base, ours dirTree) ([]layer.Change, error) {
	all := map[layer.Path]*layer.Change{}
	for _, side := range []dirTree{base, ours} {
		err := filepath.WalkDir(string(side), func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(string(side), name)
			if err != nil {
				return err
			}
			if rel == ".git" && d.IsDir() || rel == layer.JournalDir {
				return fs.SkipDir
			}
			e, err := side.Lookup(layer.Path(rel))
			if err != nil {
				return err
			}
			if all[e.Path] == nil {
				all[e.Path] = &layer.Change{Path: e.Path}
			}
			if side == base {
				all[e.Path].Before = &e
			} else {
				all[e.Path].After = &e
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	var found []layer.Change
	for _, c := range all {
		b, a := c.Before, c.After
		if b != nil && a != nil && b.Type == a.Type && b.Mode == a.Mode && b.Link == a.Link && b.Digest == a.Digest {
			continue
		}
		found = append(found, *c)
	}
	slices.SortFunc(found, func(x, y layer.Change) int { return strings.Compare(string(x.Path), string(y.Path)) })
	return found, nil
}

// rig is a repository, what a sandbox started from and what it made of it.
type rig struct{ dir, orig, base, ours string }

func at(dir string) rig {
	return rig{dir, filepath.Join(dir, "orig"), filepath.Join(dir, "base"), filepath.Join(dir, "ours")}
}

// newRig makes a repository by a script, and lets a plan work on a copy of it.
func newRig(t testing.TB, orig, plan string) rig {
	t.Helper()
	return rigIn(t, t.TempDir(), orig, plan)
}

func rigIn(t testing.TB, dir, orig, plan string) rig {
	t.Helper()
	r := at(dir)
	must(t, os.Mkdir(r.orig, 0o755))
	sh(t, r.orig, "git init -q -b trunk .; "+orig)
	sh(t, dir, "cp -a orig base; cp -a base ours")
	sh(t, r.ours, plan)
	return r
}

// workOf is the work of a rig.
func (r rig) work() (Work, error) {
	w := Work{
		Before: dirTree(r.base), After: dirTree(r.ours), Message: "by plan", Author: gitrepo.Identity{Name: "P", Email: "p@example.com"},
		Time: time.Unix(1_700_000_000, 0),
	}
	w.Base, _, _ = gitrepo.HeadIn(func(p string) (io.ReadCloser, error) { return w.Before.Open(layer.Path(p)) })
	var err error
	w.Changes, err = changes(dirTree(r.base), dirTree(r.ours))
	return w, err
}

func (r rig) open(ctx context.Context) (*Repository, error) {
	git, err := gitrepo.FindGit()
	if err != nil {
		return nil, err
	}
	info, err := git.Inspect(ctx, r.orig)
	if err != nil {
		return nil, err
	}
	return Open(ctx, git, info)
}

// outcome is how an apply ended.
type outcome struct {
	made      Made
	notes     []string
	conflicts []string
}

// apply does what a worker does with a commit: on the branch that HEAD names where branch is "".
func (r rig) apply(ctx context.Context, branch string, hook func(string) error) (out outcome, err error) {
	repo, err := r.open(ctx)
	if err != nil {
		return out, err
	}
	s, err := applier.Open(ctx, r.orig, applier.Options{Extra: repo.Extra, Hook: hook})
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if _, pending := s.Pending(); pending {
		d := applier.Forward
		if os.Getenv("GITCOMMIT_BACK") != "" {
			d = applier.Back
		}
		end, err := s.Recover(ctx, d)
		if err != nil || end == applier.Undone {
			return out, err
		}
		return out, s.Finish(ctx)
	}
	if err := repo.Sweep(); err != nil || os.Getenv("GITCOMMIT_RECOVER") != "" {
		return out, err
	}
	work, err := r.work()
	if err != nil {
		return out, err
	}
	return r.commit(ctx, s, repo, workOn{work, branch, hook})
}

type workOn struct {
	work   Work
	branch string
	hook   func(string) error
}

func (r rig) commit(ctx context.Context, s *applier.Session, repo *Repository, on workOn) (out outcome, err error) {
	facts, err := repo.Facts(ctx)
	if err != nil {
		return out, err
	}
	shop, err := OpenWorkshop(ctx, repo.git, r.dir, facts)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, shop.Close()) }()
	target, err := repo.Target(ctx, on.branch)
	if err != nil {
		return out, err
	}
	var lock *IndexLock
	if target.Here {
		if lock, err = repo.Lock(ctx); err != nil {
			return out, err
		}
		defer func() {
			if _, pending := s.Pending(); pending {
				err = errors.Join(err, lock.Abandon())
			}
			err = errors.Join(err, lock.Release())
		}()
	}
	taken, found, err := shop.Take(ctx, on.work)
	if err != nil || len(found) > 0 {
		return outcome{conflicts: kinds(found)}, err
	}
	out.notes = taken.Notes
	if out.made, found, err = shop.Onto(ctx, taken, target.Tip); err != nil || len(found) > 0 || out.made.Commit == "" {
		return outcome{conflicts: kinds(found), notes: out.notes}, err
	}
	if err := repo.Keep(ctx, shop, out.made); err != nil {
		return out, err
	}
	if !target.Here {
		return out, repo.Move(ctx, target, out.made.Commit, Reflog{Message: "m", By: on.work.Author, At: on.work.Time.Unix()})
	}
	here, found, err := shop.Here(ctx, Checkout{Lock: lock, Original: s, Target: target}, taken, out.made)
	if err != nil || len(found) > 0 {
		return outcome{conflicts: kinds(found)}, err
	}
	preview, found, err := s.Check(ctx, applier.Request{Plan: "01P", Epoch: 1, Git: true, Changes: here.Changes, Content: here.Content, Extras: here.Extras})
	if err != nil || len(found) > 0 {
		return outcome{conflicts: kinds(found)}, err
	}
	if on.hook != nil {
		if err := on.hook("prepared"); err != nil {
			return out, err
		}
	}
	if err := s.Stage(ctx, preview); err != nil {
		return out, err
	}
	if err := s.Commit(ctx); err != nil {
		return out, err
	}
	if err := lock.Release(); err != nil {
		return out, err
	}
	return out, s.Finish(ctx)
}

func kinds(cs []applier.Conflict) []string {
	var out []string
	for _, c := range cs {
		out = append(out, fmt.Sprintf("%s: %s", c.Path, c.Kind))
	}
	return out
}

// state is everything of the repository and its work tree that an apply promises about.
func (r rig) state(t testing.TB) string {
	t.Helper()
	return sh(t, r.orig, `
export GIT_OPTIONAL_LOCKS=0
git for-each-ref; git symbolic-ref -q HEAD || git rev-parse HEAD; git ls-files -s; git stash list
git status --porcelain; ls .git; sha256sum <.git/config
find . -path ./.git -prune -o -type f -printf '%p %m ' -exec sha256sum {} \; | sort; find . -path ./.git -prune -o -type l -printf '%p %l\n' | sort; find . -path ./.git -prune -o -type d -printf '%p %m\n' | sort`)
}
