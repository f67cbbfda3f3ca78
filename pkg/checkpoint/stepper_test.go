package checkpoint_test

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
)

// stepper counts operations on store and records, and calls at once before the one of number at.
type stepper struct {
	n, at  int64
	hook   func()
	killAt int64 // all operations from this one on fail; 0: none
	loseAt int64 // the answer of this write is lost; 0: none
}

// answer is the answer to a write that was made.
func (s *stepper) answer(err error) error {
	if err == nil && s.loseAt > 0 && atomic.LoadInt64(&s.n) == s.loseAt {
		return errLost
	}
	return err
}

var (
	errKilled = errors.New("killed")
	errLost   = errors.New("no answer")
)

func (s *stepper) step() error {
	n := atomic.AddInt64(&s.n, 1)
	if n == s.at && s.hook != nil {
		s.hook()
	}
	if s.killAt > 0 && n >= s.killAt {
		return errKilled
	}
	return nil
}

type steppedStore struct {
	*objectstore.Memory
	*stepper
}

func (s steppedStore) Put(ctx context.Context, name string, r io.Reader) (objectstore.Info, error) {
	if err := s.step(); err != nil {
		return objectstore.Info{}, err
	}
	info, err := s.Memory.Put(ctx, name, r)
	return info, s.answer(err)
}

func (s steppedStore) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	if err := s.step(); err != nil {
		return nil, err
	}
	return s.Memory.Get(ctx, name)
}

func (s steppedStore) Stat(ctx context.Context, name string) (objectstore.Info, error) {
	if err := s.step(); err != nil {
		return objectstore.Info{}, err
	}
	return s.Memory.Stat(ctx, name)
}

func (s steppedStore) List(ctx context.Context) ([]objectstore.Info, error) {
	if err := s.step(); err != nil {
		return nil, err
	}
	return s.Memory.List(ctx)
}

func (s steppedStore) Mark(ctx context.Context, o objectstore.Info) (objectstore.Info, error) {
	if err := s.step(); err != nil {
		return objectstore.Info{}, err
	}
	return s.Memory.Mark(ctx, o)
}

func (s steppedStore) Spare(ctx context.Context, name string) (objectstore.Info, error) {
	if err := s.step(); err != nil {
		return objectstore.Info{}, err
	}
	return s.Memory.Spare(ctx, name)
}

func (s steppedStore) Reap(ctx context.Context, o objectstore.Info) error {
	if err := s.step(); err != nil {
		return err
	}
	return s.answer(s.Memory.Reap(ctx, o))
}

type steppedRecords struct {
	kv.Store
	*stepper
}

func (s steppedRecords) Create(ctx context.Context, key string, value []byte) (uint64, error) {
	if err := s.step(); err != nil {
		return 0, err
	}
	rev, err := s.Store.Create(ctx, key, value)
	return rev, s.answer(err)
}

func (s steppedRecords) Get(ctx context.Context, key string) (kv.Entry, error) {
	if err := s.step(); err != nil {
		return kv.Entry{}, err
	}
	return s.Store.Get(ctx, key)
}

func (s steppedRecords) List(ctx context.Context, prefix string) ([]kv.Entry, error) {
	if err := s.step(); err != nil {
		return nil, err
	}
	return s.Store.List(ctx, prefix)
}

func (s steppedRecords) Delete(ctx context.Context, key string, rev uint64) error {
	if err := s.step(); err != nil {
		return err
	}
	return s.answer(s.Store.Delete(ctx, key, rev))
}

// scene is a store with a layer that was used before and that no record names any more.
type scene struct {
	store   *objectstore.Memory
	records kv.Store
}

const reused = "a layer that comes again"

func TestDesk_SameContentIsOneObject(t *testing.T) {
	d := newDesk(t, objectstore.NewMemory(), kv.NewMemory())
	d.put(t, "p", reused)
	newDesk(t, d.store, d.records).put(t, "q", reused)
	if got := d.names(t); len(got) != 1 {
		t.Errorf("objects %v, want one", got)
	}
}

func newScene(t *testing.T) scene {
	t.Helper()
	s := scene{objectstore.NewMemory(), kv.NewMemory()}
	d := newDesk(t, s.store, s.records)
	cp := d.put(t, "p", reused)
	if err := checkpoint.Remove(t.Context(), s.records, cp.ID); err != nil {
		t.Fatal(err)
	}
	return s
}

// seen makes a desk whose operations st counts.
func (s scene) seen(t *testing.T, st *stepper) *desk {
	return newDesk(t, steppedStore{s.store, st}, steppedRecords{s.records, st})
}

func (s scene) plain(t *testing.T) *desk { return newDesk(t, s.store, s.records) }
