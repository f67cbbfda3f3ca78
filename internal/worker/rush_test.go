package worker

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestRush_Wait(t *testing.T) {
	for _, c := range []struct {
		name   string
		claims []time.Duration // how long each takes
		want   time.Duration
	}{
		{"Nobody", nil, 0},
		{"UntilTheLastHasLeft", []time.Duration{50 * time.Millisecond, 200 * time.Millisecond, time.Millisecond}, 200 * time.Millisecond},
		{"NotForOneThatHangs", []time.Duration{time.Hour}, rushLimit},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var r rush
				for _, d := range c.claims {
					leave := r.enter()
					time.AfterFunc(d, leave)
				}
				began := time.Now()
				r.wait(t.Context())
				if got := time.Since(began); got != c.want {
					t.Errorf("waited %s, want %s", got, c.want)
				}
			})
		})
	}
	t.Run("EndsWithItsContext", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var r rush
			defer r.enter()()
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			began := time.Now()
			r.wait(ctx)
			if got := time.Since(began); got != time.Millisecond {
				t.Errorf("waited %s, want 1ms", got)
			}
		})
	})
	t.Run("AgainAfterOneThatIsOver", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var r rush
			r.enter()()
			began := time.Now()
			r.wait(t.Context())
			if got := time.Since(began); got != 0 {
				t.Errorf("waited %s for nobody", got)
			}
		})
	})
}
