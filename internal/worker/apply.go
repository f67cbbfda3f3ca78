package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/warmfleet/warmfleet/internal/fault"
	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/plan/applier"
	"github.com/warmfleet/warmfleet/pkg/plan/executor"
)

// applyClaim claims a plan whose steps are done and applies it: after approval, or after
// the worker that ran it was lost.
func (w *Worker) applyClaim(ctx context.Context, j *job) error {
	claim := events.Data{Worker: w.cfg.Name, Host: w.cfg.HostID, Source: events.SourceCheckpoint, Isolation: string(w.report.Rung)}
	if err := j.writer.Claim(ctx, claim); err != nil {
		return settled(err)
	}
	fold := j.writer.Fold()
	if fold.CancelRequested && fold.Intent == nil {
		return w.conclude(ctx, j, w.backOut(ctx, j, events.ErrCancelRequested))
	}
	if fold.Unapproved() { // the worker that ran it was lost before it could ask
		return w.conclude(ctx, j, j.writer.Append(ctx, events.TypeAwaitingApproval, events.Data{Changed: fold.Changed}))
	}
	return w.conclude(ctx, j, w.apply(ctx, j))
}

// apply brings what a claimed plan changed to its original. From the intent on it is
// finished or undone by whoever holds the plan; a cancel no longer counts.
func (w *Worker) apply(ctx context.Context, j *job) error {
	t, err := w.resolve(ctx, j.plan)
	if err != nil {
		return err
	}
	if t.path == "" {
		return w.applyPush(ctx, j)
	}
	if err := w.checkWritable(j, t); err != nil {
		return err
	}
	unlock, err := w.lockPath(ctx, t.path, true)
	if err != nil {
		return err
	}
	defer unlock()
	if t.info.Kind == gitrepo.KindBare {
		return w.applyBare(ctx, j, t)
	}
	s, repo, err := w.openOriginal(ctx, t)
	if err != nil {
		return err
	}
	defer s.Close()
	done, err := w.recoverApply(ctx, j, s)
	switch {
	case done || err != nil:
	case commits(j.plan):
		err = w.applyCommit(ctx, j, s, repo)
	default:
		err = w.applyFresh(ctx, j, s, t)
	}
	j.tidy = err == nil
	return err
}

// tidyOriginal takes away what a lost worker left in the original of a plan that has ended: a stage that was
// never used, or the journal of a change that is recorded. Whoever holds the lock does the same, so it is not waited for
// long; what is half made stays for the next apply.
func (w *Worker) tidyOriginal(ctx context.Context, j *job) {
	if fold := j.writer.Fold(); j.tidy || !fold.Executed || fold.Strategy == string(plan.InPlace) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	if err := w.settleOriginal(ctx, j); err != nil {
		w.log.Warn().Err(err).Str("plan", j.id).Msg("look for what an apply left")
	}
}

func (w *Worker) settleOriginal(ctx context.Context, j *job) error {
	var err error
	if j.plan == nil {
		if j.plan, err = w.body(ctx, j.id); err != nil {
			return err
		}
	}
	t, err := w.resolve(ctx, j.plan)
	var refused *refusal
	if errors.As(err, &refused) || err == nil && t.path == "" {
		return nil // nothing of it is here any more
	}
	if err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(t.path, layer.JournalDir)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	unlock, err := w.lockPath(ctx, t.path, true)
	if err != nil {
		return err
	}
	defer unlock()
	s, _, err := w.openOriginal(ctx, t) // which takes an unused stage away
	if err != nil {
		return err
	}
	p, pending := s.Pending()
	id, undo := journalled(p.Plan)
	if fold := j.writer.Fold(); !pending || !p.Done || id != j.id || fold.State != events.StateApplied || undo != fold.Undone {
		return s.Close()
	}
	if _, err := s.Recover(ctx, applier.Forward); err != nil {
		return errors.Join(err, s.Close())
	}
	return errors.Join(s.Finish(ctx), s.Close())
}

