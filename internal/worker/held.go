package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

const (
	// holdFor is how long a sandbox made by `checkpoint rollback` is kept.
	holdFor = time.Hour
	// maxHeld bounds how many such sandboxes a worker keeps.
	maxHeld = 16
)

// heldBox is a sandbox that is kept for people to look into, until it dies of age.
type heldBox struct {
	sandbox *sandbox.Sandbox
	timer   *time.Timer
}

// hold makes a sandbox in the state of a checkpoint and keeps it for an hour.
func (w *Worker) hold(ctx context.Context, checkpointID string) (*sandbox.Sandbox, error) {
	w.mu.Lock()
	full := len(w.held) >= maxHeld
	w.mu.Unlock()
	if full {
		return nil, fmt.Errorf("worker: hold checkpoint %q: worker %s already holds %d sandboxes: wait until one expires", checkpointID, w.cfg.Name, maxHeld)
	}
	r, err := w.cps.Restore(ctx, checkpointID)
	if err != nil {
		return nil, err
	}
	sb, err := sandbox.New(ctx, w.hostFor(r.PlanID), sandbox.Spec{
		ID: events.NewID(), Strategy: sandbox.CopyOnWrite, Chain: r.Chain, Network: "none",
	})
	if err != nil {
		return nil, err
	}
	w.cps.Adopt(sb, r.BaseLayers)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held[sb.ID()] = &heldBox{sb, time.AfterFunc(holdFor, func() { w.release(sb.ID()) })}
	return sb, nil
}

func (w *Worker) release(id string) {
	w.mu.Lock()
	h := w.held[id]
	delete(w.held, id)
	w.mu.Unlock()
	if h == nil {
		return
	}
	h.timer.Stop()
	w.discard(h.sandbox)
}

func (w *Worker) dropHeld() {
	w.mu.Lock()
	var ids []string
	for id := range w.held {
		ids = append(ids, id)
	}
	w.mu.Unlock()
	for _, id := range ids {
		w.release(id)
	}
}
