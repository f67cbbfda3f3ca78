package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/warmfleet/warmfleet/internal/isolate"
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
	release func() // of the layers it stands on
}

// errFull: this worker keeps as many sandboxes for people as it may.
var errFull = errors.New("too many sandboxes are kept")

// hold makes a sandbox in the state of a checkpoint and keeps it for an hour.
func (w *Worker) hold(ctx context.Context, checkpointID string) (*sandbox.Sandbox, error) {
	id := events.NewID()
	w.mu.Lock()
	full := len(w.held) >= maxHeld
	if !full {
		w.held[id] = nil // its place
	}
	w.mu.Unlock()
	if full {
		return nil, fmt.Errorf("worker: hold checkpoint %q: worker %s keeps %d: %w: wait until one expires, or name another worker", checkpointID, w.cfg.Name, maxHeld, errFull)
	}
	h, err := w.makeHeld(ctx, id, checkpointID)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		delete(w.held, id)
		return nil, err
	}
	h.timer = time.AfterFunc(holdFor, func() { w.letGo(id) })
	w.held[id] = h
	return h.sandbox, nil
}

func (w *Worker) makeHeld(ctx context.Context, id, checkpointID string) (*heldBox, error) {
	r, release, err := w.restore(ctx, checkpointID)
	if err != nil {
		return nil, err
	}
	sb, err := sandbox.New(ctx, w.hostFor(r.PlanID), sandbox.Spec{
		ID: id, Strategy: sandbox.CopyOnWrite, Chain: r.Chain, Network: isolate.NetworkNone,
	})
	if err != nil {
		release()
		return nil, err
	}
	w.cps.Adopt(sb, r.BaseLayers)
	return &heldBox{sandbox: sb, release: release}, nil
}

func (w *Worker) letGo(id string) {
	w.mu.Lock()
	h := w.held[id]
	delete(w.held, id)
	w.mu.Unlock()
	if h == nil {
		return
	}
	h.timer.Stop()
	w.discard(h.sandbox)
	h.release()
}

func (w *Worker) dropHeld() {
	w.mu.Lock()
	ids := slices.Collect(maps.Keys(w.held))
	w.mu.Unlock()
	for _, id := range ids {
		w.letGo(id)
	}
}
