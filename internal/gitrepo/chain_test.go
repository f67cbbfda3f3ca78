package gitrepo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// mutate makes a random change of any kind to the work tree.
func (r repo) mutate(rnd *rand.Rand) {
	r.t.Helper()
	name := func() string {
		parts := []string{"a", "b", "c dir", "d"}
		p := parts[rnd.IntN(len(parts))]
		for range rnd.IntN(3) {
			p += "/" + parts[rnd.IntN(len(parts))]
		}
		return p
	}
	path := filepath.Join(r.dir, name())
	must := func(err error) {
		if err != nil {
			r.t.Fatal(err)
		}
	}
	clear := func() { // whatever lies on the way, or at the place, goes
		for dir := filepath.Dir(path); len(dir) > len(r.dir); dir = filepath.Dir(dir) {
			if st, err := os.Lstat(dir); err == nil && !st.IsDir() {
				must(os.Remove(dir))
			}
		}
		must(os.RemoveAll(path))
		must(os.MkdirAll(filepath.Dir(path), 0o755))
	}
	switch rnd.IntN(8) {
	case 0, 1:
		if _, err := os.Lstat(path); err == nil {
			must(os.RemoveAll(path))
		}
	case 2:
		clear()
		must(os.Symlink(name(), path))
	case 3:
		if st, err := os.Lstat(path); err == nil && st.Mode().IsRegular() {
			must(os.Chmod(path, st.Mode().Perm()^0o111))
		}
	case 4: // a submodule, which no local repository stands for
		clear()
		rel := strings.TrimPrefix(path, r.dir+"/")
		for dir := rel; dir != "."; dir = filepath.Dir(dir) { // another submodule may be on the way
			r.git("update-index", "--force-remove", "--", dir)
		}
		r.git("add", "-A")
		r.git("update-index", "--add", "--cacheinfo", "160000,"+strings.Repeat("1", 40)+","+rel)
		must(os.MkdirAll(path, 0o755))
	default:
		clear()
		must(os.WriteFile(path, fmt.Appendf(nil, "%d\n", rnd.IntN(5)), 0o644))
	}
}

// A checkout on top of an earlier one shows exactly what a whole one shows, whatever changed between.
func TestStore_CheckoutOnParentEqualsWhole(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	r, grown := newRepo(t), newStore(t)
	for i := range 30 { // so that a change is small against the whole
		r.write(fmt.Sprintf("keep/%d", i), fmt.Sprint(i))
	}
	r.commit("start")
	deltas := 0
	for i := range 16 {
		for range 1 + rnd.IntN(6) {
			r.mutate(rnd)
		}
		head := r.commit(fmt.Sprint(i))
		b := grown.path(t, r.dir, "")
		if len(b.Chain) > maxObjectLayers+1+maxFileLayers {
			t.Errorf("chain of %d layers", len(b.Chain))
		}
		whole := newStore(t).path(t, r.dir, "")
		got, want := materialise(t, b.Chain), materialise(t, whole.Chain)
		if diff := cmp.Diff(listTree(t, want.dir, false, ".git"), listTree(t, got.dir, false, ".git")); diff != "" {
			t.Fatalf("seed %d, commit %d differs (-whole +grown):\n%s", seed, i, diff)
		}
		got.wantSound(head)
		if files := grown.record(t, r.dir).find2(t, head).Files; len(files) > 1 {
			deltas++
		}
	}
	if deltas < 6 {
		t.Errorf("seed %d: only %d of 16 checkouts were made on a parent", seed, deltas)
	}
}

// record reads the record of the repository at path.
func (s testStore) record(t *testing.T, path string) *record {
	t.Helper()
	src, err := s.git.pathSource(t.Context(), path, "")
	if err != nil {
		t.Fatal(err)
	}
	rec, err := s.readRecord(filepath.Join(s.opt.Dir, reposDir, src.key), src)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func (r *record) find2(t *testing.T, commit string) baseRecord {
	t.Helper()
	for _, b := range r.Bases {
		if b.Commit == commit {
			return b
		}
	}
	t.Fatalf("no base of %s", commit)
	return baseRecord{}
}

func TestStore_AttributesChangeChecksOutAnew(t *testing.T) {
	r, s := sample(t), newStore(t)
	for i := range 20 {
		r.write(fmt.Sprintf("f%d.txt", i), "x\n")
	}
	r.commit("files")
	s.path(t, r.dir, "")
	r.write(".gitattributes", "*.txt eol=crlf\n")
	r.commit("attributes")
	sandbox := materialise(t, s.path(t, r.dir, "").Chain)
	if b, err := os.ReadFile(filepath.Join(sandbox.dir, "f1.txt")); string(b) != "x\r\n" {
		t.Errorf("got %q, %v", b, err)
	}
}

func TestStore_Reopened(t *testing.T) {
	r, dir := sample(t), t.TempDir()
	first := openTestStore(t, dir, Options{}).path(t, r.dir, "")
	s := openTestStore(t, dir, Options{})
	if diff := cmp.Diff(first.Chain, s.path(t, r.dir, "").Chain); diff != "" {
		t.Errorf("not used again:\n%s", diff)
	}
	record := filepath.Join(s.opt.Dir, reposDir, "*", recordFile)
	for name, harm := range map[string]func() error{
		"objects layer gone":  func() error { return s.cache.Remove(first.Chain[0].ID) },
		"checkout layer gone": func() error { return s.cache.Remove(first.Chain[1].ID) },
		"record cut":          func() error { return cutFiles(record) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := harm(); err != nil {
				t.Fatal(err)
			}
			b := s.path(t, r.dir, "")
			materialise(t, b.Chain).wantSound(b.Commit)
			first = b
		})
	}
}

