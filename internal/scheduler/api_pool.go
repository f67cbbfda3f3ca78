package scheduler

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/poolfile"
)

// States of a pool as people see it.
const (
	poolEmpty    = "empty"
	poolBuilding = "building"
	poolReady    = "ready"
	poolFailing  = "failing"
	poolRemoving = "removing"
)

const (
	// servedWait is how long a worker may take to say that it serves a pool: a few renewals of its record.
	servedWait = 3 * events.WorkerInterval
	servedPoll = 20 * time.Millisecond
)

func noPool(name string) error { return fail(api.CodeNotFound, "pool %q: not found", cut(name)) }

// poolNamed reads a request that names a pool, {"name": ...} or the bare name, and finds its record.
func (s *Scheduler) poolNamed(ctx context.Context, body []byte, req any) (events.Pool, error) {
	body = bytes.TrimSpace(body)
	var named api.Name
	if len(body) > 0 && body[0] != '{' {
		named.Name = string(bytes.Trim(body, `"`))
	} else if err := errors.Join(json.Unmarshal(body, req), json.Unmarshal(body, &named)); err != nil {
		return events.Pool{}, fail(api.CodeInvalid, "request is not JSON with a name: %v", err)
	}
	record, _, _, err := s.loadPool(ctx, named.Name)
	return record, err
}

// loadPool reads a pool's record from its bucket: what is kept in memory may be a moment old.
func (s *Scheduler) loadPool(ctx context.Context, name string) (events.Pool, poolfile.Pool, uint64, error) {
	if events.ValidPool(name) != nil {
		return events.Pool{}, poolfile.Pool{}, 0, noPool(name)
	}
	e, err := s.fleet.Pools.Get(ctx, name)
	if errors.Is(err, kv.ErrNotFound) {
		err = noPool(name)
	}
	if err != nil {
		return events.Pool{}, poolfile.Pool{}, 0, err
	}
	record, spec, err := readPool(e.Value)
	return record, spec, e.Revision, err
}

// poolApply brings a pool to what its file says. First what lets it be found again, its queue and the place of its latest
// image, last the record by which workers learn of it.
func (s *Scheduler) poolApply(ctx context.Context, body []byte) (any, error) {
	var req api.PoolApply
	if err := json.Unmarshal(body, &req); err != nil || len(req.Spec) == 0 {
		return nil, fail(api.CodeInvalid, "request is not JSON with a spec: %v", err)
	}
	p, err := poolfile.ParseJSON(req.Spec)
	if err != nil {
		return nil, fail(api.CodeInvalid, "%v", err)
	}
	p.Defaults()
	if missing := p.Unsupported(); len(missing) > 0 {
		return nil, fail(api.CodeInvalid, "%v", &unsupported{missing})
	}
	if err := s.fleet.Queue.EnsurePool(ctx, p.Name); err != nil {
		return nil, err
	}
	if err := s.changeLatest(ctx, p.Name, func(*events.Latest) error { return nil }); err != nil {
		return nil, err
	}
	done, err := s.writePool(ctx, p.Name, p.Canonical())
	if err == nil && done.Changed {
		s.tellPool(ctx, "applied", p.Name, events.Data{Generation: done.Generation})
	}
	return done, err
}

// writePool writes a pool's record unless it says the same already.
func (s *Scheduler) writePool(ctx context.Context, name string, spec []byte) (api.PoolChanged, error) {
	for {
		var old events.Pool
		e, err := s.fleet.Pools.Get(ctx, name)
		if err == nil {
			err = json.Unmarshal(e.Value, &old)
		} else if errors.Is(err, kv.ErrNotFound) {
			err = nil
		}
		if err != nil {
			return api.PoolChanged{}, err
		}
		done := api.PoolChanged{Name: name, Generation: old.Generation, State: "applied"}
		if e.Revision != 0 && bytes.Equal(old.Spec, spec) {
			return done, nil
		}
		// One that was removed and comes back begins above all that its images may remember.
		done.Generation, done.Changed = max(old.Generation, s.pools.get(name).latest.Generation)+1, true
		b, err := json.Marshal(events.Pool{Name: name, Spec: spec, Generation: done.Generation, AppliedAt: time.Now().UTC()})
		if err != nil {
			return done, err
		}
		if e.Revision == 0 {
			_, err = s.fleet.Pools.Create(ctx, name, b)
		} else {
			_, err = s.fleet.Pools.Update(ctx, name, b, e.Revision)
		}
		if !errors.Is(err, kv.ErrConflict) && !errors.Is(err, kv.ErrExists) {
			return done, err
		}
	}
}

