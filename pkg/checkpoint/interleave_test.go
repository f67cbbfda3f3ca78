package checkpoint_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
)

// eachStep runs do with its one disturbance before operation 1, 2, ... until a run has fewer operations.
func eachStep(t *testing.T, do func(t *testing.T, at int64) (operations int64)) {
	t.Helper()
	for at := int64(1); ; at++ {
		var n int64
		synctest.Test(t, func(t *testing.T) { n = do(t, at) })
		if t.Failed() {
			t.Fatalf("disturbed before operation %d", at)
		}
		if n < at {
			if at < 4 {
				t.Errorf("only %d operations: nothing was disturbed", n)
			}
			return
		}
	}
}

// A writer that uses a layer again, with whole collections at every point of its work.
func TestCollect_BesideAWriter(t *testing.T) {
	for _, marked := range []bool{false, true} {
		eachStep(t, func(t *testing.T, at int64) int64 {
			s := newScene(t)
			other := s.plain(t)
			if marked { // and ripe
				other.collect(t, checkpoint.Collection{Grace: time.Hour})
				time.Sleep(2 * time.Hour)
			}
			st := &stepper{at: at, hook: func() {
				other.collect(t, checkpoint.Collection{Grace: map[bool]time.Duration{true: time.Hour}[marked]})
			}}
			d := s.seen(t, st)
			cp, err := d.manager.Store(t.Context(), d.keep(t, "p", reused).ID)
			if err != nil || !cp.Portable {
				t.Errorf("store: %+v, %v", cp, err)
			}
			other.sound(t, 1)
			other.collect(t, checkpoint.Collection{})
			other.sound(t, 1)
			return st.n
		})
	}
}

// A collection, with a whole writer at every point of its work: the one that was there before,
// that stores the same layer again, or one of a new one.
func TestCollect_AroundAWriter(t *testing.T) {
	for _, content := range []string{reused, "another layer"} {
		eachStep(t, func(t *testing.T, at int64) int64 {
			s := newScene(t)
			writer := s.plain(t)
			local := writer.keep(t, "p", content)
			st := &stepper{at: at, hook: func() {
				if _, err := writer.manager.Store(t.Context(), local.ID); err != nil {
					t.Errorf("store: %v", err)
				}
			}}
			s.seen(t, st).collect(t, checkpoint.Collection{})
			if st.n >= at {
				s.plain(t).sound(t, 1)
				s.plain(t).collect(t, checkpoint.Collection{})
				s.plain(t).sound(t, 1)
			}
			return st.n
		})
	}
}

// A writer stops at each point, a collection runs up to each of its points, the writer goes on to
// its end or is killed a little later, and the collection ends. Whatever comes first: no record
// names what is not there.
func TestCollect_EachPointBesideEachPoint(t *testing.T) {
	for killAfter := range int64(4) { // 0: the writer lives
		points := int64(1)
		for w := int64(1); w <= points; w++ {
			eachStep(t, func(t *testing.T, c int64) int64 {
				var collected int64
				points, collected = pointBesidePoint(t, w, c, killAfter)
				return max(collected, 3) // few operations are left for the writer's last points
			})
		}
	}
}

// pointBesidePoint returns how many operations the writer and the collection had.
func pointBesidePoint(t *testing.T, w, c, killAfter int64) (written, collected int64) {
	s := newScene(t)
	writerEnded, reached, collectorEnded := make(chan struct{}), make(chan struct{}), make(chan struct{})
	collector := &stepper{at: c, hook: func() {
		close(reached)
		<-writerEnded
	}}
	seen, plain := s.seen(t, collector), s.plain(t)
	started := false
	writer := &stepper{at: w, hook: func() {
		started = true
		go func() {
			defer close(collectorEnded)
			seen.collect(t, checkpoint.Collection{})
		}()
		select {
		case <-reached:
		case <-collectorEnded:
		}
	}}
	if killAfter > 0 {
		writer.killAt = w + killAfter
	}
	d := s.seen(t, writer)
	cp, err := d.manager.Store(t.Context(), d.keep(t, "p", reused).ID)
	close(writerEnded)
	if started {
		<-collectorEnded
	}
	if killAfter == 0 && err != nil {
		t.Errorf("store: %v", err)
	}
	if _, lerr := checkpoint.Load(t.Context(), s.records, cp.ID); err == nil && lerr != nil {
		t.Errorf("what was stored is gone: %v", lerr)
	}
	plain.collect(t, checkpoint.Collection{})
	found, verr := checkpoint.Verify(t.Context(), s.store, s.records, checkpoint.Part{N: 1, T: 1})
	if verr != nil || len(found.Problems) > 0 {
		t.Errorf("writer at %d, collection at %d, killed after %d: %+v, %v", w, c, killAfter, found.Problems, verr)
	}
	return writer.n, collector.n
}

