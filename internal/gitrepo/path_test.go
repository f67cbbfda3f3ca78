package gitrepo

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

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
		"--output=CANARY": ErrRef, "-x": ErrRef, "a\nb": ErrRef, "a b": ErrRef, "nope": ErrNoRef, "refs/heads/nope": ErrNoRef,
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

// Kinds of repositories that need something of their own.
func TestStore_UnusualRepositories(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(t *testing.T) repo
		want func(t *testing.T, b Base, sandbox repo)
	}{
		{"sha256", func(t *testing.T) repo {
			r := newRepo(t, "--object-format=sha256")
			r.write("f", "1")
			r.commit("one")
			return r
		}, func(t *testing.T, b Base, _ repo) {
			if len(b.Commit) != 64 {
				t.Errorf("got commit %s", b.Commit)
			}
		}},
		{"shallow", func(t *testing.T) repo {
			full := sample(t)
			dir := filepath.Join(t.TempDir(), "shallow")
			full.git("clone", "-q", "--depth=1", "file://"+full.dir, dir)
			return repo{t, dir}
		}, func(t *testing.T, b Base, sandbox repo) {
			if got := sandbox.git("rev-list", "--count", "HEAD"); got != "1" {
				t.Errorf("got %s commits, want 1", got)
			}
		}},
		{"alternates", func(t *testing.T) repo {
			full := sample(t)
			dir := filepath.Join(t.TempDir(), `sh"ar:ed`)
			full.git("clone", "-q", "--shared", full.dir, dir)
			return repo{t, dir}
		}, nil},
		{"submodule", func(t *testing.T) repo {
			inner, r := sample(t), sample(t)
			r.git("submodule", "--quiet", "add", inner.dir, "libs/sub")
			r.commit("submodule")
			return r
		}, func(t *testing.T, b Base, sandbox repo) {
			entries, err := os.ReadDir(filepath.Join(sandbox.dir, "libs/sub"))
			if err != nil || len(entries) != 0 || !slices.Equal(b.Submodules, []string{"libs/sub"}) {
				t.Errorf("got %v, %v, %q", entries, err, b.Submodules)
			}
		}},
		{"line endings of its own", func(t *testing.T) repo {
			r := sample(t)
			r.git("config", "core.autocrlf", "true")
			return r
		}, func(t *testing.T, _ Base, sandbox repo) {
			if b, err := os.ReadFile(filepath.Join(sandbox.dir, "a.txt")); string(b) != "two\r\n" {
				t.Errorf("got %q, %v", b, err)
			}
		}},
		{"large file pointers", func(t *testing.T) repo {
			r := sample(t)
			r.write(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
			r.write("big.bin", "version https://git-lfs.github.com/spec/v1\n")
			r.commit("lfs")
			r.git("config", "filter.lfs.smudge", "false")
			r.git("config", "filter.lfs.required", "true")
			return r
		}, func(t *testing.T, _ Base, sandbox repo) {
			if b, err := os.ReadFile(filepath.Join(sandbox.dir, "big.bin")); !strings.HasPrefix(string(b), "version ") {
				t.Errorf("got %q, %v", b, err)
			}
		}},
		{"empty tree", func(t *testing.T) repo {
			r := newRepo(t)
			r.commit("nothing")
			return r
		}, nil},
		{"replaced objects", func(t *testing.T) repo {
			r := sample(t)
			r.git("replace", "--graft", "HEAD")
			return r
		}, func(t *testing.T, _ Base, sandbox repo) {
			if got := sandbox.git("rev-list", "--count", "HEAD"); got != "2" {
				t.Errorf("got %s commits, want the real 2", got)
			}
		}},
		{"sparse", func(t *testing.T) repo {
			r := sample(t)
			r.git("sparse-checkout", "set", "dir with space")
			return r
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := tt.make(t)
			b := newStore(t).path(t, r.dir, "")
			sandbox := materialise(t, b.Chain)
			sandbox.wantSound(r.git("rev-parse", "HEAD"))
			if tt.want != nil {
				tt.want(t, b, sandbox)
			}
		})
	}
}

