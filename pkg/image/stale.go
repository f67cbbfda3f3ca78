package image

import (
	"time"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/poolfile"
)

const (
	// DefaultInterval is how often an image is brought up to date where a pool file says nothing.
	DefaultInterval = time.Duration(poolfile.DefaultBuildInterval)
	// FirstRetry is the wait after a first failure; it doubles with each in a row, up to LastRetry.
	FirstRetry = 10 * time.Second
	// LastRetry is the longest of these waits.
	LastRetry = 10 * time.Minute
)

// Why a build is asked for by itself, as events.Asked says it.
const (
	WhyApplied  = "applied"
	WhyInterval = "interval"
	WhyRetry    = "retry"
	WhyMissing  = "missing"
)

// Standing is what decides on a pool's next build.
type Standing struct {
	Latest events.Latest
	// Generation is that of the pool's file as it is now.
	Generation uint64
	// There tells that Latest.Image can be started from.
	There bool
	// Interval is how often the image is brought up to date; 0 is DefaultInterval.
	Interval time.Duration
}

// Next says when the next build is to be asked for by itself, which may have passed, and why: at once for a file that none was
// asked for, after a growing wait when the last ones failed, after FirstRetry when the image is gone, else an interval after
// the last was asked for. It judges by the clock of who asks alone, and knows nothing of a build under way.
func (s Standing) Next() (at time.Time, why string) {
	l := s.Latest
	switch {
	case l.Asked == nil, l.Asked.Generation != s.Generation:
		return time.Time{}, WhyApplied
	case l.Failures > 0:
		return l.Asked.At.Add(Backoff(l.Failures)), WhyRetry
	case !s.There:
		return l.Asked.At.Add(FirstRetry), WhyMissing
	default:
		return l.Asked.At.Add(orDefault(s.Interval)), WhyInterval
	}
}

// Backoff is the wait after that many failures in a row.
func Backoff(failures int) time.Duration {
	d := FirstRetry
	for range failures - 1 {
		if d *= 2; d >= LastRetry {
			return LastRetry
		}
	}
	return d
}

// IsStale tells whether the image is older than the interval, and nobody found it up to date since. A pool without an image
// has none that is stale.
func (s Standing) IsStale(now time.Time) bool {
	seen := s.Latest.BuiltAt
	if s.Latest.CheckedAt.After(seen) {
		seen = s.Latest.CheckedAt
	}
	return s.Latest.Image != "" && now.Sub(seen) > orDefault(s.Interval)
}

func orDefault(interval time.Duration) time.Duration {
	if interval <= 0 {
		return DefaultInterval
	}
	return interval
}
