package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/plan/applier"
)

// An undo takes an applied change back: an apply of its inverse, three-way on what the plan made, what the original is
// now and what it was before. The plan stays applied; that it was undone is a fact in its log. Who holds the lock of the
// original decides, and looks at the log again once it has it, so an undo needs no epoch.

// undoMark begins the names of undos in journals, where an apply has the plan's id alone.
const undoMark = "undo-"

// journalled reads a journal's name.
func journalled(name string) (planID string, undo bool) { return strings.CutPrefix(name, undoMark) }

// undoPlan does what the log asks for: the plan is applied and to be undone.
func (w *Worker) undoPlan(ctx context.Context, j *job) error {
	err := w.undo(ctx, j)
	j.tidy = err == nil
	switch {
	case err == nil, fenced(err), errors.Is(err, errUnsettled), errors.Is(err, errAgain), errors.Is(err, events.ErrUnknown), ctx.Err() != nil:
		return err
	}
	return w.undoFailed(ctx, j, err)
}

// undoFailed says why a plan could not be undone. The original is as it was.
func (w *Worker) undoFailed(ctx context.Context, j *job, err error) error {
	d := events.Data{Code: "internal", Error: err.Error()}
	var r *refusal
	switch {
	case errors.As(err, &r):
		d.Code = r.code
	case errors.Is(err, checkpoint.ErrNotFound):
		d.Code, d.Error = "no_checkpoint", "what the plan replaced was kept in a checkpoint that is deleted: "+err.Error()
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		d.Code = "disk_full"
	}
	return undone(j.writer.Append(context.WithoutCancel(ctx), events.TypeUndoFailed, d))
}

// undone turns "somebody else has done it" into success.
func undone(err error) error {
	if errors.Is(err, events.ErrTransition) {
		return nil
	}
	return err
}

func (w *Worker) undo(ctx context.Context, j *job) error {
	t, err := w.resolve(ctx, j.plan)
	if err != nil {
		return err
	}
	unlock, err := w.lockPath(ctx, t.path, true)
	if err != nil {
		return err
	}
	defer unlock()
	for range undoTries {
		done, err := w.undoLocked(ctx, j, t.path)
		if done || err != nil && !errors.Is(err, errAgain) {
			return err
		}
	}
	return fmt.Errorf("%w: %s", errUnsettled, t.path)
}

// undoTries bounds how often the original is opened: what was interrupted there is settled first, with a journal of its own.
const undoTries = 3

// undoLocked undoes the plan, or settles what was in the way of that.
func (w *Worker) undoLocked(ctx context.Context, j *job, path string) (done bool, err error) {
	s, err := applier.Open(ctx, path, applier.Options{Log: w.log, Hook: w.applyHook})
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if _, pending := s.Pending(); pending {
		return w.recoverUndo(ctx, j, s)
	}
	if fold, err := j.writer.Refresh(ctx); err != nil || !fold.Undoing {
		return true, err // another was here first
	}
	return true, w.undoFresh(ctx, j, s)
}

// recoverUndo settles what a killed worker left in the original. done means that it was this very undo, and has ended.
func (w *Worker) recoverUndo(ctx context.Context, j *job, s *applier.Session) (done bool, err error) {
	if p, _ := s.Pending(); p.Plan != undoMark+j.id {
		_, err := w.recoverApply(ctx, j, s) // of whatever plan, of this one too
		return false, err
	}
	ctx = context.WithoutCancel(ctx)
	outcome, err := s.Recover(ctx, applier.Forward)
	var blocked *applier.Blocked
	switch {
	case errors.As(err, &blocked):
		d := events.Data{Code: "half_undone", Error: "an undo was interrupted here, and " + err.Error() + ": put one of these paths back as it was, then undo the plan again"}
		return true, j.conflict(ctx, events.TypeUndoFailed, d, append(blocked.Forward, blocked.Back...))
	case err != nil:
		return false, fmt.Errorf("%w: %w", errUnsettled, err)
	case outcome == applier.Undone:
		return false, nil
	}
	return true, w.recordUndo(ctx, j, s, nil)
}

// recordUndo says that the plan is undone and forgets the journal, which said so until then.
func (w *Worker) recordUndo(ctx context.Context, j *job, s *applier.Session, changed *int) error {
	d := events.Data{Reason: events.ReasonUndo, RolledBack: "original", Changed: changed, Worker: w.cfg.Name, Host: w.cfg.HostID}
	if err := undone(j.writer.Append(ctx, events.TypeRolledBack, d)); err != nil {
		return err
	}
	return s.Finish(ctx)
}

