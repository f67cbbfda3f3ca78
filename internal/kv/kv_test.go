package kv_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/internal/kv/kvtest"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/events/eventstest"
)

func open(t *testing.T, js jetstream.JetStream, bucket string) kv.Store {
	t.Helper()
	s, err := kv.Open(t.Context(), js, bucket)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestJetStream(t *testing.T) {
	kvtest.Run(t, func(t *testing.T) kv.Store {
		js := eventstest.Server(t)
		if err := events.Declare(t.Context(), js, events.Options{}); err != nil {
			t.Fatal(err)
		}
		return open(t, js, "FLEET_CHECKPOINTS")
	})
}

func TestMemory(t *testing.T) {
	kvtest.Run(t, func(t *testing.T) kv.Store { return kv.NewMemory() })
}

func TestJetStreamTTL(t *testing.T) {
	kvtest.RunTTL(t, func(t *testing.T) kv.Store {
		js := eventstest.Server(t)
		_, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{
			Bucket: "LEASES", TTL: kvtest.TTL, Storage: jetstream.MemoryStorage, LimitMarkerTTL: time.Minute,
		})
		if err != nil {
			t.Fatal(err)
		}
		return open(t, js, "LEASES")
	})
}

func TestMemoryTTL(t *testing.T) {
	kvtest.RunTTL(t, func(t *testing.T) kv.Store { return kv.NewMemoryTTL(kvtest.TTL) })
}

func TestOpen_UnknownBucket(t *testing.T) {
	if _, err := kv.Open(t.Context(), eventstest.Server(t), "NOPE"); err == nil {
		t.Error("an unknown bucket was opened")
	}
}

// faulty answers with an error while down, before or after the write.
type faulty struct {
	kv.Bucket
	down atomic.Bool
	late atomic.Bool // the write is done, its answer is lost
}

var errNoAnswer = errors.New("no answer")

func (f *faulty) Create(ctx context.Context, key string, value []byte) (uint64, error) {
	return f.answer(func() (uint64, error) { return f.Bucket.Create(ctx, key, value) })
}

func (f *faulty) Update(ctx context.Context, key string, value []byte, rev uint64) (uint64, error) {
	return f.answer(func() (uint64, error) { return f.Bucket.Update(ctx, key, value, rev) })
}

func (f *faulty) answer(write func() (uint64, error)) (uint64, error) {
	switch {
	case f.late.CompareAndSwap(true, false):
		if _, err := write(); err != nil {
			return 0, err
		}
		return 0, errNoAnswer
	case f.down.Load():
		return 0, errNoAnswer
	}
	return write()
}

func TestAcquire_LostAnswerIsRecognised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &faulty{Bucket: kv.NewMemoryTTL(time.Second)}
		b.late.Store(true)
		l, err := kv.Acquire(t.Context(), b, kv.LeaseOptions{Key: "k", TTL: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		b.late.Store(true)
		if err := l.Renew(t.Context()); !errors.Is(err, errNoAnswer) {
			t.Fatal(err)
		}
		if err := l.Renew(t.Context()); err != nil {
			t.Errorf("renew after a lost answer: %v", err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestLease_GivesUpBeforeTheBucketDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 6 * time.Second
		bucket := kv.NewMemoryTTL(ttl)
		b := &faulty{Bucket: bucket}
		l, err := kv.Acquire(t.Context(), b, kv.LeaseOptions{Key: "k", TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		b.down.Store(true)
		<-l.Lost()
		if took := time.Since(start); took >= ttl {
			t.Errorf("gave up after %v, the bucket does after %v", took, ttl)
		}
		if _, err := bucket.Get(t.Context(), "k"); err != nil {
			t.Errorf("the record had ended when the holder gave up: %v", err)
		}
		b.down.Store(false)
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
