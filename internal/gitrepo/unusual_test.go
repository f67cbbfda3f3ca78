package gitrepo

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// unusual is a kind of repository that needs something of its own.
type unusual struct {
	name string
	make func(t *testing.T) repo
	want func(t *testing.T, b Base, sandbox repo) // beyond being sound; may be nil
}

func TestStore_UnusualRepositories(t *testing.T) {
	for _, tt := range slices.Concat(unusualObjects(), unusualTrees()) {
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

func unusualObjects() []unusual {
	return []unusual{
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
	}
}

func unusualTrees() []unusual {
	return []unusual{
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
