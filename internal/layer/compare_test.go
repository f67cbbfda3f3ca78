package layer_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// compareBed is a directory that random changes are made to, and the cache that captures it.
type compareBed struct {
	cache *layer.Cache
	dir   string
	rnd   *rand.Rand
}

func newCompareBed(t *testing.T, seed uint64) *compareBed {
	t.Helper()
	cache, err := layer.OpenCache(t.TempDir(), layer.Options{Owner: os.Getuid(), Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	b := &compareBed{cache: cache, dir: t.TempDir(), rnd: rand.New(rand.NewPCG(seed, 1))}
	for _, p := range []string{"a/a/a", "a/b/a", "a/c", "b/a/b", "b/c"} {
		p = filepath.Join(b.dir, p)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte("0"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// capture closes what changed since idx as a layer.
func (b *compareBed) capture(t *testing.T, idx *layer.Index) (layer.Layer, *layer.Index) {
	t.Helper()
	l, next, _, err := b.cache.Capture(t.Context(), b.dir, idx)
	if err != nil {
		t.Fatal(err)
	}
	return l, next
}

// change makes n random changes; names are few, so that kinds replace each other.
func (b *compareBed) change(t *testing.T, n int) {
	t.Helper()
	for range n {
		p := b.dir
		for range 1 + b.rnd.IntN(3) {
			p = filepath.Join(p, string(rune('a'+b.rnd.IntN(3))))
			if st, err := os.Lstat(p); err != nil || !st.IsDir() || b.rnd.IntN(2) == 0 {
				break
			}
		}
		var err error
		switch b.rnd.IntN(7) {
		case 0, 6:
			err = os.RemoveAll(p)
		case 1:
			err = os.RemoveAll(p)
			if err == nil {
				err = os.MkdirAll(filepath.Join(p, "c"), 0o755)
			}
		case 2:
			err = os.RemoveAll(p)
			if err == nil {
				err = os.Symlink(fmt.Sprint("to-", b.rnd.IntN(3)), p)
			}
		case 3:
			if st, failed := os.Lstat(p); failed == nil && st.Mode()&os.ModeSymlink == 0 {
				err = os.Chmod(p, 0o700|os.FileMode(b.rnd.IntN(8))<<3)
			}
		default:
			if st, failed := os.Lstat(p); failed == nil && !st.Mode().IsRegular() {
				err = os.RemoveAll(p)
			}
			if err == nil {
				err = os.WriteFile(p, fmt.Append(nil, b.rnd.IntN(4)), 0o644)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// found are changes without what differs between captures of one tree. A digest is there only where it had to be computed.
func found(t *testing.T, from, to layer.Chain) []layer.Change {
	t.Helper()
	changes, err := layer.Compare(from, to)
	if err != nil {
		t.Fatal(err)
	}
	changes = slices.Clone(changes)
	for i, c := range changes {
		for _, side := range []**layer.Entry{&c.Before, &c.After} {
			if *side != nil {
				e := **side
				e.MTime, e.HardLink = time.Time{}, ""
				*side = &e
			}
		}
		changes[i] = c
	}
	return changes
}

// What two branches of a chain differ in is what their whole trees differ in.
func TestCompare_BranchesLikeWholeTrees(t *testing.T) {
	t.Parallel()
	for seed := range uint64(25) {
		b := newCompareBed(t, seed)
		var shared layer.Chain
		var idx *layer.Index
		for range 1 + b.rnd.IntN(3) {
			b.change(t, 2)
			var l layer.Layer
			if l, idx = b.capture(t, idx); l.ID != "" {
				shared = append(shared, l)
			}
		}
		branch := func() (chain, whole layer.Chain) {
			chain = slices.Clone(shared)
			at := idx
			for range b.rnd.IntN(6) {
				b.change(t, 2)
				var l layer.Layer
				if l, at = b.capture(t, at); l.ID != "" {
					chain = append(chain, l)
				}
			}
			if b.rnd.IntN(8) == 0 { // nothing is shared
				all, _ := b.capture(t, nil)
				chain = layer.Chain{all}
			}
			all, _ := b.capture(t, nil)
			return chain, layer.Chain{all}
		}
		// The directory goes on from the first branch, so the second begins with what takes that back.
		from, wholeFrom := branch()
		if back, _ := b.capture(t, idx); back.ID != "" {
			shared = append(shared, back)
		}
		_, idx = b.capture(t, nil)
		to, wholeTo := branch()
		if d := cmp.Diff(found(t, wholeFrom, wholeTo), found(t, from, to)); d != "" {
			t.Fatalf("seed %d: (-whole trees +branches):\n%s", seed, d)
		}
		if d := cmp.Diff(found(t, wholeTo, wholeFrom), found(t, to, from)); d != "" {
			t.Fatalf("seed %d: backwards (-whole trees +branches):\n%s", seed, d)
		}
	}
}

func TestCompare_Empty(t *testing.T) {
	b := newCompareBed(t, 1)
	b.change(t, 5)
	l, _ := b.capture(t, nil)
	chain := layer.Chain{l}
	if got := found(t, chain, chain); len(got) != 0 {
		t.Errorf("with itself: got %d changes, want none", len(got))
	}
	came, went := found(t, nil, chain), found(t, chain, nil)
	if len(came) < 2 || len(came) != len(went) {
		t.Fatalf("from nothing: got %d changes, to nothing %d, want all of the tree both times", len(came), len(went))
	}
	for i := range came {
		if came[i].Before != nil || went[i].After != nil || came[i].Path != went[i].Path {
			t.Errorf("got %+v from nothing and %+v to nothing, want one an addition and one a removal", came[i], went[i])
		}
	}
}

// A directory that went in one layer and came back in another shows nothing of what the shared layers have of it.
func TestCompare_RemovedAndMadeAgain(t *testing.T) {
	b := newCompareBed(t, 1)
	base, idx := b.capture(t, nil)
	if err := os.RemoveAll(filepath.Join(b.dir, "a")); err != nil {
		t.Fatal(err)
	}
	gone, idx := b.capture(t, idx)
	if err := errors.Join(os.Mkdir(filepath.Join(b.dir, "a"), 0o755), os.WriteFile(filepath.Join(b.dir, "a/new"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	again, _ := b.capture(t, idx)
	whole, _ := b.capture(t, nil)
	from, to := layer.Chain{base}, layer.Chain{base, gone, again}
	if got, want := found(t, from, to), found(t, from, layer.Chain{whole}); !cmp.Equal(got, want) || len(got) < 5 {
		t.Errorf("(-whole tree +chain):\n%s", cmp.Diff(want, got))
	}
	if got, want := found(t, to, from), found(t, layer.Chain{whole}, from); !cmp.Equal(got, want) {
		t.Errorf("backwards: (-whole tree +chain):\n%s", cmp.Diff(want, got))
	}
}
