// Package kvtest is the conformance suite of package kv.
package kvtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/kv"
)

// patience is how long the suite waits for something that should happen at once.
const patience = 10 * time.Second

// TTL is the time to live of the buckets that RunTTL is given.
const TTL = time.Second

// Run is the suite of kv.Store. Each call of open returns an empty bucket whose records stay.
func Run(t *testing.T, open func(t *testing.T) kv.Store) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, kv.Store)
	}{
		{"CreateGetUpdateDelete", life},
		{"CompareAndSet", compareAndSet},
		{"OneOfManyCreates", race},
		{"List", list},
		{"Watch", watch},
		{"RefusesBadKeys", badKeys},
		{"EndedContext", endedContext},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
}

// RunTTL is the suite of a bucket with TTL, leases included. Each call of open returns an empty one.
func RunTTL(t *testing.T, open func(t *testing.T) kv.Store) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, kv.Store)
	}{
		{"Expires", expires},
		{"UpdateBeginsAnew", updateBeginsAnew},
		{"LeaseIsExclusive", leaseExclusive},
		{"LeaseIsLostWhenTaken", leaseTaken},
		{"LeaseOutlivesTTL", leaseOutlivesTTL},
		{"OneLeaderAtATime", leaders},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func life(t *testing.T, s kv.Store) {
	ctx := t.Context()
	if _, err := s.Get(ctx, "a"); !errors.Is(err, kv.ErrNotFound) {
		t.Errorf("get of nothing: %v, want %v", err, kv.ErrNotFound)
	}
	one, err := s.Create(ctx, "a", []byte("1"))
	must(t, err)
	two, err := s.Update(ctx, "a", []byte("2"), one)
	must(t, err)
	if two <= one {
		t.Errorf("revision %d after %d", two, one)
	}
	e, err := s.Get(ctx, "a")
	must(t, err)
	if e.Key != "a" || string(e.Value) != "2" || e.Revision != two || e.Created.IsZero() || e.Deleted {
		t.Errorf("entry %+v", e)
	}
	must(t, s.Delete(ctx, "a", two))
	if _, err := s.Get(ctx, "a"); !errors.Is(err, kv.ErrNotFound) {
		t.Errorf("get of a deleted record: %v, want %v", err, kv.ErrNotFound)
	}
	must(t, s.Delete(ctx, "a", 0))
	must(t, s.Delete(ctx, "never", 0))
	three, err := s.Create(ctx, "a", nil)
	must(t, err)
	if three <= two {
		t.Errorf("revision %d of the new record, %d of the old one", three, two)
	}
	four, err := s.Put(ctx, "a", []byte("4"))
	must(t, err)
	if four <= three {
		t.Errorf("revision %d after %d", four, three)
	}
}

func compareAndSet(t *testing.T, s kv.Store) {
	ctx := t.Context()
	rev, err := s.Create(ctx, "a", []byte("1"))
	must(t, err)
	if _, err := s.Create(ctx, "a", []byte("x")); !errors.Is(err, kv.ErrExists) {
		t.Errorf("second create: %v, want %v", err, kv.ErrExists)
	}
	if _, err := s.Update(ctx, "a", []byte("x"), rev+1); !errors.Is(err, kv.ErrConflict) {
		t.Errorf("update of another revision: %v, want %v", err, kv.ErrConflict)
	}
	if _, err := s.Update(ctx, "b", []byte("x"), rev); !errors.Is(err, kv.ErrConflict) {
		t.Errorf("update of nothing: %v, want %v", err, kv.ErrConflict)
	}
	if err := s.Delete(ctx, "a", rev+1); !errors.Is(err, kv.ErrConflict) {
		t.Errorf("delete of another revision: %v, want %v", err, kv.ErrConflict)
	}
	if e, err := s.Get(ctx, "a"); err != nil || string(e.Value) != "1" {
		t.Errorf("value %q, %v; want the first", e.Value, err)
	}
}

func race(t *testing.T, s kv.Store) {
	var wg sync.WaitGroup
	won := make(chan int, 16)
	for i := range cap(won) {
		wg.Go(func() {
			if _, err := s.Create(t.Context(), "a", fmt.Append(nil, i)); err == nil {
				won <- i
			} else if !errors.Is(err, kv.ErrExists) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Errorf("%d creates won, want 1", len(won))
	}
}

func list(t *testing.T, s kv.Store) {
	for _, k := range []string{"w.b", "w.a", "wx", "v", "w.a.deep"} {
		_, err := s.Put(t.Context(), k, []byte("of "+k))
		must(t, err)
	}
	must(t, s.Delete(t.Context(), "v", 0))
	for prefix, want := range map[string][]string{
		"":     {"w.a", "w.a.deep", "w.b", "wx"},
		"w":    {"w.a", "w.a.deep", "w.b", "wx"},
		"w.":   {"w.a", "w.a.deep", "w.b"},
		"w.a":  {"w.a", "w.a.deep"},
		"none": nil,
	} {
		all, err := s.List(t.Context(), prefix)
		must(t, err)
		var got []string
		for _, e := range all {
			got = append(got, e.Key)
			if string(e.Value) != "of "+e.Key {
				t.Errorf("value %q of key %q", e.Value, e.Key)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("keys with prefix %q (-want +got):\n%s", prefix, diff)
		}
	}
}

func watch(t *testing.T, s kv.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	_, err := s.Put(ctx, "a", []byte("1"))
	must(t, err)
	changes, err := s.Watch(ctx)
	must(t, err)
	want := func(key, value string, deleted bool) {
		t.Helper()
		e := next(t, changes)
		if e.Key != key || string(e.Value) != value || e.Deleted != deleted {
			t.Errorf("change %+v, want %q=%q deleted %v", e, key, value, deleted)
		}
	}
	want("a", "1", false)
	want("", "", false)
	_, err = s.Put(ctx, "b", []byte("2"))
	must(t, err)
	want("b", "2", false)
	must(t, s.Delete(ctx, "a", 0))
	want("a", "", true)
	cancel()
	select {
	case _, ok := <-changes:
		if ok {
			t.Error("a change after the end of the context")
		}
	case <-time.After(patience):
		t.Error("the channel stays open")
	}
}

func next(t *testing.T, changes <-chan kv.Entry) kv.Entry {
	t.Helper()
	select {
	case e, ok := <-changes:
		if !ok {
			t.Fatal("watch ended")
		}
		return e
	case <-time.After(patience):
		t.Fatal("no change arrived")
		return kv.Entry{}
	}
}

func badKeys(t *testing.T, s kv.Store) {
	for _, key := range []string{"", ".a", "a.", "a b", "*", "a.>", "ü"} {
		if _, err := s.Put(t.Context(), key, nil); !errors.Is(err, kv.ErrKey) {
			t.Errorf("put under %q: %v, want %v", key, err, kv.ErrKey)
		}
		if _, err := s.Get(t.Context(), key); !errors.Is(err, kv.ErrKey) {
			t.Errorf("get of %q: %v, want %v", key, err, kv.ErrKey)
		}
	}
}

func endedContext(t *testing.T, s kv.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Put(ctx, "a", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("put: %v, want %v", err, context.Canceled)
	}
}

func expires(t *testing.T, s kv.Store) {
	changes, err := s.Watch(t.Context())
	must(t, err)
	next(t, changes) // the mark of an empty bucket
	rev, err := s.Create(t.Context(), "a", nil)
	must(t, err)
	next(t, changes)
	if e := next(t, changes); e.Key != "a" || !e.Deleted {
		t.Errorf("change %+v, want the end of a", e)
	}
	again, err := s.Create(t.Context(), "a", nil)
	if err != nil || again <= rev {
		t.Errorf("create after the end: revision %d after %d, %v", again, rev, err)
	}
}

func updateBeginsAnew(t *testing.T, s kv.Store) {
	changes, err := s.Watch(t.Context())
	must(t, err)
	rev, err := s.Create(t.Context(), "a", nil)
	must(t, err)
	tick := time.NewTicker(TTL / 4)
	defer tick.Stop()
	for range 8 {
		<-tick.C
		rev, err = s.Update(t.Context(), "a", nil, rev)
		must(t, err)
	}
	for {
		select {
		case e := <-changes:
			if e.Deleted {
				t.Fatal("the record ended although it was updated")
			}
			continue
		default:
		}
		break
	}
}

func options(owner string) kv.LeaseOptions {
	return kv.LeaseOptions{Key: "leader", Owner: owner, TTL: TTL}
}

func leaseExclusive(t *testing.T, s kv.Store) {
	ctx := t.Context()
	a, err := kv.Acquire(ctx, s, options("same name"))
	must(t, err)
	if _, err := kv.Acquire(ctx, s, options("same name")); !errors.Is(err, kv.ErrHeld) {
		t.Fatalf("second acquire: %v, want %v", err, kv.ErrHeld)
	}
	must(t, a.Renew(ctx))
	must(t, a.Release(ctx))
	select {
	case <-a.Lost():
	default:
		t.Error("released and not lost")
	}
	must(t, a.Release(ctx))
	b, err := kv.Acquire(ctx, s, options("b"))
	must(t, err)
	must(t, b.Release(ctx))
}

func leaseTaken(t *testing.T, s kv.Store) {
	ctx := t.Context()
	a, err := kv.Acquire(ctx, s, options("a"))
	must(t, err)
	_, err = s.Put(ctx, "leader", []byte("thief"))
	must(t, err)
	select {
	case <-a.Lost():
	case <-time.After(patience):
		t.Fatal("a taken lease is not lost")
	}
	if err := a.Renew(ctx); !errors.Is(err, kv.ErrLost) {
		t.Errorf("renew of a lost lease: %v, want %v", err, kv.ErrLost)
	}
	must(t, a.Release(ctx))
	if e, err := s.Get(ctx, "leader"); err == nil && string(e.Value) != "thief" {
		t.Errorf("the loser wrote %q", e.Value)
	}
}

func leaseOutlivesTTL(t *testing.T, s kv.Store) {
	a, err := kv.Acquire(t.Context(), s, options("a"))
	must(t, err)
	select {
	case <-a.Lost():
		t.Error("lost although it was renewed")
	case <-time.After(2 * TTL):
	}
	if _, err := kv.Acquire(t.Context(), s, options("b")); !errors.Is(err, kv.ErrHeld) {
		t.Errorf("acquire of a renewed lease: %v, want %v", err, kv.ErrHeld)
	}
	must(t, a.Release(t.Context()))
}

func leaders(t *testing.T, s kv.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	now, terms := 0, 0
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			kv.Lead(ctx, s, options(fmt.Sprint(i)), func(ctx context.Context) {
				mu.Lock()
				now++
				terms++
				if now != 1 {
					t.Errorf("%d leaders at once", now)
				}
				if terms == 5 {
					cancel()
				}
				mu.Unlock()
				select {
				case <-ctx.Done():
				case <-time.After(TTL / 20):
				}
				mu.Lock()
				now--
				mu.Unlock()
			})
		})
	}
	wg.Wait()
	if terms < 5 {
		t.Errorf("%d terms, want 5", terms)
	}
}