// undoFresh checks, stages and makes the change back.
func (w *Worker) undoFresh(ctx context.Context, j *job, s *applier.Session) error {
	req, release, err := w.undoRequest(ctx, j)
	if err != nil {
		return err
	}
	defer release()
	preview, found, err := s.Check(ctx, req)
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return j.conflict(ctx, events.TypeUndoFailed, events.Data{Code: "conflict", Error: changedSince(found)}, found)
	}
	if err := s.Stage(ctx, preview); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	err = s.Commit(ctx)
	if _, pending := s.Pending(); pending {
		return fmt.Errorf("%w: %w", errUnsettled, err)
	}
	var late *applier.LateConflict
	if errors.As(err, &late) {
		found := []applier.Conflict{late.Conflict}
		return j.conflict(ctx, events.TypeUndoFailed, events.Data{Code: "conflict", Error: changedSince(found)}, found)
	}
	if err != nil {
		return err
	}
	changed := len(preview.Steps)
	return w.recordUndo(ctx, j, s, &changed)
}

// undoRequest is how to take the plan's change back, and where the bytes lie, until release.
func (w *Worker) undoRequest(ctx context.Context, j *job) (req applier.Request, release func(), err error) {
	fold := j.writer.Fold()
	req = applier.Request{Plan: undoMark + j.id, Epoch: fold.Epoch, Restore: true, AllowSpecial: true}
	if fold.Intent == nil {
		return w.undoInPlaceRequest(ctx, req, fold)
	}
	r, release, err := w.restore(ctx, fold.Intent.Checkpoint)
	if err != nil {
		return req, nil, err
	}
	if r.Delta == "" {
		release()
		return req, nil, refuse("no_checkpoint", "plan %s: was applied by a version that kept too little to undo it; checkpoint %s has what it replaced", j.id, r.ID)
	}
	delta, err := checkpoint.GetDelta(ctx, w.fleet.Store, r.Delta)
	if err != nil {
		release()
		return req, nil, err
	}
	req.Changes, req.Content = delta.Changes, layer.NewTree(r.Chain)
	return req, release, nil
}

// undoInPlaceRequest takes back what a plan of strategy none did: its difference the other way round, with the bytes of its
// base, which is what it started from.
func (w *Worker) undoInPlaceRequest(ctx context.Context, req applier.Request, fold events.Fold) (applier.Request, func(), error) {
	if fold.Strategy != string(plan.InPlace) || fold.Checkpoint == nil || fold.Checkpoint.Phase != events.PhasePostExecute {
		return req, nil, checkpoint.ErrNotFound
	}
	r, release, err := w.restore(ctx, fold.Checkpoint.ID)
	if err != nil {
		return req, nil, err
	}
	base := r.Chain[:r.BaseLayers]
	tree := layer.NewTree(base)
	delta, err := checkpoint.GetDelta(ctx, w.fleet.Store, r.Delta)
	if err != nil {
		release()
		return req, nil, err
	}
	for _, c := range delta.Changes {
		req.Changes = append(req.Changes, layer.Change{Path: c.Path, Before: c.After, After: c.Before})
	}
	req.Content = tree
	if err := linkAgain(tree, req.Changes); err != nil {
		release()
		return req, nil, err
	}
	return req, release, nil
}

// linkAgain makes changes name a file of the tree that they were hard-linked to, one that is not among them if there is any.
func linkAgain(tree *layer.Tree, changes []layer.Change) error {
	changed := map[layer.Path]bool{}
	for _, c := range changes {
		changed[c.Path] = true
	}
	groups, kept := map[layer.Path]layer.Path{}, map[layer.Path]layer.Path{} // first name of each, and one that was left alone
	err := tree.Walk(func(e layer.Entry) error {
		if e.Type != layer.File {
			return nil
		}
		first := cmp.Or(e.HardLink, e.Path)
		groups[e.Path] = first
		if !changed[e.Path] {
			kept[first] = e.Path
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i, c := range changes {
		if c.After == nil || c.After.Type != layer.File {
			continue
		}
		after := *c.After
		after.HardLink = cmp.Or(kept[groups[c.Path]], groups[c.Path])
		if after.HardLink == c.Path {
			after.HardLink = ""
		}
		changes[i].After = &after
	}
	return nil
}

func changedSince(found []applier.Conflict) string {
	if len(found) == 1 {
		return fmt.Sprintf("%q was changed since the plan was applied (%s): nothing was undone", found[0].Path, found[0].Kind)
	}
	return fmt.Sprintf("%d paths were changed since the plan was applied, the first is %q (%s): nothing was undone", len(found), found[0].Path, found[0].Kind)
}

// directionOfUndo says whether an interrupted undo of another plan may be completed: not one that was said to have failed.
func directionOfUndo(f *events.Fold) applier.Direction {
	if f != nil && (f.Undoing || f.Undone) {
		return applier.Forward
	}
	return applier.Back
}

// recordUndoFor completes another plan's undo, whose change is made, before this one looks at the original.
func (w *Worker) recordUndoFor(ctx context.Context, planID string, s *applier.Session) error {
	other := &job{id: planID}
	var err error
	if other.writer, err = events.OpenWriter(ctx, w.fleet.Log, planID, "/worker/"+w.cfg.Name); err != nil {
		return err
	}
	if err := w.recordUndo(ctx, other, s, nil); err != nil {
		return err
	}
	return fmt.Errorf("%w: the interrupted undo of plan %s was completed first", errAgain, planID)
}