// recoverApply settles what a killed worker left in the original. done means that this
// plan's change turned out to be made, and was recorded.
func (w *Worker) recoverApply(ctx context.Context, j *job, s *applier.Session) (done bool, err error) {
	p, pending := s.Pending()
	if !pending {
		return false, nil
	}
	direction := applier.Forward
	other, undo := journalled(p.Plan)
	if p.Plan != j.id {
		if direction, err = w.directionOf(ctx, other, undo); err != nil {
			return false, err
		}
	}
	ctx = context.WithoutCancel(ctx)
	outcome, err := s.Recover(ctx, direction)
	var blocked *applier.Blocked
	if errors.As(err, &blocked) && p.Plan == j.id {
		return true, j.conflict(ctx, events.TypeConflict, events.Data{Code: "half_applied", Error: err.Error()}, append(blocked.Forward, blocked.Back...))
	}
	if errors.As(err, &blocked) {
		return false, refuse("half_applied", "apply or undo of plan %s was interrupted here, and %v: put one of these paths back as it was, then submit this plan again", other, blocked)
	}
	if err != nil && p.Plan == j.id {
		err = fmt.Errorf("%w: %w", errUnsettled, err)
	}
	if err != nil {
		return false, err
	}
	if outcome == applier.Undone {
		return false, nil
	}
	if p.Plan == j.id {
		if err := w.recordRecovered(ctx, j); err != nil {
			return false, err
		}
		return true, s.Finish(ctx)
	}
	if undo {
		return false, w.recordUndoFor(ctx, other, s)
	}
	return false, w.recordFor(ctx, p.Plan, s)
}

// directionOf says whether another plan's interrupted apply, or undo, may still be completed.
func (w *Worker) directionOf(ctx context.Context, planID string, undo bool) (applier.Direction, error) {
	last, err := w.fleet.Log.Last(ctx, planID)
	if errors.Is(err, events.ErrNotFound) {
		return applier.Back, nil
	}
	if err != nil {
		return applier.Back, err
	}
	f := last.Event.Data.Plan
	if undo {
		return directionOfUndo(f), nil
	}
	if f != nil && (f.State == events.StateApplied || !f.Final() && f.Intent != nil) {
		return applier.Forward, nil
	}
	return applier.Back, nil
}

// recordFor completes another plan, whose change is made, before this one looks at the original.
func (w *Worker) recordFor(ctx context.Context, planID string, s *applier.Session) error {
	other := &job{id: planID}
	var err error
	if other.writer, err = events.OpenWriter(ctx, w.fleet.Log, planID, "/worker/"+w.cfg.Name); err != nil {
		return err
	}
	if !other.writer.Fold().Final() {
		err := other.writer.Claim(ctx, events.Data{Worker: w.cfg.Name, Host: w.cfg.HostID, Source: events.SourceCheckpoint})
		if errors.Is(err, events.ErrFenced) || errors.Is(err, events.ErrFinal) {
			return fmt.Errorf("%w: plan %s recovers its own apply", errAgain, planID)
		}
		if err != nil {
			return err
		}
		if err := w.recordRecovered(ctx, other); err != nil {
			return err
		}
	}
	if err := s.Finish(ctx); err != nil {
		return err
	}
	return fmt.Errorf("%w: the interrupted apply of plan %s was completed first", errAgain, planID)
}

var (
	// errAgain: another plan's interrupted apply came first; this one has to look at the original anew.
	errAgain = errors.New("apply again")
	// errUnsettled: the original may be half changed, so the plan cannot end before it is recovered.
	errUnsettled = errors.New("worker: interrupted apply is not recovered")
)

// applyFresh checks, stages and makes the change.
func (w *Worker) applyFresh(ctx context.Context, j *job, s *applier.Session, t *target) error {
	req, release, err := w.applyRequest(ctx, j, t)
	if err != nil {
		return err
	}
	defer release()
	preview, found, err := s.Check(ctx, req)
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return j.conflict(ctx, events.TypeConflict, events.Data{Code: "conflict", Error: summary(found)}, found)
	}
	fault.At("worker.checked")
	if err := s.Stage(ctx, preview); err != nil {
		return err
	}
	fault.At("worker.staged")
	pre, err := w.preApply(ctx, j, s, preview)
	if err != nil {
		return err
	}
	fault.At("worker.pre-apply")
	if err := j.writer.Append(ctx, events.TypeApplyIntent, events.Data{Checkpoint: executor.Ref(pre, len(j.plan.Steps))}); err != nil {
		return err
	}
	return w.commit(context.WithoutCancel(ctx), j, s, len(preview.Steps))
}

