package worker

import (
	"context"
	"time"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

const (
	// factsQueued is how many facts about sandboxes may wait to be stored before a sandbox waits.
	factsQueued = 1024
	// factsLimit bounds the wait for one of them.
	factsLimit = 10 * time.Second
)

// hostFor is what a plan's sandbox is made of: each of its moves becomes an event, stored
// beside the work so that no step waits for it.
func (w *Worker) hostFor(planID string) sandbox.Host {
	h := w.host
	h.Notify = func(c sandbox.Change) {
		d := events.Data{
			SandboxID: c.ID, PlanID: planID, Worker: w.cfg.Name, Host: w.cfg.HostID, Strategy: string(c.Strategy), Isolation: string(w.report.Rung),
			State: string(c.To),
		}
		if c.Driver != "" {
			d.Notes = []string{"driver " + c.Driver}
		}
		if c.Driver == "copy" {
			d.Notes = append(d.Notes, "overlay: "+w.report.OverlayWhy)
		}
		if c.Cause != nil {
			d.Error = c.Cause.Error()
		}
		w.facts <- events.NewEvent(events.TypeOf(events.NounSandbox, string(c.To)), c.ID, "/worker/"+w.cfg.Name, d)
	}
	return h
}

// record stores facts until the channel is closed.
func (w *Worker) record() {
	for ev := range w.facts {
		ctx, cancel := context.WithTimeout(context.Background(), factsLimit)
		if err := w.fleet.Log.Publish(ctx, ev); err != nil {
			w.log.Warn().Err(err).Str("sandbox", ev.Subject).Msg("store a fact about a sandbox")
		}
		cancel()
	}
}
