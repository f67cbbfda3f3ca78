package suite

import (
	"context"
	"fmt"
	"sync"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

// onePlan is the JSON of a plan with one step that changes nothing outside its sandbox.
func onePlan(r plan.Resource, script string) []byte {
	p := planOf(script)
	p.Resource = &r
	return p.Canonical()
}

// poolPlan is the same in a sandbox of a pool.
func poolPlan(pool, script string) []byte {
	p := planOf(script)
	p.Pool = pool
	return p.Canonical()
}

func planOf(script string) *plan.Plan {
	return &plan.Plan{
		Version: plan.Version, Name: "bench", Strategy: plan.CopyOnWrite, Apply: plan.ApplyNever,
		Steps: []plan.Step{{ID: "step", Run: script, Shell: shell()}},
	}
}

// shell runs scripts, in sandboxes and for peers alike.
func shell() []string { return []string{"/bin/sh", "-c"} }

// follower reads the plans' events and hands them to who waits for one.
type follower struct {
	mu      sync.Mutex
	waiting map[string]func(events.Record) // by plan
}

// follow starts a follower on a fleet's log.
func (s *server) follow() (*follower, error) {
	records, err := s.Log.Follow(s.life, events.Filter{Noun: events.NounPlan})
	if err != nil {
		return nil, err
	}
	f := &follower{waiting: map[string]func(events.Record){}}
	s.tasks.Go(func() {
		for r := range records {
			f.mu.Lock()
			tell := f.waiting[r.Event.Subject]
			f.mu.Unlock()
			if tell != nil {
				tell(r)
			}
		}
	})
	return f, nil
}

// watch calls tell with each further event of a plan, on one goroutine.
func (f *follower) watch(id string, tell func(events.Record)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting[id] = tell
}

func (f *follower) forget(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.waiting, id)
}

// finish submits a plan and returns its events when it has executed.
func (s *server) finish(ctx context.Context, f *follower, id string, body []byte) ([]events.Record, error) {
	var all []events.Record
	ended := make(chan struct{})
	f.watch(id, func(r events.Record) {
		all = append(all, r)
		if r.Event.Data.Final {
			close(ended)
		}
	})
	defer f.forget(id)
	if err := s.Submissions.Publish(ctx, id, events.NewSubmission(body, "bench")); err != nil {
		return nil, err
	}
	select {
	case <-ended:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	last := all[len(all)-1].Event
	if last.Kind() != events.TypeExecuted {
		return nil, fmt.Errorf("plan %s ended %s: %s", id, last.Kind(), last.Data.Error)
	}
	return all, nil
}
