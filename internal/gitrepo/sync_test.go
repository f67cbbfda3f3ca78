package gitrepo

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// localTree runs git in a directory, as an init would in a sandbox.
type localTree struct {
	dir string
	ran *[]string // the subcommands, if set
}

func (l localTree) Git(ctx context.Context, c SandboxGit) (Ended, error) {
	if l.ran != nil {
		*l.ran = append(*l.ran, c.Args[0])
	}
	var stderr strings.Builder
	cmd := exec.CommandContext(ctx, "git", c.Args...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = l.dir, c.Stdin, c.Stdout, &stderr
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1"}, c.Env...)
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return Ended{}, err
	}
	return Ended{ExitCode: cmd.ProcessState.ExitCode(), Stderr: stderr.String()}, nil
}

// followed is a remote, a store that follows it, and a sandbox's work tree.
type followed struct {
	t      *testing.T
	remote repo
	store  testStore
	tree   repo
	r      Remote
}

func follow(t *testing.T, ref string) followed {
	t.Helper()
	r := sample(t)
	f := followed{t: t, remote: r, store: newStore(t), r: Remote{URL: "file://" + r.dir, Ref: ref}}
	f.tree = repo{t, filepath.Join(t.TempDir(), "tree")}
	if _, err := user(t.TempDir(), "clone", "-q", "--no-local", "--no-tags", r.dir, f.tree.dir); err != nil {
		t.Fatal(err)
	}
	return f
}

// fresh syncs, brings the tree along and checks that it is at the tip, as plain git sees it.
func (f followed) fresh() Tip {
	f.t.Helper()
	tip, err := f.store.Sync(f.t.Context(), f.r)
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.store.Bring(f.t.Context(), f.r, tip, localTree{dir: f.tree.dir}); err != nil {
		f.t.Fatal(err)
	}
	if got := f.tree.git("rev-parse", "HEAD"); got != tip.Commit {
		f.t.Errorf("HEAD of the tree: got %s, want %s", got, tip.Commit)
	}
	if got := f.tree.git("status", "--porcelain", "--untracked-files=no"); got != "" {
		f.t.Errorf("the tree is not clean:\n%s", got)
	}
	if got := f.tree.git("fsck", "--connectivity-only", "--no-dangling"); got != "" {
		f.t.Errorf("fsck: %s", got)
	}
	if tip.Branch != "" {
		if got := f.tree.git("symbolic-ref", "--short", "HEAD"); got != tip.Branch {
			f.t.Errorf("branch of the tree: got %q, want %q", got, tip.Branch)
		}
	}
	return tip
}

// Case C1: the default branch is what the remote says each time.
func TestStore_SyncCaseC1DefaultBranchRenamed(t *testing.T) {
	f := follow(t, "")
	f.fresh()
	f.remote.git("branch", "main", "HEAD~1") // a stale branch of a usual name
	f.remote.git("branch", "-m", "trunk", "release/1.x")
	f.remote.write("a.txt", "renamed\n")
	want := f.remote.commit("on the new name")
	if tip := f.fresh(); tip.Commit != want || tip.Branch != "release/1.x" {
		t.Errorf("tip: got %+v, want %s on release/1.x", tip, want)
	}
	if out, err := user(f.tree.dir, "rev-parse", "-q", "--verify", "refs/heads/trunk"); err == nil {
		t.Errorf("the old branch is still there at %s", out)
	}
	f.remote.git("symbolic-ref", "HEAD", "refs/heads/none")
	if _, err := f.store.Sync(t.Context(), f.r); !errors.Is(err, ErrNoRef) {
		t.Errorf("a default branch that does not exist: got %v, want %v", err, ErrNoRef)
	}
}

