package layer

import (
	"testing"
	"time"
)

func TestClock_TrustedBefore(t *testing.T) {
	const sec = int64(time.Second)
	then := clock{wall: 1000 * sec, uptime: 500 * sec}
	tests := []struct {
		name string
		now  clock
		want int64 // the last trusted time, without the racy window
	}{
		{"TimePassed", clock{1060 * sec, 560 * sec}, 1000 * sec},
		{"SetForward", clock{5000 * sec, 560 * sec}, 1000 * sec},
		{"SetBackAndStillBefore", clock{900 * sec, 560 * sec}, 840 * sec},
		{"SetBackAndPassedSince", clock{1050 * sec, 600 * sec}, 950 * sec},
		{"Slewed", clock{1060*sec - sec/30, 560 * sec}, 1000 * sec},
		{"Restarted", clock{1060 * sec, 5 * sec}, 1000 * sec},
		{"RestartedInThePast", clock{700 * sec, 5 * sec}, 700 * sec},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.now.trustedBefore(then)
			if want := tt.want - int64(racyWindow); got > want || got < want-sec/10 {
				t.Errorf("got %s, want %s", time.Duration(got), time.Duration(want))
			}
		})
	}
	if got := (clock{wall: 1060 * sec}).trustedBefore(clock{}); got > 0 {
		t.Errorf("an index without a clock is trusted up to %s", time.Duration(got))
	}
}

// A stamp is trusted only when it was old at the scan that noted it, by the grain of its own file system.
func TestScan_RacyAt(t *testing.T) {
	s := &scan{clock: clock{wall: 1000*int64(time.Second) + int64(500*time.Millisecond)}}
	for age, want := range map[time.Duration]bool{
		-time.Hour: true, 0: true, 19 * time.Millisecond: true, 21 * time.Millisecond: false,
		500 * time.Millisecond:  true, // on the whole second: any moment of it
		1500 * time.Millisecond: false, time.Hour + time.Millisecond: false,
	} {
		if got := s.racyAt(stamp{ctime: s.clock.wall - int64(age)}); got != want {
			t.Errorf("changed %s before the scan: racy %v, want %v", age, got, want)
		}
	}
}
