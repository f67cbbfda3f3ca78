package gitrepo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// Case D4: the commit of HEAD, also detached, whatever is uncommitted; an explicit revision wins.
func TestStore_FromPathCommit(t *testing.T) {
	r := sample(t)
	first, second := r.git("rev-parse", "HEAD~1"), r.git("rev-parse", "HEAD")
	r.git("tag", "-a", "-m", "t", "v1", first)
	r.git("update-ref", "refs/remotes/origin/upstream", first)
	r.git("checkout", "-q", "-b", "feat/x")
	r.write("a.txt", "three\n")
	third := r.commit("three")
	r.git("branch", "v1", second) // a branch wins over a tag of its name
	r.git("branch", "-f", third[:12], first)
	r.write("a.txt", "modified")
	r.write("untracked", "u")
	s := newStore(t)
	for _, tt := range []struct {
		ref, commit, branch string
	}{
		{"", third, "feat/x"},
		{"HEAD", third, "feat/x"},
		{"trunk", second, "trunk"},
		{"refs/heads/trunk", second, "trunk"},
		{"v1", second, "v1"},
		{"refs/tags/v1", first, ""},
		{"upstream", first, ""},
		{first, first, ""},
		{second[:8], second, ""},
		{"feat/x~2", first, ""},
		{"refs/heads/feat/x^", second, ""},
	} {
		t.Run("ref "+tt.ref, func(t *testing.T) {
			b := s.path(t, r.dir, tt.ref)
			if b.Commit != tt.commit || b.Branch != tt.branch {
				t.Errorf("got %s on %q, want %s on %q", b.Commit, b.Branch, tt.commit, tt.branch)
			}
			if !slices.Contains(b.Notes, noteCommitOnly) {
				t.Errorf("notes: got %q", b.Notes)
			}
			sandbox := materialise(t, b.Chain)
			sandbox.wantSound(tt.commit)
			if got := sandbox.git("branch", "--show-current"); got != tt.branch {
				t.Errorf("branch of the sandbox: got %q, want %q", got, tt.branch)
			}
		})
	}
	r.git("checkout", "-q", "-f", "--detach", "refs/tags/v1")
	if b := s.path(t, r.dir, ""); b.Commit != first || b.Branch != "" {
		t.Errorf("detached: got %s on %q", b.Commit, b.Branch)
	}
}

func TestStore_FromPathRefusals(t *testing.T) {
	r, s := sample(t), newStore(t)
	r.git("update-ref", "refs/heads/--evil", "HEAD")
	for ref, want := range map[string]error{
		"--output=CANARY": ErrRef, "-x": ErrRef, "+x": ErrRef, "a\nb": ErrRef, "a b": ErrRef, "nope": ErrNoRef, "refs/heads/nope": ErrNoRef,
		"HEAD^{tree}": ErrNoRef, strings.Repeat("0", 40): ErrNoRef, "HEAD:a.txt": ErrNoRef,
	} {
		if _, err := s.FromPath(t.Context(), r.dir, ref); !errors.Is(err, want) {
			t.Errorf("%q: got %v, want %v", ref, err, want)
		}
	}
	r.git("symbolic-ref", "HEAD", "refs/heads/--evil")
	if b := s.path(t, r.dir, ""); b.Branch != "" {
		t.Errorf("a branch that looks like an option was taken over: %q", b.Branch)
	}
	unborn := newRepo(t)
	if _, err := s.FromPath(t.Context(), unborn.dir, ""); !errors.Is(err, ErrUnborn) {
		t.Errorf("unborn: got %v, want ErrUnborn", err)
	}
}

// The git directory of a base is private: nothing of the original's refs, remotes, hooks or reflogs.
func TestStore_PrivateGitDirectory(t *testing.T) {
	r := sample(t)
	r.git("remote", "add", "origin", "https://bot:S3cr3t@example.invalid/x.git")
	r.git("config", "branch.trunk.remote", "origin")
	r.git("config", "user.name", `O'Neil "\ #;`)
	r.git("config", "user.email", "o@example.com")
	r.git("branch", "other")
	r.git("tag", "v1")
	r.write(".git/info/exclude", "ignored-by-me\n")
	b := newStore(t).path(t, r.dir, "")
	sandbox := materialise(t, b.Chain)
	if got, want := sandbox.git("for-each-ref", "--format=%(refname)"), "refs/heads/trunk"; got != want {
		t.Errorf("refs: got %q, want %q", got, want)
	}
	if got := sandbox.git("config", "user.name"); got != `O'Neil "\ #;` || b.Author.Name != got {
		t.Errorf("author: got %q and %q", got, b.Author.Name)
	}
	sandbox.write("ignored-by-me", "")
	if got := sandbox.git("status", "--porcelain"); got != "" {
		t.Errorf("info/exclude was not taken over: %q", got)
	}
	all := listTree(t, filepath.Join(sandbox.dir, ".git"), false)
	config, err := os.ReadFile(filepath.Join(sandbox.dir, ".git/config"))
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"alternates", "logs", "S3cr3t", "origin", r.dir} {
		if strings.Contains(all+string(config), word) {
			t.Errorf("the private git directory knows %q", word)
		}
	}
}