// Case C2: a branch becomes a directory of branches, and back.
func TestStore_SyncCaseC2BranchBecomesDirectory(t *testing.T) {
	f := follow(t, "rel")
	f.remote.git("branch", "rel")
	f.fresh()
	f.remote.git("branch", "-D", "rel")
	f.remote.git("checkout", "-q", "-b", "rel/one")
	one := f.remote.commit("one of rel")
	f.r.Ref = "rel/one"
	if tip := f.fresh(); tip.Commit != one {
		t.Errorf("rel/one: got %s, want %s", tip.Commit, one)
	}
	f.r.Ref = "rel"
	if _, err := f.store.Sync(t.Context(), f.r); !errors.Is(err, ErrNoRef) {
		t.Errorf("the branch that is gone: got %v, want %v", err, ErrNoRef)
	}
	f.remote.git("checkout", "-q", "trunk")
	f.remote.git("branch", "-D", "rel/one")
	f.remote.git("branch", "rel")
	f.fresh()
	f.r.Ref = ""
	f.fresh()
}

// Case C3: a tag that moves holds nothing up and moves in the sandbox too.
func TestStore_SyncCaseC3MovedTag(t *testing.T) {
	f := follow(t, "")
	f.remote.git("tag", "nightly")
	f.remote.git("tag", "-a", "-m", "annotated", "v1")
	f.fresh()
	f.remote.commit("three")
	f.remote.git("tag", "-f", "nightly")
	f.remote.git("tag", "-d", "v1")
	before := listTree(t, f.remote.dir, true)
	tip := f.fresh()
	if got := listTree(t, f.remote.dir, true); got != before {
		t.Error("the remote, a repository of a user, changed")
	}
	if got := f.tree.git("rev-parse", "nightly"); got != tip.Commit {
		t.Errorf("nightly: got %s, want %s", got, tip.Commit)
	}
	if out, err := user(f.tree.dir, "rev-parse", "-q", "--verify", "refs/tags/v1"); err == nil {
		t.Errorf("a tag that the remote deleted is still there at %s", out)
	}
}

// Case C4: a repository without a commit.
func TestStore_SyncCaseC4Empty(t *testing.T) {
	r, s := newRepo(t), newStore(t)
	for _, ref := range []string{"", "main"} {
		if _, err := s.Sync(t.Context(), Remote{URL: r.dir, Ref: ref}); !errors.Is(err, ErrUnborn) || errors.Is(err, ErrNoRef) != (ref != "") {
			t.Errorf("ref %q: got %v, want %v", ref, err, ErrUnborn)
		}
	}
	r.write("f", "1")
	want := r.commit("first")
	if got, err := s.Sync(t.Context(), Remote{URL: r.dir}); err != nil || got.Commit != want {
		t.Errorf("after the first commit: got %+v, %v, want %s", got, err, want)
	}
}

// Case C5: history is rewritten, rewound, and deleted.
func TestStore_SyncCaseC5Rewritten(t *testing.T) {
	f := follow(t, "f")
	f.remote.git("checkout", "-q", "-b", "f")
	old := f.remote.commit("to be amended")
	f.fresh()
	f.remote.git("commit", "-q", "--amend", "--allow-empty", "-m", "amended")
	f.fresh()
	f.remote.git("reset", "-q", "--hard", "HEAD~2")
	f.fresh()
	f.remote.git("checkout", "-q", "trunk")
	f.remote.git("branch", "-D", "f")
	if _, err := f.store.Sync(t.Context(), f.r); !errors.Is(err, ErrNoRef) {
		t.Errorf("a deleted branch: got %v, want %v", err, ErrNoRef)
	}
	f.r.Ref = old // the mirror still has it, whatever the remote did
	f.fresh()
	f.remote.git("reflog", "expire", "--expire=all", "--all")
	f.remote.git("gc", "-q", "--prune=now")
	f.r.Ref = strings.Repeat("0123456789", 4)
	if _, err := f.store.Sync(t.Context(), f.r); !errors.Is(err, ErrNoRef) || !strings.Contains(err.Error(), "no longer available") {
		t.Errorf("a commit that is gone: got %v, want %v, saying that it is no longer available", err, ErrNoRef)
	}
	f.r.Ref = ""
	f.fresh()
}