// A shallow repository that is deepened must not get bases with the old boundary's objects.
func TestStore_DeepenedRepository(t *testing.T) {
	full := sample(t)
	r := repo{t, filepath.Join(t.TempDir(), "shallow")}
	full.git("clone", "-q", "--depth=1", "file://"+full.dir, r.dir)
	s := newStore(t)
	s.path(t, r.dir, "")
	r.git("fetch", "-q", "--unshallow")
	b := s.path(t, r.dir, "")
	sandbox := materialise(t, b.Chain)
	sandbox.wantSound(b.Commit)
	if got := sandbox.git("rev-list", "--count", "HEAD"); got != "2" {
		t.Errorf("got %s commits, want 2", got)
	}
}

// A partial clone whose objects are missing fails at once instead of fetching them.
func TestStore_PartialClone(t *testing.T) {
	full := sample(t)
	full.git("config", "uploadpack.allowFilter", "true")
	r := repo{t, filepath.Join(t.TempDir(), "partial")}
	full.git("clone", "-q", "--filter=blob:none", "--no-checkout", "file://"+full.dir, r.dir)
	before := listTree(t, r.dir, false)
	if _, err := newStore(t).FromPath(t.Context(), r.dir, ""); err == nil {
		t.Error("got a base of objects that are not there")
	}
	if diff := cmp.Diff(before, listTree(t, r.dir, false)); diff != "" {
		t.Errorf("the original changed:\n%s", diff)
	}
}

// A repository of another user is read by a root worker, and everything of the base is the cache owner's.
func TestStore_OtherOwner(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: makes a repository of another user")
	}
	const nobody, host = 65534, 0x70000001
	r := sample(t)
	if err := filepath.WalkDir(r.dir, func(p string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(p, nobody, nobody))
	}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cache, err := layer.OpenCache(filepath.Join(dir, "cache"), layer.Options{Owner: host, Trusted: true})
	if err != nil {
		t.Fatal(err)
	}
	s, err := OpenStore(Options{Dir: filepath.Join(dir, "git"), Cache: cache})
	if err != nil {
		t.Fatal(err)
	}
	if info, err := s.Inspect(t.Context(), r.dir); err != nil || info.Kind != KindWorkTree {
		t.Fatalf("got %+v, %v", info, err)
	}
	fromPath := testStore{s, cache}.path(t, r.dir, "")
	fromURL, err := s.FromURL(t.Context(), r.dir, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range append(fromPath.Chain, fromURL.Chain...) {
		if err := filepath.WalkDir(l.Dir, func(p string, d os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			st, err := os.Lstat(p)
			if err == nil && st.Sys().(*syscall.Stat_t).Uid != host {
				t.Errorf("%s belongs to %d", p, st.Sys().(*syscall.Stat_t).Uid)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range []string{".", "a.txt", ".git/index", "link"} {
		if got, err := layer.NewTree(fromPath.Chain).Lookup(layer.Path(e)); err != nil || got.UID != layer.Self {
			t.Errorf("%s: got owner %d, %v; want self", e, got.UID, err)
		}
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
func TestStore_Speed(t *testing.T) {
	if testing.Short() {
		t.Skip("makes a repository of 15,000 files")
	}
	r, s := bigRepo(t, 15000, 2000), newStore(t)
	timed := func() (Base, time.Duration) {
		start := time.Now()
		return s.path(t, r.dir, ""), time.Since(start)
	}
	_, first := timed()
	_, second := timed()
	r.write("d1/e1/new", "x\n")
	r.commit("new")
	next, third := timed()
	t.Logf("first %v, same commit %v, new commit %v", first, second, third)
	if second > 50*time.Millisecond {
		t.Errorf("second base of the same commit took %v, want at most 50ms", second)
	}
	if third > first/3 {
		t.Errorf("base of a new commit took %v, the first one %v", third, first)
	}
	materialise(t, next.Chain).wantSound(next.Commit)
}