// cutFiles halves every file that matches.
func cutFiles(pattern string) error {
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) == 0 {
		return errors.Join(err, fmt.Errorf("%q: %d files", pattern, len(found)))
	}
	for _, f := range found {
		st, err := os.Stat(f)
		if err != nil {
			return err
		}
		if err := os.Truncate(f, st.Size()/2); err != nil {
			return err
		}
	}
	return nil
}

// Many commits: packs are joined, old bases go, but none that is in use, and nothing is left behind.
func TestStore_ManyCommits(t *testing.T) {
	r := sample(t)
	s := openTestStore(t, t.TempDir(), Options{MaxBases: 3})
	held := s.path(t, r.dir, "")
	var last Base
	for i := range 20 {
		r.write("n", fmt.Sprint(i))
		r.commit(fmt.Sprint(i))
		b, err := s.FromPath(t.Context(), r.dir, "")
		if err != nil {
			t.Fatal(err)
		}
		last = b
		b.Release()
	}
	rec := s.record(t, r.dir)
	if len(rec.Objects) > maxObjectLayers+1 || len(rec.Bases) != 3 {
		t.Errorf("got %d object layers and %d bases", len(rec.Objects), len(rec.Bases))
	}
	materialise(t, held.Chain).wantSound(held.Commit)
	materialise(t, last.Chain).wantSound(last.Commit)
	held.Release()
	r.write("n", "end")
	r.commit("end")
	s.path(t, r.dir, "")
	all, err := s.cache.Layers()
	if err != nil {
		t.Fatal(err)
	}
	known, err := s.Layers()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(known, slices.Sorted(slices.Values(all))); diff != "" {
		t.Errorf("layers that no record names (+) or that are gone (-):\n%s", diff)
	}
	if got := s.record(t, r.dir).Garbage; len(got) != 0 {
		t.Errorf("garbage is left: %q", got)
	}
}

func TestStore_Retain(t *testing.T) {
	r := sample(t)
	s := openTestStore(t, t.TempDir(), Options{MaxBases: 1})
	b := s.path(t, r.dir, "")
	release, err := s.Retain(b.Chain)
	if err != nil {
		t.Fatal(err)
	}
	b.Release()
	next := func(text string) {
		r.git("checkout", "-q", "--orphan", text) // nothing in common
		r.git("rm", "-rfq", ".")
		r.write(text, text)
		r.commit(text)
		nb, err := s.FromPath(t.Context(), r.dir, "")
		if err != nil {
			t.Fatal(err)
		}
		nb.Release()
	}
	next("x")
	if _, err := s.chain(ids(b.Chain)); err != nil {
		t.Errorf("a retained layer went: %v", err)
	}
	release()
	next("y")
	next("z")
	if _, err := s.Retain(b.Chain); !errors.Is(err, layer.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
}

func ids(chain layer.Chain) []string {
	var ids []string
	for _, l := range chain {
		ids = append(ids, l.ID)
	}
	return ids
}

// A build that is cancelled, or fails, leaves neither a staged layer nor a record of one.
func TestStore_CancelledBuildLeavesNothing(t *testing.T) {
	r, s := sample(t), newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.FromPath(ctx, r.dir, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want cancelled", err)
	}
	if err := os.RemoveAll(filepath.Join(r.dir, ".git/objects", r.git("rev-parse", "HEAD:a.txt")[:2])); err != nil {
		t.Fatal(err)
	}
	if _, err := s.FromPath(t.Context(), r.dir, ""); err == nil {
		t.Error("got a base of a damaged repository")
	}
	staged, err := filepath.Glob(filepath.Join(filepath.Dir(s.opt.Dir), "cache", "staging", "*", "*"))
	if err != nil || len(staged) != 0 {
		t.Errorf("left in staging: %q, %v", staged, err)
	}
	if left, err := s.cache.Layers(); err != nil || len(left) != 0 {
		t.Errorf("left in the cache: %q, %v", left, err)
	}
}
