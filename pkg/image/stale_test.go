package image

import (
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/pkg/events"
)

func TestStanding_Next(t *testing.T) {
	at := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	asked := &events.Asked{At: at, Generation: 2}
	for _, tc := range []struct {
		name  string
		s     Standing
		after time.Duration // of asked; negative: at once
		why   string
	}{
		{"Never", Standing{}, -1, WhyApplied},
		{"FileChanged", Standing{Generation: 3, Latest: events.Latest{Asked: asked}, There: true}, -1, WhyApplied},
		{"FileChangedAfterFailures", Standing{Generation: 3, Latest: events.Latest{Asked: asked, Failures: 9}, There: true}, -1, WhyApplied},
		{"Failed", Standing{Latest: events.Latest{Asked: asked, Failures: 1}}, 10 * time.Second, WhyRetry},
		{"FailedWithAGoodImage", Standing{Latest: events.Latest{Asked: asked, Failures: 3}, There: true}, 40 * time.Second, WhyRetry},
		{"FailedOften", Standing{Latest: events.Latest{Asked: asked, Failures: 40}}, 10 * time.Minute, WhyRetry},
		{"ImageGone", Standing{Latest: events.Latest{Asked: asked, Image: "x"}}, 10 * time.Second, WhyMissing},
		{"Interval", Standing{Latest: events.Latest{Asked: asked, Image: "x"}, There: true, Interval: time.Hour}, time.Hour, WhyInterval},
		{"DefaultInterval", Standing{Latest: events.Latest{Asked: asked, Image: "x"}, There: true}, 30 * time.Minute, WhyInterval},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.s.Generation == 0 {
				tc.s.Generation = 2
			}
			got, why := tc.s.Next()
			want := at.Add(tc.after)
			if tc.after < 0 {
				want = time.Time{}
			}
			if !got.Equal(want) || why != tc.why {
				t.Errorf("due %v for %s, want %v for %s", got, why, want, tc.why)
			}
		})
	}
}

func TestBackoff(t *testing.T) {
	for n, want := range map[int]time.Duration{0: 10 * time.Second, 1: 10 * time.Second, 2: 20 * time.Second, 6: 320 * time.Second, 7: 10 * time.Minute, 1 << 40: 10 * time.Minute} {
		if got := Backoff(n); got != want {
			t.Errorf("after %d failures: got %v, want %v", n, got, want)
		}
	}
}

func TestStanding_IsStale(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for _, tc := range []struct {
		name string
		s    Standing
		want bool
	}{
		{"NoImage", Standing{}, false},
		{"Young", Standing{Latest: events.Latest{Image: "x", BuiltAt: ago(29 * time.Minute)}}, false},
		{"Old", Standing{Latest: events.Latest{Image: "x", BuiltAt: ago(31 * time.Minute)}}, true},
		{"OldAndSeenToBeTheNewest", Standing{Latest: events.Latest{Image: "x", BuiltAt: ago(time.Hour), CheckedAt: ago(time.Minute)}}, false},
		{"OfItsInterval", Standing{Latest: events.Latest{Image: "x", BuiltAt: ago(2 * time.Minute)}, Interval: time.Minute}, true},
		{"ClockSetBack", Standing{Latest: events.Latest{Image: "x", BuiltAt: ago(-time.Hour)}}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.s.IsStale(now); got != tc.want {
				t.Errorf("stale %v, want %v", got, tc.want)
			}
		})
	}
}
