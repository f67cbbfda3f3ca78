package worker

import (
	"context"
	"time"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

const (
	// factsQueued is how many facts about sandboxes may wait to be stored before a sandbox waits.
	factsQueued = 1024
	// factsLimit bounds the wait for one of them.
	factsLimit = 10 * time.Second
	// lag is how long what is stored beside the work stands back. Stored writes queue for the disk, and until a plan's
	// first process runs, which takes less, it waits for five of its own (docs/ARCHITECTURE.md, life of a plan).
	lag = 20 * time.Millisecond
)

// hostFor is what a plan's sandbox is made of: each of its moves becomes an event, stored
// beside the work so that no step waits for it.
func (w *Worker) hostFor(planID string) sandbox.Host {
	h := w.host
	h.Notify = func(c sandbox.Change) { w.notify(planID, "", c) }
	return h
}

// notify makes an event of a move of a sandbox.
func (w *Worker) notify(planID, pool string, c sandbox.Change) {
	w.notifyOn(w.report.Rung, sandboxOwner{plan: planID, pool: pool}, c)
}

// sandboxOwner is whose a sandbox is: ids, each "" where it is nobody's of that kind.
type sandboxOwner struct{ plan, pool string }

func (w *Worker) notifyOn(rung isolate.Rung, of sandboxOwner, c sandbox.Change) {
	d := events.Data{
		SandboxID: c.ID, PlanID: of.plan, Pool: of.pool, Worker: w.cfg.Name, Host: w.cfg.HostID, Strategy: string(c.Strategy),
		Isolation: string(rung), State: string(c.To), Driver: string(c.View.Driver), DriverWhy: c.View.Why,
	}
	if c.Cause != nil {
		d.Error = c.Cause.Error()
	}
	w.fact(events.NewEvent(events.TypeOf(events.NounSandbox, string(c.To)), c.ID, "/worker/"+w.cfg.Name, d))
}

// fact has a fact about a sandbox, image or session stored beside the work.
func (w *Worker) fact(e events.Event) {
	select {
	case w.facts <- e:
	case <-w.recorded: // nobody stores it any more
	}
}

// record stores facts until stop is closed, and then those that wait, within factsLimit.
func (w *Worker) record(stop <-chan struct{}) {
	defer close(w.recorded)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for {
		select {
		case ev := <-w.facts:
			standBack(stop)
			w.store(ctx, ev)
			for range len(w.facts) { // nobody else takes one
				w.store(ctx, <-w.facts)
			}
		case <-stop:
			defer time.AfterFunc(factsLimit, cancel).Stop()
			for len(w.facts) > 0 {
				w.store(ctx, <-w.facts)
			}
			return
		}
	}
}

func (w *Worker) store(ctx context.Context, ev events.Event) {
	ctx, cancel := context.WithTimeout(ctx, factsLimit)
	defer cancel()
	if err := w.fleet.Log.Publish(ctx, ev); err != nil {
		w.log.Warn().Err(err).Str("sandbox", ev.Subject).Msg("store a fact about a sandbox")
	}
}

// standBack lets the writes that a step waits for go first; until at the latest.
func standBack(until <-chan struct{}) {
	select {
	case <-time.After(lag):
	case <-until:
	}
}
