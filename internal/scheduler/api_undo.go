package scheduler

import (
	"context"
	"errors"
	"strings"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

// planUndo records that an applied plan is to be taken back; a worker of its host does it. What can be known to fail
// is refused here. A plan that is undone, or is being undone, is that: asking twice is asking once.
func (s *Scheduler) planUndo(ctx context.Context, body []byte) (any, error) {
	req, err := idOf(body)
	if err != nil {
		return nil, err
	}
	w, err := events.OpenWriter(ctx, s.fleet.Log, req.ID, s.source())
	if err != nil {
		return nil, err
	}
	f := w.Fold()
	if f.State == "" {
		return nil, fail(api.CodeNotFound, "plan %s: not found", req.ID)
	}
	if err := s.undoable(ctx, req.ID, f); err != nil {
		return nil, err
	}
	if !f.Undone && !f.Undoing {
		err = w.Append(ctx, events.TypeUndoRequested, events.Data{By: req.By})
		if f = w.Fold(); errors.Is(err, events.ErrTransition) && (f.Undone || f.Undoing) {
			err = nil // somebody else asked first
		}
	}
	if err != nil {
		return nil, err
	}
	return api.Undo{ID: req.ID, State: f.State, Undone: f.Undone, Undoing: f.Undoing}, nil
}

// undoable refuses a plan that there is nothing to undo of, or nothing to do it with.
func (s *Scheduler) undoable(ctx context.Context, id string, f events.Fold) error {
	state := strings.ReplaceAll(f.State, "_", " ")
	switch {
	case f.Undone:
		return nil
	case f.State != events.StateApplied:
		return fail(api.CodeConflict, "plan %s: nothing to undo: it is %s, and only an applied plan changed its original", id, state)
	case f.Changed != nil && *f.Changed == 0:
		return fail(api.CodeConflict, "plan %s: nothing to undo: it changed nothing", id)
	}
	accepted, err := events.Accepted(ctx, s.fleet.Log, id)
	if err != nil {
		return err
	}
	p, err := plan.ParseJSON(accepted.Event.Data.Body)
	if err != nil {
		return err
	}
	if p.Commit != nil || f.Resource.Repo != "" {
		return fail(api.CodeConflict, "plan %s: it made a commit, which git takes back: git revert %s", id, commitOf(f))
	}
	cp, err := undoFrom(id, f)
	if err != nil {
		return err
	}
	if _, err := checkpoint.Load(ctx, s.fleet.Checkpoints, cp); errors.Is(err, checkpoint.ErrNotFound) {
		return fail(api.CodeNotFound, "checkpoint %s: deleted: it held what plan %s replaced, so nothing can undo that", cp, id)
	} else if err != nil {
		return err
	}
	return nil
}

// commitOf is the commit that a plan made, as far as the log says.
func commitOf(f events.Fold) string {
	if f.Intent != nil && f.Intent.Commit != "" {
		return f.Intent.Commit
	}
	return "<id of the commit>"
}

// undoFrom is the checkpoint that an undo starts from: pre_apply, or post_execute for a plan that worked in place.
func undoFrom(id string, f events.Fold) (string, error) {
	if f.Intent != nil && f.Intent.Checkpoint != "" {
		return f.Intent.Checkpoint, nil
	}
	if f.Checkpoint != nil && f.Checkpoint.Phase == events.PhasePostExecute {
		return f.Checkpoint.ID, nil
	}
	return "", fail(api.CodeConflict, "plan %s: it kept no checkpoint of what it replaced, so nothing can undo it", id)
}
