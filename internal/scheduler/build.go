package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/image"
)

const (
	// askedGrace is how long a build that was asked for may be without its command: between the two writes.
	askedGrace = 5 * time.Second
	// buildsEvery is how often the leader looks which images are due.
	buildsEvery = time.Second
)

// whyRefresh is why somebody asked for a build; image.Standing has the others.
const whyRefresh = "refresh"

// standing is what decides on the pool's next build.
func (p pool) standing() image.Standing {
	s := image.Standing{Latest: p.latest, Generation: p.record.Generation, There: p.built}
	if every := p.spec.BuildInterval; every != nil {
		s.Interval = time.Duration(*every)
	}
	return s
}

// errAsked: a build of the pool is queued or under way.
var errAsked = errors.New("a build is under way")

// building is the build of a pool that is queued or under way, "" for none.
func (s *Scheduler) building(ctx context.Context, name string, l events.Latest) (string, error) {
	if l.Asked == nil {
		return "", nil
	}
	has, err := s.fleet.Queue.Has(ctx, events.NewCommand(name, events.VerbBuild, l.Asked.ID))
	if has || err != nil {
		return l.Asked.ID, err
	}
	if age := time.Since(l.Asked.At); age >= 0 && age < askedGrace && !ended(l) {
		return l.Asked.ID, nil
	}
	return "", nil
}

// ended tells that the build that was asked for last left its trace.
func ended(l events.Latest) bool {
	return l.Image == l.Asked.ID || l.FailedAt.After(l.Asked.At) || l.CheckedAt.After(l.Asked.At)
}

// ask asks for a build of a pool: first the intention, then the command. errAsked when one is under way.
func (s *Scheduler) ask(ctx context.Context, name string, a events.Asked) error {
	a.ID, a.At = events.NewID(), time.Now().UTC()
	err := s.changeLatest(ctx, name, func(l *events.Latest) error {
		running, err := s.building(ctx, name, *l)
		if err != nil {
			return err
		}
		if running != "" {
			return fmt.Errorf("pool %s: %w: image %s", name, errAsked, running)
		}
		if l.Asked != nil && l.Asked.Generation != a.Generation {
			l.Failures = 0 // those of another file say nothing of this one
		}
		l.Asked = &a
		return nil
	})
	if err != nil {
		return err
	}
	cmd := events.NewCommand(name, events.VerbBuild, a.ID)
	cmd.Params, err = json.Marshal(events.BuildParams{Scratch: a.Scratch, Force: a.Scratch, Generation: a.Generation})
	if err != nil {
		return err
	}
	if err := s.fleet.Queue.Publish(ctx, cmd); err != nil {
		return err
	}
	s.tellPool(ctx, "building", name, events.Data{Image: a.ID, Reason: a.Why})
	return nil
}

// buildOften asks for the builds that are due and ends what is left of removed pools, until ctx ends.
func (s *Scheduler) buildOften(ctx context.Context) {
	var looked time.Time
	lost := orphans{}
	for sleep(ctx, buildsEvery) {
		if time.Since(looked) >= lostEvery {
			if err := s.findLost(ctx); err != nil && ctx.Err() == nil {
				s.log.Warn().Err(err).Msg("look whether the images of pools are there")
			}
			looked = time.Now()
		}
		for name, p := range s.pools.all() {
			var err error
			if p.there {
				err = s.buildDue(ctx, name, p)
			} else {
				err = errors.Join(s.endOrphans(ctx, name, lost), s.clearRemoved(ctx, name, p.latest))
			}
			if err != nil && ctx.Err() == nil && !errors.Is(err, errAsked) {
				s.log.Warn().Err(err).Str("pool", name).Msg("look after a pool")
			}
		}
	}
}

func (s *Scheduler) buildDue(ctx context.Context, name string, p pool) error {
	at, why := p.standing().Next()
	if time.Now().Before(at) || !s.index.serves(name) {
		return nil
	}
	// What is gone cannot be built on, and a worker that still has it would find that nothing moved.
	return s.ask(ctx, name, events.Asked{Generation: p.record.Generation, Why: why, Scratch: why == image.WhyMissing})
}

// clearRemoved takes the queue of a removed pool away once it is drained, and last what says that it was there.
func (s *Scheduler) clearRemoved(ctx context.Context, name string, l events.Latest) error {
	if _, err := s.fleet.Pools.Get(ctx, name); !errors.Is(err, kv.ErrNotFound) {
		return err // applied again
	}
	for _, c := range s.index.withdrawAll(name) {
		if err := s.fleet.Queue.Remove(ctx, c); err != nil {
			return err
		}
	}
	// One whose worker died is of no use to any other. One that is being built holds the queue until its worker stops.
	if l.Asked != nil && (l.Build == nil || !s.live(l.Build.Worker, l.Build.WorkerStarted)) {
		if err := s.fleet.Queue.Remove(ctx, events.NewCommand(name, events.VerbBuild, l.Asked.ID)); err != nil {
			return err
		}
	}
	if s.index.serves(name) {
		return nil // until the workers let go
	}
	if err := s.fleet.Queue.RemovePool(ctx, name); err != nil {
		if errors.Is(err, events.ErrNotDrained) {
			return nil
		}
		return err
	}
	s.index.poolFailed(name) // its queue has to be made again if it comes back
	if err := s.fleet.Images.Delete(ctx, events.LatestKey(name), 0); err != nil {
		return err
	}
	s.tellPool(ctx, "removed", name, events.Data{})
	return nil
}
