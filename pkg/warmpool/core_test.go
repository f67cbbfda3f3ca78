package warmpool_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/pkg/warmpool"
)

// hand drives a core with a clock of its own.
type hand struct {
	core *warmpool.Core
	now  time.Time
}

func newHand(s warmpool.Settings) *hand {
	return &hand{core: warmpool.NewCore(s), now: time.Unix(1000, 0)}
}

// next returns the ids to be made and to be dropped.
func (h *hand) next() (made, dropped []warmpool.ID) {
	for _, a := range h.core.Next(h.now, 100) {
		if a.Kind == warmpool.Make {
			made = append(made, a.ID)
		} else {
			dropped = append(dropped, a.ID)
		}
	}
	return made, dropped
}

// settle makes all that is missing, with a second for each.
func (h *hand) settle() {
	for {
		made, _ := h.next()
		if len(made) == 0 {
			return
		}
		for _, id := range made {
			h.now = h.now.Add(time.Second)
			h.core.Made(h.now, id)
		}
	}
}

func (h *hand) claim(t *testing.T) warmpool.ID {
	t.Helper()
	id, ok := h.core.Claim(h.now)
	if !ok {
		t.Fatal("nothing to claim")
	}
	return id
}

func TestCore_Claim(t *testing.T) {
	t.Run("Youngest", func(t *testing.T) {
		h := newHand(warmpool.Settings{Target: 3, Making: 3})
		h.settle()
		if got, want := []warmpool.ID{h.claim(t), h.claim(t), h.claim(t)}, []warmpool.ID{3, 2, 1}; !slices.Equal(got, want) {
			t.Errorf("claimed %v, want %v", got, want)
		}
		if _, ok := h.core.Claim(h.now); ok {
			t.Error("claimed a fourth of three")
		}
	})
	t.Run("NeverTooOld", func(t *testing.T) {
		h := newHand(warmpool.Settings{Target: 1, MaxAge: time.Minute})
		h.settle()
		h.now = h.now.Add(time.Minute)
		if id, ok := h.core.Claim(h.now); ok {
			t.Errorf("claimed %d at its maximal age", id)
		}
	})
	t.Run("FormerGenerationOnlyWhileNoneIsReady", func(t *testing.T) {
		h := newHand(warmpool.Settings{Target: 2, Making: 2, Generation: "a"})
		h.settle()
		h.core.Configure(warmpool.Settings{Target: 2, Making: 2, Generation: "b"})
		if got := h.claim(t); got != 2 {
			t.Errorf("claimed %d before one of the new generation was ready, want 2", got)
		}
		made, _ := h.next()
		h.core.Made(h.now, made[0])
		if got := h.claim(t); got != made[0] {
			t.Errorf("claimed %d, want the new generation's %d", got, made[0])
		}
	})
	t.Run("NeverOfAnotherShape", func(t *testing.T) {
		h := newHand(warmpool.Settings{Target: 1, Shape: "none"})
		h.settle()
		h.core.Configure(warmpool.Settings{Target: 1, Shape: "allow"})
		if id, ok := h.core.Claim(h.now); ok {
			t.Errorf("claimed %d of a former shape", id)
		}
		if _, dropped := h.next(); !slices.Equal(dropped, []warmpool.ID{1}) {
			t.Errorf("dropped %v, want [1]", dropped)
		}
	})
	t.Run("RefillLagIsFromTheClaim", func(t *testing.T) {
		h := newHand(warmpool.Settings{Target: 1})
		h.settle()
		h.claim(t)
		made, _ := h.next()
		h.now = h.now.Add(7 * time.Second)
		h.core.Made(h.now, made[0])
		if got := h.core.Stats(h.now).RefillLag; got != 7*time.Second {
			t.Errorf("refill took %v, want 7s", got)
		}
	})
}

func TestCore_Next(t *testing.T) {
	t.Run("NewOnesFirstThenFormer", func(t *testing.T) {
		h := newHand(warmpool.Settings{Target: 3, Making: 1, Generation: "a"})
		h.settle()
		h.core.Configure(warmpool.Settings{Target: 3, Making: 1, Generation: "b"})
		var order []int
		for {
			made, dropped := h.next()
			if idle := h.core.Stats(h.now).Idle; idle < 3 {
				t.Errorf("%d idle while the generation changes, want 3 or more", idle)
			}
			if len(made)+len(dropped) == 0 {
				break
			}
			order = append(order, len(made)-len(dropped))
			for _, id := range made {
				h.core.Made(h.now, id)
			}
		}
		if want := []int{1, 0, 0, -1}; !slices.Equal(order, want) {
			t.Errorf("made less dropped: %v, want %v", order, want)
		}
	})
	t.Run("OldOnesAreReplacedBeforeTheyGo", func(t *testing.T) {
		h := newHand(warmpool.Settings{Target: 2, Making: 2, MaxAge: 25 * time.Minute})
		h.settle()
		h.now = h.core.Wake(h.now)
		made, dropped := h.next()
		if len(made) != 1 || len(dropped) != 0 {
			t.Fatalf("made %v, dropped %v when the first grew old, want one made and none dropped", made, dropped)
		}
		h.core.Made(h.now, made[0])
		if _, dropped = h.next(); !slices.Equal(dropped, []warmpool.ID{1}) {
			t.Errorf("dropped %v, want the oldest", dropped)
		}
	})
	t.Run("NoMoreThanTheRoom", func(t *testing.T) {
		h := newHand(warmpool.Settings{Target: 9, Making: 4})
		if got := len(h.core.Next(h.now, 1)); got != 1 {
			t.Errorf("%d begun with room for 1", got)
		}
		if got := len(h.core.Next(h.now, 100)); got != 3 {
			t.Errorf("%d more begun of at most 4 at once, want 3", got)
		}
	})
	t.Run("FewerWanted", func(t *testing.T) {
		h := newHand(warmpool.Settings{Target: 3, Making: 3})
		h.settle()
		h.core.Configure(warmpool.Settings{Target: 1, Making: 3})
		if _, dropped := h.next(); !slices.Equal(dropped, []warmpool.ID{1, 2}) {
			t.Errorf("dropped %v, want the two oldest", dropped)
		}
	})
	t.Run("DeadOnesGo", func(t *testing.T) {
		h := newHand(warmpool.Settings{Target: 2, Making: 2})
		h.settle()
		h.core.Gone(func(id warmpool.ID) bool { return id == 1 })
		if made, dropped := h.next(); len(made) != 1 || !slices.Equal(dropped, []warmpool.ID{1}) {
			t.Errorf("made %v, dropped %v, want one and [1]", made, dropped)
		}
	})
}

