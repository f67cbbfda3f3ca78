package worker

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"time"

	"github.com/warmfleet/warmfleet/internal/version"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// errDrained is the cause of running work that a stopping worker hands over.
var errDrained = errors.New("worker: stopping")

// poolWait is how often a starting worker looks whether the scheduler made its queues.
const poolWait = 20 * time.Millisecond

// poolPatience is when a starting worker says that it waits for that.
const poolPatience = 5 * time.Second

// present renews this worker's record, at once where the pools it serves change, until ctx ends, then removes it.
func (w *Worker) present(ctx context.Context) {
	tick := time.NewTicker(events.WorkerInterval)
	defer tick.Stop()
	for {
		if err := w.announce(ctx); err != nil && ctx.Err() == nil {
			w.log.Warn().Err(err).Msg("renew the worker's record")
		}
		select {
		case <-tick.C:
		case <-w.pooling.changed:
		case <-ctx.Done():
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			if err := w.fleet.Workers.Delete(ctx, w.cfg.Name, 0); err != nil {
				w.log.Debug().Err(err).Msg("remove the worker's record")
			}
			return
		}
	}
}

func (w *Worker) announce(ctx context.Context) error {
	b, err := json.Marshal(w.Record())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err = w.fleet.Workers.Put(ctx, w.cfg.Name, b)
	return err
}

// Record is what the worker says of itself.
func (w *Worker) Record() events.Worker {
	r := events.Worker{
		Name: w.cfg.Name, Host: w.cfg.HostID, State: events.WorkerReady, Paused: w.reserve.Low(), Slots: w.cfg.Slots, Free: w.cfg.Slots - len(w.slots),
		Pools: maps.Clone(w.tokens), Isolation: string(w.report.Rung), Policy: string(w.cfg.Isolation), Guarantees: statesOf(w.report), Labels: w.cfg.Labels,
		Version: version.Version(), Started: w.started,
	}
	if !open(w.draining) {
		r.State = events.WorkerDraining
	}
	w.pooling.record(&r)
	return r
}

// poolTokens are the queues this worker pulls from beside those of named pools, with the allowed path behind each.
func poolTokens(cfg Config) map[string]string {
	tokens := map[string]string{"default": ""}
	for _, entry := range cfg.AllowPaths {
		tokens[events.PoolToken(cfg.HostID, entry)] = entry
	}
	return tokens
}

// forgetEvery is how often checkpoints of plans that ended on other workers are looked for.
const forgetEvery = time.Minute

// forgetEnded drops from the cache what is left here of plans that ended elsewhere, until ctx ends.
func (w *Worker) forgetEnded(ctx context.Context) {
	for sleep(ctx, forgetEvery) == nil {
		for _, id := range w.cps.Plans() {
			last, err := w.fleet.Log.Last(ctx, id)
			if err == nil && last.Event.Data.Plan != nil && last.Event.Data.Plan.Final() {
				w.cps.ForgetPlan(id)
			}
		}
	}
}

// awaitPools returns once the scheduler has made a queue for each pool of this worker.
func (w *Worker) awaitPools(ctx context.Context) error {
	defer time.AfterFunc(poolPatience, func() {
		w.log.Warn().Msg("still waiting for a scheduler to make this worker's queues: is one running on this server?")
	}).Stop()
	for token := range w.tokens {
		for {
			ok, err := w.fleet.Queue.HasPool(ctx, token)
			if ok {
				break
			}
			if err != nil {
				w.log.Debug().Err(err).Str("pool", token).Msg("look for the pool's queue")
			}
			if err := sleep(ctx, poolWait); err != nil {
				return err
			}
		}
	}
	return nil
}

// drain waits for running plans, which end at their next step; those that take longer than
// the drain timeout are stopped and handed over.
func (w *Worker) drain() {
	done := make(chan struct{})
	go func() {
		w.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return
	case <-time.After(w.cfg.DrainTimeout):
	}
	w.mu.Lock()
	for _, j := range w.plans {
		j.cancel(errDrained)
	}
	w.mu.Unlock()
	<-done
}
