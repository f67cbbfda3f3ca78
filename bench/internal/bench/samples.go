package bench

import (
	"context"
	"math"
	"slices"
	"time"
)

// Samples are measurements in milliseconds, or in the unit of their row.
type Samples []float64

// Take adds a duration.
func (s *Samples) Take(d time.Duration) { *s = append(*s, float64(d)/float64(time.Millisecond)) }

// Quantile is the smallest sample that at least a share q of all do not exceed (nearest rank).
func (s Samples) Quantile(q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank-1, 0), len(sorted)-1)]
}

// Timed measures once. It returns the time of what is measured only, not of what prepares it
// and cleans up after it.
type Timed func(ctx context.Context) (time.Duration, error)

// Time measures a call as a whole.
func Time(call func() error) (time.Duration, error) {
	start := time.Now()
	err := call()
	return time.Since(start), err
}

// InTurn measures all of what in turn, n rounds after one that does not count: whatever else the machine does
// in a round it does to all of them.
func InTurn(ctx context.Context, n int, what ...Timed) ([]Samples, error) {
	samples := make([]Samples, len(what))
	for round := range n + 1 {
		for i, measure := range what {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			d, err := measure(ctx)
			if err != nil {
				return nil, err
			}
			if round > 0 {
				samples[i].Take(d)
			}
		}
	}
	return samples, nil
}
