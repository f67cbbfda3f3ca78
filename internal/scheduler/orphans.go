package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// orphanGrace is how long a holder has to be gone before its plan is ended: workers write their records anew within it when the
// server was restarted.
const orphanGrace = 2 * events.WorkerInterval

// orphans are plans whose worker is gone, and since when that is known.
type orphans map[string]time.Time

// heldPlan is a plan that a worker claimed, as the log says.
type heldPlan struct {
	id, worker string
	claimed    time.Time
	begun      bool // its apply has begun
}

// heldIn returns the plans of a pool that a worker holds.
func (x *index) heldIn(pool string) []heldPlan {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []heldPlan
	for id, e := range x.admission.plans {
		if e.fold.Pool == pool && e.fold.Held {
			out = append(out, heldPlan{id, e.fold.Worker, e.claimed, e.fold.Intent != nil})
		}
	}
	return out
}

// endOrphans ends the plans of a removed pool whose worker is gone: no other one takes them. One whose apply has begun cannot be
// ended by anybody but a holder: its command is taken back, and queued again once the pool is there again.
func (s *Scheduler) endOrphans(ctx context.Context, pool string, lost orphans) error {
	var failed error
	for _, p := range s.index.heldIn(pool) {
		gone, err := s.holderGone(ctx, p)
		since, seen := lost[p.id]
		switch {
		case err != nil:
			failed = errors.Join(failed, err)
		case !gone:
			delete(lost, p.id)
		case !seen:
			lost[p.id] = time.Now()
		case time.Since(since) >= orphanGrace:
			failed = errors.Join(failed, s.endOrphan(ctx, pool, p))
			delete(lost, p.id)
		}
	}
	return failed
}

// holderGone asks the workers' records, since what is kept in memory may be a moment old.
func (s *Scheduler) holderGone(ctx context.Context, p heldPlan) (bool, error) {
	e, err := s.fleet.Workers.Get(ctx, p.worker)
	if errors.Is(err, kv.ErrNotFound) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	var w events.Worker
	if err := json.Unmarshal(e.Value, &w); err != nil {
		return false, fmt.Errorf("scheduler: read worker %q: %w", p.worker, err)
	}
	return w.Started.After(p.claimed), nil
}

func (s *Scheduler) endOrphan(ctx context.Context, pool string, p heldPlan) error {
	if !p.begun {
		w, err := events.OpenWriter(ctx, s.fleet.Log, p.id, s.source())
		if err != nil {
			return err
		}
		if f := w.Fold(); f.Held && f.Worker != p.worker {
			return nil // claimed meanwhile
		}
		err = w.Append(ctx, events.TypeDead, events.Data{
			Code: "pool_removed", Error: fmt.Sprintf("pool %s was removed and worker %s, which had the plan, is gone: apply the pool again, then submit the plan again", pool, p.worker),
		})
		if err != nil && !errors.Is(err, events.ErrFinal) {
			return err
		}
	}
	return errors.Join( // one that ran its steps may apply them by the same command
		s.fleet.Queue.Remove(ctx, events.NewCommand(pool, events.VerbRun, p.id)),
		s.fleet.Queue.Remove(ctx, events.NewCommand(pool, events.VerbApply, p.id)),
	)
}
