package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/warmfleet/warmfleet/internal/fault"
	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// Keep says how long the checkpoints of a plan are kept after its end, by how it ended: a time
// less than 0 is for ever. Those of a plan that has not ended are kept, whatever it says.
type Keep struct {
	Applied   time.Duration // applied: what undo needs
	Executed  time.Duration // executed, with apply never: its result is nowhere else
	Failed    time.Duration // failed or dead
	Conflict  time.Duration
	Cancelled time.Duration // cancelled, rejected or expired
	// Session is for checkpoints of no plan, from when they were taken.
	Session time.Duration
	// Budget is what all checkpoints may take in the object store, in bytes; 0 is no bound. Beyond
	// it those of plans that have ended go early, the ones that would go next first.
	Budget int64
	// Grace is how long objects must have been without a record.
	Grace time.Duration
	// Every is how often garbage is collected.
	Every time.Duration
}

// week is how long checkpoints outlive their plan (design: pinned until it is final, and 7 days more).
const week = 7 * 24 * time.Hour

// DefaultKeep is what holds where nothing else is said.
func DefaultKeep() Keep {
	return Keep{
		Applied: week, Executed: week, Failed: week, Conflict: week, Cancelled: week, Session: 30 * 24 * time.Hour,
		Grace: checkpoint.Grace, Every: time.Hour,
	}
}

// Validate says which field is wrong, and why.
func (k Keep) Validate() error {
	switch {
	case k.Grace < 0:
		return fmt.Errorf("scheduler: config: gc-grace is %s: use 0s or more", k.Grace)
	case k.Every <= 0:
		return fmt.Errorf("scheduler: config: gc-every is %s: use more than 0s", k.Every)
	case k.Budget < 0:
		return fmt.Errorf("scheduler: config: checkpoint-budget is %d: use 0 for no bound, or bytes", k.Budget)
	}
	return nil
}

// after is how long the checkpoints of a plan outlive a final state.
func (k Keep) after(state string) time.Duration {
	switch state {
	case events.StateApplied:
		return k.Applied
	case events.StateExecuted:
		return k.Executed
	case events.StateConflict:
		return k.Conflict
	case events.StateCancelled, events.StateRejected, events.StateExpired:
		return k.Cancelled
	default:
		return k.Failed
	}
}

// until is the fate of what is kept for d after a time.
func until(from time.Time, d time.Duration) checkpoint.Fate {
	if d < 0 {
		return checkpoint.Fate{}
	}
	return checkpoint.Fate{Until: from.Add(d)}
}

// collectOften collects garbage whenever the last time is long enough ago, also when that was in
// another process: a fleet that only ever lives for one command must not grow either.
func (s *Scheduler) collectOften(ctx context.Context) {
	for {
		wait, err := s.untilCollection(ctx)
		if err == nil && wait <= 0 {
			wait = s.keep.Every
			_, err = s.collect(ctx, s.keep.Grace, false)
		}
		if err != nil && !errors.Is(err, kv.ErrHeld) && ctx.Err() == nil {
			s.log.Warn().Err(err).Msg("collect garbage")
			wait = s.keep.Every
		}
		if !sleep(ctx, max(wait, time.Second)) {
			return
		}
	}
}

// untilCollection is how long the next collection is away.
func (s *Scheduler) untilCollection(ctx context.Context) (time.Duration, error) {
	last, err := checkpoint.LastCollected(ctx, s.fleet.Checkpoints)
	if err != nil {
		return 0, err
	}
	return s.keep.Every - time.Since(last), nil
}

// collect collects garbage, alone in the fleet as far as a lease can say so: beside another it
// would only do the same again.
func (s *Scheduler) collect(ctx context.Context, grace time.Duration, dryRun bool) (checkpoint.Collected, error) {
	lease, err := kv.Acquire(ctx, s.fleet.Leases, kv.LeaseOptions{Key: "gc", Owner: s.id, TTL: events.LeaseTTL})
	if err != nil {
		return checkpoint.Collected{}, err
	}
	defer func() {
		release, done := context.WithTimeout(context.WithoutCancel(ctx), events.LeaseTTL)
		defer done()
		_ = lease.Release(release) // or it expires
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-lease.Lost():
			cancel()
		case <-ctx.Done():
		}
	}()
	fault.At("scheduler.gc")
	fate, err := s.fates(ctx)
	if err != nil {
		return checkpoint.Collected{}, err
	}
	done, err := checkpoint.Collect(ctx, s.fleet.Store, s.fleet.Checkpoints, checkpoint.Collection{
		Fate: fate, Grace: grace, Budget: s.keep.Budget, DryRun: dryRun, Log: s.log,
	})
	fault.At("scheduler.collected")
	if err == nil && !dryRun {
		s.dropReplaced(ctx)
		s.tellCollected(done)
	}
	return done, err
}

func (s *Scheduler) tellCollected(c checkpoint.Collected) {
	if len(c.Checkpoints) > 0 || c.Objects > 0 || c.Leavings > 0 {
		s.log.Info().Int("checkpoints", len(c.Checkpoints)).Int("objects", c.Objects).Int64("bytes", c.Bytes).Int("leavings", c.Leavings).Msg("collected garbage")
	}
	if c.OverBudget > 0 {
		s.log.Warn().Int64("bytes", c.KeptBytes).Int64("budget", s.keep.Budget).Msg("checkpoints take more than the budget, and plans that have not ended need all of them")
	}
}

// fates decides on records by how their plans ended.
func (s *Scheduler) fates(ctx context.Context) (func(checkpoint.Checkpoint, time.Time) checkpoint.Fate, error) {
	entries, err := s.fleet.Plans.List(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("scheduler: read how plans ended: %w", err)
	}
	ended := map[string]checkpoint.Fate{}
	for _, e := range entries {
		var f events.Fold
		if err := json.Unmarshal(e.Value, &f); err == nil && f.Final() {
			ended[e.Key] = until(e.Created, s.keep.after(f.State))
		}
	}
	ofImage := s.imageFate()
	return func(cp checkpoint.Checkpoint, written time.Time) checkpoint.Fate {
		if string(cp.Phase) == events.PhaseImage {
			return ofImage(cp, written)
		}
		if cp.PlanID == "" {
			return until(written, s.keep.Session)
		}
		if fate, ok := ended[cp.PlanID]; ok {
			return fate
		}
		k, known := s.index.known(cp.PlanID)
		switch {
		case known && k.fold.Final():
			return until(k.at, s.keep.after(k.fold.State))
		case known:
			return checkpoint.Fate{Pinned: true}
		default: // the log has not told of it yet, or no longer knows it
			return checkpoint.Fate{Pinned: true, Until: written.Add(events.EventAge)}
		}
	}, nil
}
