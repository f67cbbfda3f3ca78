package scheduler

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// showPool is a pool as people see it: its record, its latest image and what live workers have of it.
func (s *Scheduler) showPool(ctx context.Context, name string, p pool) (api.Pool, error) {
	running, err := s.building(ctx, name, p.latest)
	if err != nil {
		return api.Pool{}, err
	}
	return poolView(name, p, poolNow{workers: s.index.workers(), building: running != "", now: time.Now()}), nil
}

// poolNow is what else there is to know of a pool at a moment.
type poolNow struct {
	workers  map[string]events.Worker
	building bool
	now      time.Time
}

// poolView joins what is known of a pool. It is pure.
func poolView(name string, p pool, n poolNow) api.Pool {
	l := p.latest
	out := api.Pool{
		Name: name, State: stateOf(p, n.building), Image: l.Image, Commit: l.Commit, BuiltAt: l.BuiltAt,
		Generation: p.record.Generation, Spec: p.record.Spec, Workers: map[string]api.PoolWorker{},
	}
	if p.there {
		out.TargetSize = *p.spec.TargetSize
		out.Stale = p.standing().IsStale(n.now)
	}
	errs := countWorkers(&out, n)
	if p.there {
		out.Error = strings.Join(append(imageErrors(p, len(out.Workers)), errs...), "; ")
	}
	if claims := out.Hits + out.Misses; claims > 0 {
		out.HitRate = float64(out.Hits) / float64(claims)
	}
	return out
}

func stateOf(p pool, building bool) string {
	switch {
	case !p.there:
		return poolRemoving
	case building:
		return poolBuilding
	case p.latest.Failures > 0:
		return poolFailing
	case !p.built:
		return poolEmpty
	default:
		return poolReady
	}
}

// imageErrors says why a pool has no good image of now.
func imageErrors(p pool, workers int) []string {
	var out []string
	l := p.latest
	if l.Error != "" {
		out = append(out, "last build failed: "+l.Error)
	}
	if l.Image != "" && !p.built {
		out = append(out, fmt.Sprintf("image %s was deleted, or something of it was: another is built", l.Image))
	}
	if workers == 0 {
		out = append(out, "no live worker serves the pool")
	}
	return out
}

// countWorkers adds up what live workers have of a pool, and returns what went wrong there.
func countWorkers(out *api.Pool, n poolNow) []string {
	var errs []string
	var synced time.Time
	for _, name := range slices.Sorted(maps.Keys(n.workers)) {
		w := n.workers[name]
		if _, serves := w.Pools[out.Name]; !serves {
			continue
		}
		have := w.Warm[out.Name]
		out.Workers[name] = api.PoolWorker{Idle: have.Idle, Target: have.Target, Error: have.Error}
		out.Warm += have.Idle
		out.Hits, out.Misses, out.Wasted = out.Hits+have.Hits, out.Misses+have.Misses, out.Wasted+have.Wasted
		out.Prewarmed += have.Prewarmed
		out.OldestMS, out.RefillMS = max(out.OldestMS, have.OldestMS), max(out.RefillMS, have.RefillMS)
		if have.Idle > 0 {
			out.Behind = max(out.Behind, have.Behind)
			if !have.SyncedAt.IsZero() && (synced.IsZero() || have.SyncedAt.Before(synced)) {
				synced = have.SyncedAt
			}
		}
		if have.Error != "" {
			errs = append(errs, "worker "+name+": "+have.Error)
		}
	}
	if !synced.IsZero() {
		out.StalenessMS = max(n.now.Sub(synced).Milliseconds(), 0)
	}
	return errs
}