// Case D1: 12 at once, also while another process holds .git/config.lock; the original is untouched.
func TestStore_TwelveAtOnce(t *testing.T) {
	r := sample(t)
	r.git("worktree", "add", "-q", "--detach", filepath.Join(t.TempDir(), "wt"))
	r.write("a.txt", "dirty")
	for _, lock := range []string{"", "config.lock", "index.lock", "packed-refs.lock", "HEAD.lock"} {
		t.Run("lock "+lock, func(t *testing.T) {
			if lock != "" {
				r.write(".git/"+lock, "")
			}
			before := listTree(t, r.dir, true)
			s := newStore(t)
			var wg sync.WaitGroup
			bases := make([]Base, 12)
			for i := range bases {
				wg.Go(func() {
					var err error
					if bases[i], err = s.FromPath(t.Context(), r.dir, ""); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if diff := cmp.Diff(before, listTree(t, r.dir, true)); diff != "" {
				t.Errorf("the original changed:\n%s", diff)
			}
			for _, b := range bases {
				if diff := cmp.Diff(bases[0].Chain, b.Chain); diff != "" {
					t.Errorf("bases of one commit differ:\n%s", diff)
				}
				b.Release()
			}
		})
	}
}

// A base outlives a force-push, a gc and the removal of the original, and what a sandbox does stays in it.
func TestStore_BaseStandsAlone(t *testing.T) {
	r := sample(t)
	for i := range 20 {
		r.write("counter", fmt.Sprint(i))
		r.commit(fmt.Sprint("c", i))
	}
	s := newStore(t)
	b := s.path(t, r.dir, "")
	r.git("checkout", "-q", "--orphan", "fresh")
	r.git("commit", "-q", "-m", "rewritten")
	r.git("branch", "-D", "trunk")
	r.git("reflog", "expire", "--expire=now", "--all")
	r.git("gc", "-q", "--prune=now")
	if _, err := user(r.dir, "cat-file", "-e", b.Commit); err == nil {
		t.Fatal("the commit is still in the original: the test tests nothing")
	}
	again := s.path(t, r.dir, "") // on a tip that is gone from the original
	if err := os.RemoveAll(r.dir); err != nil {
		t.Fatal(err)
	}
	materialise(t, again.Chain).wantSound(again.Commit)
	sandbox := materialise(t, b.Chain)
	sandbox.wantSound(b.Commit)
	if got := sandbox.git("rev-list", "--count", "HEAD"); got != "22" {
		t.Errorf("history: got %s commits, want 22", got)
	}
	sandbox.write("a.txt", "changed")
	sandbox.git("stash")
	sandbox.git("stash", "pop")
	sandbox.commit("mine")
	sandbox.git("branch", "topic")
	sandbox.git("gc", "-q", "--prune=now")
	sandbox.git("fsck", "--full", "--strict")
}

// A same-size edit right after the start must show, or a commit in the sandbox would miss it.
func TestStore_SameSizeEditIsSeen(t *testing.T) {
	r := sample(t) // committed this very second
	sandbox := materialise(t, newStore(t).path(t, r.dir, "").Chain)
	sandbox.write("a.txt", "TWO\n")
	if got := sandbox.git("status", "--porcelain"); got != " M a.txt" {
		t.Errorf("got %q, want the edit", got)
	}
}

// bigRepo has n files and a history of commits, made quickly by fast-import.
func bigRepo(t *testing.T, files, commits int) repo {
	t.Helper()
	r := newRepo(t)
	var in strings.Builder
	for c := range commits {
		fmt.Fprintf(&in, "commit refs/heads/trunk\ncommitter T <t@example.com> %d +0000\ndata 1\nc\n", 1700000000+c)
		n := 1
		if c == 0 {
			n = files
		}
		for f := range n {
			text := fmt.Sprintf("file %d of commit %d %s\n", f, c, strings.Repeat("x", f%3000))
			fmt.Fprintf(&in, "M 644 inline d%d/e%d/f%d\ndata %d\n%s\n", f%50, f%7, f, len(text), text)
		}
	}
	cmd := exec.Command("git", "-C", r.dir, "fast-import", "--quiet")
	cmd.Stdin = strings.NewReader(in.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("fast-import: %v: %s", err, out)
	}
	r.git("reset", "-q", "--hard")
	return r
}

// The second base of a commit is a look-up, and one of a new commit costs what is new in it.
func TestStore_CostFollowsWhatIsNew(t *testing.T) {
	r, s := bigRepo(t, 3000, 300), newStore(t)
	first, second := s.path(t, r.dir, ""), s.path(t, r.dir, "")
	if d := cmp.Diff(layerIDs(first.Chain), layerIDs(second.Chain)); d != "" {
		t.Errorf("the same commit has other layers (-first +second):\n%s", d)
	}
	r.write("d1/e1/new", "x\n")
	r.commit("new")
	next := s.path(t, r.dir, "")
	known := map[string]bool{}
	for _, id := range layerIDs(first.Chain) {
		known[id] = true
	}
	shared := 0
	for _, l := range next.Chain {
		if known[l.ID] {
			shared++
			continue
		}
		if n := entries(t, l.Dir); n > 100 {
			t.Errorf("layer %s of the new commit has %d entries, want only what is new", l.ID, n)
		}
	}
	if shared == 0 {
		t.Error("the new commit shares no layer with the last one")
	}
	materialise(t, next.Chain).wantSound(next.Commit)
}

func layerIDs(c layer.Chain) (ids []string) {
	for _, l := range c {
		ids = append(ids, l.ID)
	}
	return ids
}

func entries(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(string, fs.DirEntry, error) error {
		n++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
