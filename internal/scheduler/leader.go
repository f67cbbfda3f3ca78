package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/pkg/events"
)

const (
	// sweepEvery is how often commands that should be queued are made sure of.
	sweepEvery = 15 * time.Second
	// expireEvery is how often plans are looked at for their age.
	expireEvery = time.Second
	// projectEvery bounds how far the read model lags behind the log.
	projectEvery = 200 * time.Millisecond
	// workersEvery bounds how long a worker that died without a word is taken for live,
	// beyond the TTL of its record.
	workersEvery = time.Second
)

// lead admits plans whenever this scheduler holds the lease, until ctx ends.
func (s *Scheduler) lead(ctx context.Context) {
	kv.Lead(ctx, s.fleet.Leases, kv.LeaseOptions{Key: "leader.scheduler", Owner: s.id, TTL: events.LeaseTTL}, s.govern)
}

// govern is the leader's work; its context ends with the lease.
func (s *Scheduler) govern(ctx context.Context) {
	s.index.forgetQueued()
	sweep, expire := time.NewTicker(sweepEvery), time.NewTicker(expireEvery)
	defer sweep.Stop()
	defer expire.Stop()
	var tasks sync.WaitGroup
	tasks.Go(func() { s.collectOften(ctx) })
	tasks.Go(func() { s.buildOften(ctx) })
	tasks.Go(func() { s.sweepSessions(ctx) })
	defer tasks.Wait()
	s.ensurePools(ctx)
	for {
		s.admitAll(ctx)
		select {
		case <-ctx.Done():
			return
		case <-s.index.changed:
		case <-sweep.C:
			s.index.forgetQueued()
			s.ensurePools(ctx)
		case <-expire.C:
			s.expireOld(ctx)
		}
	}
}

// admitAll carries out what admission decides.
func (s *Scheduler) admitAll(ctx context.Context) {
	s.ensurePools(ctx)
	for _, v := range s.index.decide() {
		if err := s.carryOut(ctx, v); err != nil && ctx.Err() == nil {
			s.log.Warn().Err(err).Str("plan", v.id).Msg("admit a plan")
			s.index.withdraw(v.id)
		}
	}
}

func (s *Scheduler) carryOut(ctx context.Context, v verdict) error {
	if v.pool != "" {
		err := s.fleet.Queue.Publish(ctx, events.NewCommand(v.pool, v.verb, v.id))
		if errors.Is(err, events.ErrQueued) {
			return nil
		}
		return err
	}
	f, _ := s.index.get(v.id)
	if v.waiting != "" && f.State == events.StateWaiting && f.Reason == v.waiting {
		return nil
	}
	w, err := events.OpenWriter(ctx, s.fleet.Log, v.id, s.source())
	if err != nil {
		return err
	}
	if v.reject != "" {
		err = w.Append(ctx, events.TypeRejected, events.Data{Code: "path_not_allowed", Error: v.reject})
	} else {
		err = w.Append(ctx, events.TypeWaiting, events.Data{Reason: v.waiting})
	}
	if errors.Is(err, events.ErrTransition) || errors.Is(err, events.ErrFinal) {
		return nil // it moved on meanwhile
	}
	return err
}

// ensurePools makes the queue of every pool that a live worker serves.
func (s *Scheduler) ensurePools(ctx context.Context) {
	for _, token := range s.index.newPools() {
		if err := s.fleet.Queue.EnsurePool(ctx, token); err != nil {
			s.index.poolFailed(token)
			if ctx.Err() == nil {
				s.log.Warn().Err(err).Str("pool", token).Msg("make a pool's queue")
			}
		}
	}
}

// expireOld ends plans that lived too long and that nobody holds.
func (s *Scheduler) expireOld(ctx context.Context) {
	for id, f := range s.index.open() {
		if f.Held || f.ExpiresAt.IsZero() || time.Now().Before(f.ExpiresAt) {
			continue
		}
		w, err := events.OpenWriter(ctx, s.fleet.Log, id, s.source())
		if err == nil {
			err = w.Append(ctx, events.TypeExpired, events.Data{Reason: "expires_in is over"})
		}
		if err != nil && !errors.Is(err, events.ErrFinal) && !errors.Is(err, events.ErrTransition) && !errors.Is(err, events.ErrFenced) {
			s.log.Warn().Err(err).Str("plan", id).Msg("expire a plan")
		}
	}
}

// watchWorkers keeps the index up to date with the workers' records.
func (s *Scheduler) watchWorkers(ctx context.Context, tasks *sync.WaitGroup) error {
	updates, err := s.fleet.Workers.Watch(ctx)
	if err != nil {
		return err
	}
	tasks.Go(func() {
		tick := time.NewTicker(workersEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case e, ok := <-updates:
				if !ok {
					return
				}
				if e.Key != "" { // the end of what was there at first
					s.takeWorker(e)
				}
			case <-tick.C:
				s.dropSilentWorkers(ctx)
			}
		}
	})
	return nil
}

func (s *Scheduler) takeWorker(e kv.Entry) {
	if e.Deleted {
		s.index.worker(e.Key, nil)
		return
	}
	var w events.Worker
	if err := json.Unmarshal(e.Value, &w); err != nil {
		s.log.Warn().Err(err).Str("worker", e.Key).Msg("read a worker's record")
		return
	}
	s.index.worker(e.Key, &w)
}

// dropSilentWorkers removes workers whose record has expired without a watcher hearing of it.
func (s *Scheduler) dropSilentWorkers(ctx context.Context) {
	entries, err := s.fleet.Workers.List(ctx, "")
	if err != nil {
		return // the server is away: nobody can be told live from dead
	}
	live := map[string]bool{}
	for _, e := range entries {
		live[e.Key] = true
	}
	for name := range s.index.workers() {
		if !live[name] {
			s.index.worker(name, nil)
		}
	}
}

// project writes the final state of plans to the read model, where it outlives their events.
func (s *Scheduler) project(ctx context.Context) {
	for sleep(ctx, projectEvery) {
		for id, f := range s.index.takeDirty() {
			if err := writeFold(ctx, s.fleet.Plans, id, f); err != nil && ctx.Err() == nil {
				s.log.Warn().Err(err).Str("plan", id).Msg("write the plan's record; it is tried again")
				s.index.dirtyAgain(id, f)
			}
		}
	}
}

func writeFold(ctx context.Context, b kv.Bucket, id string, f events.Fold) error {
	old, err := readFold(ctx, b, id)
	if err != nil || old != nil && old.Final() && (old.Undone || !f.Undone) {
		return err // final is final: a replay at start finds it there
	}
	v, err := json.Marshal(f)
	if err != nil {
		return err
	}
	_, err = b.Put(ctx, id, v)
	return err
}

func readFold(ctx context.Context, b kv.Bucket, id string) (*events.Fold, error) {
	e, err := b.Get(ctx, id)
	if errors.Is(err, kv.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var f events.Fold
	return &f, json.Unmarshal(e.Value, &f)
}
