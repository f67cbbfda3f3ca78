package client

import (
	"context"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// Undo asks for an applied plan to be taken back; by says who asks. A plan that is undone already, or is being undone, is
// no error: the reply says so. AwaitUndo tells what came of it.
func (c *Client) Undo(ctx context.Context, id, by string) (api.Undo, error) {
	return call[api.Undo](ctx, c, "plan", "undo", api.ID{ID: id, By: by})
}

// AwaitUndo waits for the end of the last undo that was asked for of a plan, and returns the event that says how it ended:
// rolled_back with the reason events.ReasonUndo, or undo_failed.
func (c *Client) AwaitUndo(ctx context.Context, id string) (events.Record, error) {
	soFar, err := c.Events(ctx, id)
	if err != nil {
		return events.Record{}, err
	}
	var asked uint64
	for _, r := range soFar {
		if r.Event.Kind() == events.TypeUndoRequested {
			asked = r.Seq
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	records, err := c.Follow(ctx, events.Filter{Plan: id})
	if err != nil {
		return events.Record{}, err
	}
	for r := range records {
		if r.Seq > asked && endsUndo(r.Event) {
			return r, nil
		}
	}
	return events.Record{}, context.Cause(ctx)
}

func endsUndo(e events.Event) bool {
	return e.Kind() == events.TypeUndoFailed || e.Kind() == events.TypeRolledBack && e.Data.Reason == events.ReasonUndo
}