// Two collections, one whole at every point of the other, and a writer in between.
func TestCollect_BesideACollection(t *testing.T) {
	eachStep(t, func(t *testing.T, at int64) int64 {
		s := newScene(t)
		writer := s.plain(t)
		local := writer.keep(t, "p", reused)
		inner := &stepper{at: 3, hook: func() {
			if _, err := writer.manager.Store(t.Context(), local.ID); err != nil {
				t.Errorf("store: %v", err)
			}
		}}
		outer := &stepper{at: at, hook: func() { s.seen(t, inner).collect(t, checkpoint.Collection{}) }}
		s.seen(t, outer).collect(t, checkpoint.Collection{})
		if inner.n >= inner.at {
			s.plain(t).sound(t, 1)
		}
		return outer.n
	})
}

// A reader whose checkpoint expires and is collected at any point of its work gets the right
// layers or a clear error, and never waits.
func TestCollect_BesideAReader(t *testing.T) {
	eachStep(t, func(t *testing.T, at int64) int64 {
		s := scene{objectstore.NewMemory(), kv.NewMemory()}
		cp := s.plain(t).put(t, "p", "read me")
		st := &stepper{at: at, hook: func() {
			s.plain(t).collect(t, checkpoint.Collection{Fate: func(checkpoint.Checkpoint, time.Time) checkpoint.Fate {
				return checkpoint.Fate{Until: time.Now()}
			}})
		}}
		r, err := s.seen(t, st).manager.Restore(t.Context(), cp.ID)
		if err == nil {
			if got := len(r.Chain); got != 1 {
				t.Errorf("restored %d layers, want 1", got)
			}
			r.Release()
		} else if !errors.Is(err, checkpoint.ErrNotFound) && !errors.Is(err, checkpoint.ErrMissingLayer) {
			t.Errorf("restore: %v, want it to be gone", err)
		}
		return st.n
	})
}

// A collection that is killed at any point, and one after it.
func TestCollect_KilledAnywhere(t *testing.T) {
	eachStep(t, func(t *testing.T, at int64) int64 {
		s := newScene(t)
		d := s.plain(t)
		d.put(t, "keeps", "kept")
		d.put(t, "goes", "1")
		d.put(t, "goes", "2")
		c := checkpoint.Collection{Fate: func(c checkpoint.Checkpoint, written time.Time) checkpoint.Fate {
			if c.PlanID == "goes" {
				return checkpoint.Fate{Until: written}
			}
			return checkpoint.Fate{Pinned: true}
		}}
		st := &stepper{killAt: at}
		seen := s.seen(t, st)
		if _, err := checkpoint.Collect(t.Context(), seen.store, seen.records, c); err == nil && st.n >= at {
			t.Error("the failure was not noticed")
		}
		found, err := checkpoint.Verify(t.Context(), s.store, s.records, checkpoint.Part{N: 1, T: 1})
		if err != nil || len(found.Problems) > 0 {
			t.Errorf("after the kill: %+v, %v: a record names what is not there", found.Problems, err)
		}
		d.collect(t, c)
		d.sound(t, 1)
		if got := d.names(t); len(got) != 1 {
			t.Errorf("%d objects are left, want the one that is kept", len(got))
		}
		return st.n
	})
}

// A writer that is killed at any point leaves nothing half listed, and nothing after a collection.
func TestStore_KilledAnywhere(t *testing.T) {
	eachStep(t, func(t *testing.T, at int64) int64 {
		s := newScene(t)
		st := &stepper{killAt: at}
		d := s.seen(t, st)
		cp, err := d.manager.Store(t.Context(), d.keep(t, "p", "new").ID)
		if err == nil != cp.Portable {
			t.Errorf("stored %+v, %v", cp, err)
		}
		other := s.plain(t)
		other.collect(t, checkpoint.Collection{})
		all, err := checkpoint.All(t.Context(), s.records)
		if err != nil {
			t.Fatal(err)
		}
		other.sound(t, len(all))
		if got := other.names(t); len(got) != len(all) {
			t.Errorf("%d objects for %d checkpoints", len(got), len(all))
		}
		return st.n
	})
}

// The answer to any write is lost: what was said to have failed may be repeated, by the writer as
// well as by the collection.
func TestStore_AnyAnswerLost(t *testing.T) {
	eachStep(t, func(t *testing.T, at int64) int64 {
		s := newScene(t)
		st := &stepper{loseAt: at}
		d := s.seen(t, st)
		cp := d.keep(t, "p", "new")
		stored, err := d.manager.Store(t.Context(), cp.ID)
		if err != nil {
			stored, err = d.manager.Store(t.Context(), cp.ID)
		}
		if err != nil || !stored.Portable {
			t.Errorf("store once more: %+v, %v", stored, err)
		}
		s.plain(t).sound(t, 1)
		return st.n
	})
}

func TestCollect_AnyAnswerLost(t *testing.T) {
	eachStep(t, func(t *testing.T, at int64) int64 {
		s := newScene(t)
		s.plain(t).put(t, "keeps", "kept")
		st := &stepper{loseAt: at}
		seen := s.seen(t, st)
		for range 2 {
			if _, err := checkpoint.Collect(t.Context(), seen.store, seen.records, checkpoint.Collection{Fate: pinned}); err != nil && !errors.Is(err, errLost) {
				t.Error(err)
			}
		}
		s.plain(t).sound(t, 1)
		if got := s.plain(t).names(t); len(got) != 1 {
			t.Errorf("%d objects are left, want one", len(got))
		}
		return st.n
	})
}