func TestCore_Prewarm(t *testing.T) {
	h := newHand(warmpool.Settings{Target: 2, Making: 2})
	h.settle()
	h.core.Prewarm(h.now.Add(time.Minute))
	h.core.Prewarm(h.now.Add(time.Minute)) // twice is once
	h.settle()
	want := warmpool.Stats{Idle: 3, Target: 3, Prewarmed: 1}
	if diff := cmp.Diff(h.core.Stats(time.Unix(1001, 0)).Hits, 0); diff != "" {
		t.Error("a prewarm claimed:", diff)
	}
	got := h.core.Stats(h.now)
	got.Oldest = 0
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("stats while prewarmed (-got +want):\n%s", diff)
	}
	h.now = h.core.Wake(h.now)
	if _, dropped := h.next(); len(dropped) != 1 {
		t.Errorf("dropped %v when the prewarm expired, want one", dropped)
	}
}

func TestCore_Failed(t *testing.T) {
	h := newHand(warmpool.Settings{Target: 4, Making: 4})
	made, _ := h.next()
	for _, id := range made { // four at once are one failure
		h.core.Failed(h.now, id, "no room")
	}
	var pauses []time.Duration
	for range 8 {
		if made, _ := h.next(); len(made) != 0 {
			t.Fatalf("made %v before the pause was over", made)
		}
		at := h.core.Wake(h.now)
		pauses = append(pauses, at.Sub(h.now))
		h.now = at
		made, _ := h.next()
		if len(made) != 1 {
			t.Fatalf("made %v after a failure, want one to try", made)
		}
		h.core.Failed(h.now, made[0], "no room")
	}
	s := time.Second
	if want := []time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 60 * s, 60 * s}; !slices.Equal(pauses, want) {
		t.Errorf("pauses %v, want %v", pauses, want)
	}
	if got := h.core.Stats(h.now).Error; got != "no room" {
		t.Errorf("error %q", got)
	}
	h.now = h.core.Wake(h.now)
	made, _ = h.next()
	h.core.Made(h.now, made[0])
	if made, _ := h.next(); len(made) != 3 {
		t.Errorf("%d begun once it works again, want the other three", len(made))
	}
	if got := h.core.Stats(h.now).Error; got != "" {
		t.Errorf("error %q after success", got)
	}
}

func TestSpread_Share(t *testing.T) {
	workers := []string{"w3", "w1", "w2"}
	for target := range 12 {
		total := 0
		for _, self := range workers {
			n := warmpool.Spread{Target: target}.Share(workers, self)
			if n < target/3 || n > target/3+1 {
				t.Errorf("share of %d for one of three is %d", target, n)
			}
			total += n
		}
		if total != target {
			t.Errorf("shares of %d add up to %d", target, total)
		}
	}
	if got := (warmpool.Spread{Target: 3}).Share(nil, "w1"); got != 3 {
		t.Errorf("share of the only worker is %d, want 3", got)
	}
	if got := (warmpool.Spread{Target: 3}).Share([]string{"w1"}, "w2"); got != 1 {
		t.Errorf("share of one that is not named is %d, want 1", got)
	}
	if got := (warmpool.Spread{Target: 3, Least: 2}).Share([]string{"w1", "w2", "w3", "w4"}, "w4"); got != 2 {
		t.Errorf("share of one whose minimum is 2 is %d", got)
	}
}

// The time of a claim must not grow with the pool.
func BenchmarkCore_Claim(b *testing.B) {
	for _, size := range []int{10, 10_000} {
		b.Run(fmt.Sprint("Idle", size), func(b *testing.B) {
			h := newHand(warmpool.Settings{Target: size, Making: size, MaxAge: time.Hour})
			for b.Loop() {
				id, ok := h.core.Claim(h.now)
				if !ok {
					b.StopTimer()
					for _, a := range h.core.Next(h.now, size) {
						h.core.Made(h.now, a.ID)
					}
					b.StartTimer()
				}
				_ = id
			}
		})
	}
}
