// Package scheduler validates submissions, admits plans, publishes their commands and answers
// the API. Several may run; one leads.
//
// It meets workers only in pkg/events. It must not know how a plan is run or applied, nor
// how the server was started.
package scheduler

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
)

// Fleet is what a scheduler meets the rest of the fleet through.
type Fleet struct {
	Conn        *nats.Conn
	Subjects    events.Subjects
	Log         events.Log
	Queue       events.FullQueue
	Submissions events.Submissions
	Workers     kv.Store
	Leases      kv.Store
	Plans       kv.Store
	Checkpoints kv.Store
	Pools       kv.Store
	Images      kv.Store
	Sessions    kv.Store
	Store       objectstore.Store
}

// Scheduler is one scheduler. Use New, then Run.
type Scheduler struct {
	fleet Fleet
	log   zerolog.Logger
	id    string
	index *index
	pools *pools
	keep  Keep

	pullWait time.Duration
}

// DefaultPullWait is when a pull of submissions expires.
const DefaultPullWait = time.Second

// New returns a scheduler of the fleet. pullWait is how long one pull of submissions waits,
// and with it how long a stop may take to be noticed; DefaultPullWait if zero.
func New(fleet Fleet, pullWait time.Duration, log zerolog.Logger) *Scheduler {
	if pullWait == 0 {
		pullWait = DefaultPullWait
	}
	return &Scheduler{fleet: fleet, log: log, id: events.NewID(), index: newIndex(), pools: newPools(), keep: DefaultKeep(), pullWait: pullWait}
}

// SetKeep says how long checkpoints are kept, DefaultKeep if it is not called. Call it before Run.
func (s *Scheduler) SetKeep(k Keep) { s.keep = k }

func (s *Scheduler) source() string { return "/scheduler/" + s.id }

// Run serves until ctx ends. ready is called once the log was read and the API answers.
func (s *Scheduler) Run(ctx context.Context, ready func()) error {
	return s.run(ctx, func(ctx context.Context) (stop func(), err error) {
		api, err := s.serve(ctx)
		if err != nil {
			return nil, err
		}
		ready()
		return api.stop, nil
	})
}

// run does everything but the API, which open starts once the log was read.
func (s *Scheduler) run(ctx context.Context, open func(context.Context) (stop func(), err error)) error {
	ctx, stop := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer func() {
		stop()
		tasks.Wait()
	}()
	records, err := s.fleet.Log.Follow(ctx, events.Filter{Noun: events.NounPlan, Mark: true})
	if err != nil {
		return err
	}
	tasks.Go(func() { s.follow(ctx, records) })
	if err := s.watchWorkers(ctx, &tasks); err != nil {
		return err
	}
	if err := s.watchPools(ctx, &tasks); err != nil {
		return err
	}
	if !s.index.awaitRead(ctx) || !s.pools.awaitRead(ctx) {
		return nil
	}
	tasks.Go(func() { s.intake(ctx) })
	tasks.Go(func() { s.lead(ctx) })
	tasks.Go(func() { s.project(ctx) })
	closeAPI, err := open(ctx)
	if err != nil {
		return err
	}
	defer closeAPI()
	<-ctx.Done()
	return nil
}

// forgetEvery is how often plans whose events are gone are dropped from memory.
const forgetEvery = time.Hour

// follow keeps the index up to date with the log.
func (s *Scheduler) follow(ctx context.Context, records <-chan events.Record) {
	tick := time.NewTicker(forgetEvery)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			s.index.forget(now.Add(-events.EventAge))
		case <-ctx.Done():
			return
		case r, ok := <-records:
			if !ok {
				return
			}
			s.index.observe(r)
		}
	}
}

// sleep waits for d or the end of ctx, which it reports as false.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