// poolDelete removes a pool's record; workers let go when they see it, and the leader removes the queue once it is drained.
func (s *Scheduler) poolDelete(ctx context.Context, body []byte) (any, error) {
	var req api.PoolDelete
	record, err := s.poolNamed(ctx, body, &req)
	if err != nil {
		return nil, err
	}
	name := record.Name
	if n := s.index.waitFor(name); n > 0 && !req.Force {
		return nil, fail(api.CodeRefused, "pool %s: %d plans that have not ended need it: wait for their end, cancel them, or use --force", name, n)
	}
	if err := s.fleet.Pools.Delete(ctx, name, 0); err != nil {
		return nil, err
	}
	s.tellPool(ctx, "removing", name, events.Data{Generation: record.Generation})
	return api.PoolChanged{Name: name, Generation: record.Generation, Changed: true, State: poolRemoving}, nil
}

func (s *Scheduler) poolList(ctx context.Context, _ []byte) (any, error) {
	out := []api.Pool{}
	all := s.pools.all()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		p, err := s.showPool(ctx, name, all[name])
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

func (s *Scheduler) poolGet(ctx context.Context, body []byte) (any, error) {
	record, err := s.poolNamed(ctx, body, &api.Name{})
	if err != nil {
		return nil, err
	}
	p, err := s.freshPool(ctx, record)
	if err != nil {
		return nil, err
	}
	return s.showPool(ctx, record.Name, p)
}

// freshPool is a pool with its record and Latest as they are stored now.
func (s *Scheduler) freshPool(ctx context.Context, record events.Pool) (pool, error) {
	p := s.pools.get(record.Name)
	p.record, p.there = record, true
	p.spec = poolfile.Pool{} // what it points to belongs to others, too
	if err := json.Unmarshal(record.Spec, &p.spec); err != nil {
		return p, err
	}
	p.spec.Defaults()
	e, err := s.fleet.Images.Get(ctx, events.LatestKey(record.Name))
	if err == nil {
		p.latest = events.Latest{}
		err = json.Unmarshal(e.Value, &p.latest)
	} else if errors.Is(err, kv.ErrNotFound) {
		err = nil
	}
	return p, err
}

// poolRefresh asks for a build now.
func (s *Scheduler) poolRefresh(ctx context.Context, body []byte) (any, error) {
	var req api.PoolRefresh
	record, err := s.poolNamed(ctx, body, &req)
	if err != nil {
		return nil, err
	}
	return s.askNow(ctx, record, req.Scratch)
}

// awaitServed tells whether a live worker serves a pool. One that was applied just now gets the time in which workers that are
// there say of themselves what they serve.
func (s *Scheduler) awaitServed(ctx context.Context, name string) (bool, error) {
	limit := time.NewTimer(servedWait)
	defer limit.Stop()
	tick := time.NewTicker(servedPoll)
	defer tick.Stop()
	for {
		if served := s.index.serves(name); served || len(s.index.workers()) == 0 {
			return served, nil
		}
		select {
		case <-tick.C:
		case <-limit.C:
			return false, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// askNow asks for a build, or names the one that is under way.
func (s *Scheduler) askNow(ctx context.Context, record events.Pool, scratch bool) (any, error) {
	out := api.Building{Pool: record.Name}
	if served, err := s.awaitServed(ctx, record.Name); err != nil {
		return nil, err
	} else if !served {
		return nil, fail(api.CodeConflict, "pool %s: no live worker serves it, so nothing can be built: start one", record.Name)
	}
	err := s.ask(ctx, record.Name, events.Asked{Generation: record.Generation, Why: whyRefresh, Scratch: scratch})
	out.Queued = errors.Is(err, errAsked)
	if err != nil && !out.Queued {
		return nil, err
	}
	p, err := s.freshPool(ctx, record)
	if err == nil && p.latest.Asked != nil {
		out.ID = p.latest.Asked.ID
	}
	return out, err
}

// poolPrewarm asks the live worker of the pool with the fewest idle ones for one more.
func (s *Scheduler) poolPrewarm(ctx context.Context, body []byte) (any, error) {
	record, err := s.poolNamed(ctx, body, &api.Name{})
	if err != nil {
		return nil, err
	}
	if _, err := s.awaitServed(ctx, record.Name); err != nil {
		return nil, err
	}
	best, idle := "", 0
	workers := s.index.workers()
	for _, name := range slices.Sorted(maps.Keys(workers)) {
		w := workers[name]
		if _, serves := w.Pools[record.Name]; !serves || w.State != events.WorkerReady {
			continue
		}
		have := w.Warm[record.Name]
		if n := have.Idle + have.Making; best == "" || n < idle {
			best, idle = name, n
		}
	}
	if best == "" {
		return nil, fail(api.CodeConflict, "pool %s: no live worker serves it: start one", record.Name)
	}
	return s.askWorker(ctx, best, "prewarm", api.Name{Name: record.Name})
}