// Case C5, second part: a remote that is itself shallow, that moves on, is rewound, and gets its whole history.
func TestStore_SyncCaseC5Shallow(t *testing.T) {
	full := sample(t)
	shallow := repo{t, filepath.Join(t.TempDir(), "shallow")}
	if _, err := user(t.TempDir(), "clone", "-q", "--depth=1", "file://"+full.dir, shallow.dir); err != nil {
		t.Fatal(err)
	}
	f := followed{t: t, remote: shallow, store: newStore(t), r: Remote{URL: shallow.dir}}
	tip, err := f.store.Sync(t.Context(), f.r)
	if err != nil {
		t.Fatal(err)
	}
	base, err := f.store.FromMirror(t.Context(), f.r, tip)
	if err != nil {
		t.Fatal(err)
	}
	defer base.Release()
	f.tree = materialise(t, base.Chain)
	f.fresh()
	shallow.write("a.txt", "three\n")
	shallow.commit("three")
	f.fresh()
	if got := f.tree.git("rev-list", "--count", "HEAD"); got != "2" {
		t.Errorf("commits in the tree: got %s, want 2", got)
	}
	full.write("a.txt", "other\n")
	full.commit("amended")
	shallow.git("fetch", "-q", "--depth=1", "origin", "+trunk:refs/remotes/origin/trunk")
	shallow.git("reset", "-q", "--hard", "origin/trunk")
	f.fresh()
	shallow.git("fetch", "-q", "--unshallow", "origin")
	shallow.commit("four")
	f.fresh()
}

func must(r remote, err error) remote {
	if err != nil {
		panic(err)
	}
	return r
}

// A default branch is what the remote says also where it is detached or has a name that others guess.
func TestStore_SyncCaseC1Defaults(t *testing.T) {
	for _, name := range []string{"trunk", "release/1.x", "master", "main", "a->b&'#ü"} {
		t.Run(name, func(t *testing.T) {
			r := sample(t)
			r.git("branch", "-m", name)
			for _, other := range []string{"main", "master"} {
				if other != name {
					r.git("branch", other, "HEAD~1")
				}
			}
			got, err := newStore(t).Sync(t.Context(), Remote{URL: r.dir})
			if err != nil || got.Branch != name || got.FullRef != "refs/heads/"+name || got.Commit != r.git("rev-parse", "HEAD") {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
	r := sample(t)
	hidden := r.git("commit-tree", "-m", "on no branch", "-p", "HEAD", "HEAD^{tree}")
	r.git("checkout", "-q", "--detach", hidden)
	if got, err := newStore(t).Sync(t.Context(), Remote{URL: r.dir}); err != nil || got.Branch != "" || got.Commit != hidden {
		t.Errorf("a detached HEAD: got %+v, %v, want %s", got, err, hidden)
	}
}

// Twelve callers share fetches; asking for what is there fetches nothing, annotated tags or not.
func TestStore_SyncAtOnce(t *testing.T) {
	remote, s := serve(t, sample(t), ""), newStore(t)
	remote.git("tag", "-a", "-m", "annotated", "v1")
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			if _, err := s.Sync(t.Context(), Remote{URL: remote.url}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := remote.requests.Load(); n > 12 {
		t.Errorf("got %d requests for 12 callers", n)
	}
	before := remote.requests.Load()
	if _, err := s.Sync(t.Context(), Remote{URL: remote.url}); err != nil {
		t.Fatal(err)
	}
	if n := remote.requests.Load() - before; n > 2 {
		t.Errorf("asking for what is there took %d requests, want 2 at most", n)
	}
}

// A ref of another kind, and a commit on no branch, are fetched by name.
func TestStore_SyncOtherRefs(t *testing.T) {
	r, s := sample(t), newStore(t)
	hidden := r.git("commit-tree", "-m", "on no branch", "-p", "HEAD", "HEAD^{tree}")
	r.git("update-ref", "refs/pull/1/head", hidden)
	r.git("tag", "-a", "-m", "annotated", "v1", "HEAD~1")
	for ref, want := range map[string]Tip{
		"refs/pull/1/head": {Commit: hidden, FullRef: "refs/pull/1/head"},
		hidden:             {Commit: hidden},
		"v1":               {Commit: r.git("rev-parse", "HEAD~1"), FullRef: "refs/tags/v1"},
	} {
		got, err := s.Sync(t.Context(), Remote{URL: r.dir, Ref: ref})
		got.FetchedAt = want.FetchedAt
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", ref, got, err, want)
		}
	}
}