// commit makes the staged change and records how it went; nothing may interrupt it now.
func (w *Worker) commit(ctx context.Context, j *job, s *applier.Session, changed int) error {
	err := s.Commit(ctx)
	fault.At("worker.committed")
	if _, pending := s.Pending(); pending {
		return fmt.Errorf("%w: %w", errUnsettled, err)
	}
	var late *applier.LateConflict
	if errors.As(err, &late) {
		found := []applier.Conflict{late.Conflict}
		return j.conflict(ctx, events.TypeConflict, events.Data{Code: "conflict", Error: summary(found)}, found)
	}
	if err != nil {
		return err
	}
	if err := j.end(ctx, events.TypeApplied, events.Data{Changed: &changed}); err != nil {
		return err // the journal stays: it says that the change is made
	}
	return s.Finish(ctx)
}

// applyRequest is the plan's difference and where its bytes lie, until release.
func (w *Worker) applyRequest(ctx context.Context, j *job, t *target) (req applier.Request, release func(), err error) {
	cp := j.writer.Fold().Checkpoint
	if cp == nil || cp.Phase != events.PhasePostExecute {
		return req, nil, fmt.Errorf("worker: apply plan %q: %w", j.id, checkpoint.ErrNotFound)
	}
	r, release, err := w.restoreChanges(ctx, j, cp.ID)
	if err != nil {
		return req, nil, err
	}
	delta, err := checkpoint.GetDelta(ctx, w.fleet.Store, r.Delta)
	if err != nil {
		release()
		return req, nil, err
	}
	req = applier.Request{
		Plan: j.id, Epoch: j.writer.Epoch(), Git: isGit(t.info), Checkout: j.plan.Strategy == plan.GitWorktree,
		AllowSpecial: j.plan.AllowSpecial,
		Changes:      delta.Changes, Content: layer.NewTree(r.Chain),
	}
	if req.Git {
		req.Merge = w.mergeFunc(t, r)
	}
	return req, release, nil
}

// restoreChanges restores a checkpoint as far as an apply needs it, which is less than all on a live base.
func (w *Worker) restoreChanges(ctx context.Context, j *job, id string) (checkpoint.Restored, func(), error) {
	if j.plan.Base != plan.BaseLive {
		return w.restore(ctx, id)
	}
	r, err := w.cps.RestoreChanges(ctx, id)
	return r, r.Release, err
}

// preApply keeps the bytes that are about to be replaced, and how to take the staged change back, stored before anything
// is touched.
func (w *Worker) preApply(ctx context.Context, j *job, s *applier.Session, p applier.Preview) (checkpoint.Checkpoint, error) {
	inverse, err := s.Inverse(p)
	if err != nil {
		return checkpoint.Checkpoint{}, err
	}
	delta, err := checkpoint.PutDelta(ctx, w.fleet.Store, checkpoint.Delta{Changes: inverse})
	if err != nil {
		return checkpoint.Checkpoint{}, err
	}
	replaced, err := w.cache.Build(func(b *layer.Builder) error { return keep(b, s, p) })
	if err != nil {
		return checkpoint.Checkpoint{}, fmt.Errorf("worker: keep what plan %q replaces: %w", j.id, err)
	}
	cp := w.cps.Keep(replaced, checkpoint.Checkpoint{PlanID: j.id, Phase: checkpoint.PreApply, Delta: delta})
	return w.cps.Store(ctx, cp.ID)
}

func keep(b *layer.Builder, s *applier.Session, p applier.Preview) error {
	for _, e := range p.Replaced {
		var content io.ReadCloser
		if e.Type == layer.File {
			var err error
			if content, err = s.OpenOriginal(e.Path); err != nil {
				return err
			}
		}
		err := b.Put(e, content)
		if content != nil {
			content.Close()
		}
		if err != nil {
			return err
		}
	}
	added := map[layer.Path]bool{}
	for _, e := range p.Replaced {
		added[e.Path] = e.Type != layer.Dir // what a plan put below it goes when it comes back
	}
	for _, step := range p.Steps {
		if step.Action != applier.Add {
			continue
		}
		added[step.Path] = true
		if added[layer.Path(path.Dir(string(step.Path)))] {
			continue // gone with its directory
		}
		if err := b.Remove(step.Path); err != nil {
			return err
		}
	}
	return nil
}

// applicable counts what apply brings of a difference: in a git work tree all but git's own files.
func (j *job) applicable(changes []layer.Change) int {
	n := 0
	for _, c := range changes {
		if !j.git || j.plan.Strategy == plan.InPlace || c.Path != ".git" && !strings.HasPrefix(string(c.Path), ".git/") {
			n++
		}
	}
	return n
}
