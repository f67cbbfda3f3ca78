package shelf_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/base"
	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/shelf"
)

// fileSize is what each path and repository of these tests holds, in bytes.
const fileSize = 300 << 10

// world is what a worker keeps bases with, on a state directory that survives it.
type world struct {
	t          *testing.T
	state, top string
	cache      *layer.Cache
	bases      *base.Store
	repos      *gitrepo.Store
	log        strings.Builder
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, state: t.TempDir(), top: t.TempDir()}
	w.open()
	return w
}

// open opens everything anew, as after a restart.
func (w *world) open() {
	w.t.Helper()
	var err error
	w.cache, err = layer.OpenCache(filepath.Join(w.state, "layers"), layer.Options{Owner: os.Getuid(), Trusted: os.Getuid() == 0, Log: zerolog.Nop()})
	if err == nil {
		w.bases, err = base.Open(base.Options{Dir: filepath.Join(w.state, "bases"), Cache: w.cache, Log: zerolog.Nop()})
	}
	if err == nil {
		w.repos, err = gitrepo.OpenStore(gitrepo.Options{Dir: filepath.Join(w.state, "repos"), Cache: w.cache, Log: zerolog.Nop()})
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = w.cache.Close() })
}

func (w *world) shelf(budget int64) *shelf.Shelf {
	return shelf.New(shelf.Options{Holders: []shelf.Holder{w.bases, w.repos}, Cache: w.cache, Budget: budget, Log: zerolog.New(&w.log)})
}

func (w *world) trim(budget int64) {
	w.t.Helper()
	if err := w.shelf(budget).Trim(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// path makes the image of a path.
func (w *world) path(name string) base.Base {
	w.t.Helper()
	dir := filepath.Join(w.top, name)
	err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "f"), []byte(strings.Repeat(name, fileSize/len(name))), 0o644))
	if err != nil {
		w.t.Fatal(err)
	}
	b, err := w.bases.FromPath(w.t.Context(), dir)
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

// repo makes the base of a repository.
func (w *world) repo(name string) gitrepo.Base {
	w.t.Helper()
	dir := filepath.Join(w.top, name)
	script := `git init -q "$0" && cd "$0" && head -c "$1" /dev/urandom >f && git add f && git -c user.name=T -c user.email=t@example.com commit -qm x`
	if out, err := exec.Command("sh", "-ec", script, dir, "307200").CombinedOutput(); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	b, err := w.repos.FromPath(w.t.Context(), dir, "")
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

// kept lists the names of what the shelf holds.
func (w *world) kept() []string {
	w.t.Helper()
	var names []string
	for _, h := range []shelf.Holder{w.bases, w.repos} {
		items, err := h.Items()
		if err != nil {
			w.t.Fatal(err)
		}
		for _, it := range items {
			names = append(names, filepath.Base(strings.Fields(it.What)[0]))
		}
	}
	return names
}

func (w *world) wantKept(want ...string) {
	w.t.Helper()
	if d := cmp.Diff(want, w.kept(), inAnyOrder); d != "" {
		w.t.Errorf("kept (-want +got):\n%s", d)
	}
	var named []string
	for _, h := range []shelf.Holder{w.bases, w.repos} {
		items, err := h.Items()
		if err != nil {
			w.t.Fatal(err)
		}
		for _, it := range items {
			named = append(named, it.Layers...)
		}
	}
	all, err := w.cache.Layers()
	if err != nil {
		w.t.Fatal(err)
	}
	if d := cmp.Diff(distinct(named), all, inAnyOrder); d != "" {
		w.t.Errorf("layers that nothing names (+) or that are gone (-):\n%s", d)
	}
}

func TestShelf_Trim(t *testing.T) {
	w := newWorld(t)
	w.path("a").Release()
	w.repo("r").Release()
	w.path("b").Release()
	w.trim(0)
	w.wantKept("a", "b", "r")
	w.trim(20 * fileSize)
	w.wantKept("a", "b", "r")
	w.trim(7 * fileSize / 2) // a repository takes its files and its objects
	w.wantKept("b", "r")
	w.trim(2 * fileSize)
	w.wantKept("b")
	w.trim(1)
	w.wantKept()
	if b := w.path("a"); !b.Changed {
		t.Error("an image that was removed was not made again")
	}
	if b := w.repo("r2"); len(b.Chain) == 0 {
		t.Error("no base of a repository after all others were removed")
	}
}

// A base in use stays, whatever it takes, and that is said once; when it is no longer in use it goes.
func TestShelf_InUse(t *testing.T) {
	w := newWorld(t)
	a, r := w.path("a"), w.repo("r")
	s := w.shelf(1)
	for range 3 {
		if err := s.Trim(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	w.wantKept("a", "r")
	if n := strings.Count(w.log.String(), "more than their budget"); n != 1 {
		t.Errorf("said %d times that the budget is too small, want once:\n%s", n, w.log.String())
	}
	a.Release()
	r.Release()
	if err := s.Trim(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.wantKept()
}

// Another process's use counts, and what is kept outlives a restart with a smaller budget.
func TestShelf_Restart(t *testing.T) {
	w := newWorld(t)
	w.path("a").Release()
	b := w.path("b")
	other := &world{t: t, state: w.state, top: w.top}
	other.open()
	other.trim(1)
	other.wantKept("b")
	b.Release()
	other.trim(1)
	other.wantKept()
}

// Plans that start while bases are being removed get whole ones.
func TestShelf_TrimBesidePlans(t *testing.T) {
	w := newWorld(t)
	ctx, stop := context.WithCancel(t.Context())
	var trims sync.WaitGroup
	trims.Go(func() {
		for s := w.shelf(1); ctx.Err() == nil; {
			if err := s.Trim(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	var plans sync.WaitGroup
	for _, name := range []string{"a", "a", "b"} {
		w.path(name).Release()
		plans.Go(func() {
			for range 20 {
				b, err := w.bases.FromPath(ctx, filepath.Join(w.top, name))
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := layer.NewTree(b.Chain).Lookup("f"); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				b.Release()
			}
		})
	}
	plans.Wait()
	stop()
	trims.Wait()
}

// Run looks when it is told to.
func TestShelf_Run(t *testing.T) {
	w := newWorld(t)
	s := w.shelf(1)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	w.path("a").Release()
	s.Nudge()
	for end := time.Now().Add(10 * time.Second); len(w.kept()) > 0; {
		if time.Now().After(end) {
			t.Fatal("nothing was removed")
		}
		s.Nudge()
	}
	stop()
	running.Wait()
}

// inAnyOrder compares lists as sets; none and an empty one are the same.
var inAnyOrder = cmp.Transformer("sorted", func(list []string) map[string]bool {
	set := map[string]bool{}
	for _, s := range list {
		set[s] = true
	}
	return set
})

func distinct(ids []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, id := range ids {
		if !seen[id] {
			out = append(out, id)
		}
		seen[id] = true
	}
	return out
}
