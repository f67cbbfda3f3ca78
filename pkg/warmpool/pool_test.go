package warmpool_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmfleet/warmfleet/pkg/warmpool"
)

type thing struct {
	id     int
	closed *atomic.Int32
}

func (t thing) Close() error {
	t.closed.Add(1)
	return nil
}

// bed is a pool of numbered things inside a synctest bubble.
type bed struct {
	pool         *warmpool.Pool[thing]
	made, closed atomic.Int32
	fail         atomic.Bool
	dead         atomic.Int32
	stop         context.CancelFunc
}

func start(target int, maxAge time.Duration) *bed {
	b := &bed{}
	b.pool = warmpool.New(warmpool.Config[thing]{
		Target: target, MaxAge: maxAge,
		Make: func(context.Context) (thing, error) {
			if b.fail.Load() {
				return thing{}, errors.New("no room")
			}
			return thing{int(b.made.Add(1)), &b.closed}, nil
		},
		Alive: func(t thing) bool { return int32(t.id) != b.dead.Load() },
	})
	ctx, cancel := context.WithCancel(context.Background())
	b.stop = cancel
	go b.pool.Run(ctx)
	return b
}

func (b *bed) end() {
	b.stop()
	b.pool.Wait()
}

func TestPool_Claim(t *testing.T) {
	t.Run("HitThenRefill", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := start(2, 0)
			defer b.end()
			synctest.Wait()
			if _, ok := b.pool.Claim(); !ok {
				t.Fatal("claim of a filled pool missed")
			}
			synctest.Wait()
			if got, want := b.pool.Stats(), (warmpool.Stats{Idle: 2, Hits: 1}); got != want {
				t.Errorf("stats %+v, want %+v", got, want)
			}
		})
	})
	t.Run("EmptyMisses", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := start(0, 0)
			defer b.end()
			if _, ok := b.pool.Claim(); ok {
				t.Error("claim of an empty pool hit")
			}
		})
	})
	t.Run("DeadIsSkipped", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := start(2, 0)
			defer b.end()
			synctest.Wait()
			b.dead.Store(2)
			got, ok := b.pool.Claim()
			if !ok || got.id != 1 {
				t.Errorf("claimed %v %v, want member 1", got.id, ok)
			}
		})
	})
}

func TestPool_Run(t *testing.T) {
	t.Run("OldMembersAreReplaced", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := start(3, 25*time.Minute)
			defer b.end()
			synctest.Wait()
			<-time.After(26 * time.Minute) // the clock of the bubble
			synctest.Wait()
			if got := b.closed.Load(); got != 3 {
				t.Errorf("%d old members closed, want 3", got)
			}
			if got := b.pool.Stats().Idle; got != 3 {
				t.Errorf("%d idle, want 3", got)
			}
		})
	})
	t.Run("FailedMakeIsRetried", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := start(1, 0)
			defer b.end()
			synctest.Wait()
			b.fail.Store(true)
			b.pool.Claim()
			synctest.Wait()
			b.fail.Store(false)
			<-time.After(2 * time.Second) // the clock of the bubble
			synctest.Wait()
			if got := b.pool.Stats().Idle; got != 1 {
				t.Errorf("%d idle after the failure passed, want 1", got)
			}
		})
	})
	t.Run("EndClosesAll", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := start(4, 0)
			synctest.Wait()
			b.end()
			if got := b.closed.Load(); got != 4 {
				t.Errorf("%d closed at the end, want 4", got)
			}
		})
	})
}
