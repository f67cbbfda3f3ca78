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
		Settings: warmpool.Settings{Target: target, MaxAge: maxAge},
		Make: func(context.Context, string) (thing, error) {
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
			if got, want := b.pool.Stats(), (warmpool.Stats{Idle: 1, Target: 2, Hits: 1}); got != want {
				t.Errorf("stats beside what was claimed %+v, want %+v", got, want)
			}
			<-time.After(warmpool.StandBack) // the clock of the bubble
			synctest.Wait()
			if got, want := b.pool.Stats(), (warmpool.Stats{Idle: 2, Target: 2, Hits: 1, RefillLag: warmpool.StandBack, Oldest: warmpool.StandBack}); got != want {
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
			<-time.After(warmpool.StandBack) // the clock of the bubble
			synctest.Wait()
			if got := b.pool.Stats().Error; got == "" {
				t.Error("nothing failed")
			}
			b.fail.Store(false)
			<-time.After(warmpool.FirstBackoff) // the clock of the bubble
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

// Bubbles of several pools that make at most two members at once together; one pool's makers hang or fail.
func TestGate(t *testing.T) {
	t.Run("AtMostSoMany", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			gate := warmpool.NewGate(2)
			var now, most, closed atomic.Int32
			pools := make([]*warmpool.Pool[thing], 4)
			ctx, cancel := context.WithCancel(context.Background())
			for i := range pools {
				pools[i] = warmpool.New(warmpool.Config[thing]{
					Settings: warmpool.Settings{Target: 5, Making: 5}, Gate: gate,
					Make: func(context.Context, string) (thing, error) {
						most.Store(max(most.Load(), now.Add(1)))
						defer now.Add(-1)
						<-time.After(time.Second)
						return thing{closed: &closed}, nil
					},
				})
				go pools[i].Run(ctx)
			}
			<-time.After(time.Minute)
			for i, p := range pools {
				if got := p.Stats().Idle; got != 5 {
					t.Errorf("pool %d has %d idle, want 5", i, got)
				}
			}
			if got := most.Load(); got != 2 {
				t.Errorf("%d were made at once, want 2", got)
			}
			cancel()
			for _, p := range pools {
				p.Wait()
			}
			if got := closed.Load(); got != 20 {
				t.Errorf("%d closed at the end, want 20", got)
			}
		})
	})
	t.Run("FailuresOfOnePoolHoldNoOtherUp", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			gate := warmpool.NewGate(1)
			var tries, closed atomic.Int32
			ctx, cancel := context.WithCancel(context.Background())
			broken := warmpool.New(warmpool.Config[thing]{
				Settings: warmpool.Settings{Target: 3, Making: 2}, Gate: gate,
				Make: func(context.Context, string) (thing, error) {
					tries.Add(1)
					return thing{}, errors.New("no space left on device")
				},
			})
			good := warmpool.New(warmpool.Config[thing]{
				Settings: warmpool.Settings{Target: 3, Making: 2}, Gate: gate,
				Make: func(context.Context, string) (thing, error) { return thing{closed: &closed}, nil },
			})
			go broken.Run(ctx)
			go good.Run(ctx)
			<-time.After(10 * time.Minute)
			if got := good.Stats().Idle; got != 3 {
				t.Errorf("the good pool has %d idle, want 3", got)
			}
			if got := tries.Load(); got < 10 || got > 20 {
				t.Errorf("%d tries in ten minutes, want about 15: 6 in the first minute, then one a minute", got)
			}
			if got := broken.Stats().Error; got != "no space left on device" {
				t.Errorf("the broken pool says %q", got)
			}
			cancel()
			broken.Wait()
			good.Wait()
		})
	})
}

func TestPool_Configure(t *testing.T) {
	t.Run("RollsToAnotherGeneration", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := start(3, 0)
			defer b.end()
			synctest.Wait()
			b.pool.Configure(warmpool.Settings{Target: 3, Generation: "b"})
			synctest.Wait()
			if got, want := b.closed.Load(), int32(3); got != want {
				t.Errorf("%d of the former generation closed, want %d", got, want)
			}
			if got, _ := b.pool.Claim(); got.id <= 3 {
				t.Errorf("claimed member %d of the former generation", got.id)
			}
		})
	})
	t.Run("DeadOneIsReplacedAtOnce", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := start(2, 0)
			defer b.end()
			synctest.Wait()
			b.dead.Store(1)
			b.pool.Check()
			synctest.Wait()
			if got := b.pool.Stats(); got.Idle != 2 || got.Wasted != 1 || b.made.Load() != 3 {
				t.Errorf("stats %+v after one died, %d made; want 2 idle, 1 wasted, 3 made", got, b.made.Load())
			}
		})
	})
}
