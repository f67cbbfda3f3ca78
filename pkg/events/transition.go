package events

import (
	"fmt"
	"slices"
	"time"

	"github.com/warmfleet/warmfleet/internal/fault"
)

// rule says when an event of a type may follow.
type rule struct {
	from   []string // states it may follow
	holder bool     // only the holder of the current epoch may write it
	free   bool     // only while nobody holds the plan, unless the writer is the holder
	cancel bool     // refused once a cancel was requested: the holder must append cancelled
	// ready names what else must hold; "" means it does.
	ready func(f Fold, d Data) string
}

// Next returns the state after an event of the type with the data. It is pure: the same input gives
// the same output, the time of acceptance comes with the data. Errors: TransitionError (ErrTransition),
// ErrFinal, ErrFenced when d.Epoch is not the current one and the type needs it, ErrCancelRequested.
func (f Fold) Next(typ string, d Data) (Fold, error) {
	if afterEnd(typ) || typ == TypeConflictPart && f.Undoing {
		return f.undo(typ, d)
	}
	r, ok := ruleFor(typ)
	if !ok {
		return f, &TransitionError{State: f.State, Type: typ, Why: "unknown type"}
	}
	if typ == TypeRolledBack && d.Epoch == 0 {
		return f.undone(d)
	}
	if f.Final() {
		return f, fmt.Errorf("event %q after %s: %w", typ, f.State, ErrFinal)
	}
	if !slices.Contains(r.from, f.State) {
		return f, &TransitionError{State: f.State, Type: typ, Why: "not from this state"}
	}
	if (r.holder || r.free && f.Held) && d.Epoch != f.Epoch && !fault.Off("events.epoch") {
		return f, fmt.Errorf("event %q of epoch %d, the plan is at epoch %d: %w", typ, d.Epoch, f.Epoch, ErrFenced)
	}
	if r.cancel && f.CancelRequested {
		return f, fmt.Errorf("event %q: %w", typ, ErrCancelRequested)
	}
	if r.ready != nil {
		if why := r.ready(f, d); why != "" {
			return f, &TransitionError{State: f.State, Type: typ, Why: why}
		}
	}
	return f.effect(typ, d).bounded(), nil
}

// undone is rolled_back by someone who is no holder: checkpoint rollback and plan undo, also after the end.
func (f Fold) undone(d Data) (Fold, error) {
	if f.State == "" {
		return f, &TransitionError{State: f.State, Type: TypeRolledBack, Why: "no such plan"}
	}
	if d.Reason == ReasonUndo {
		if f.State != StateApplied || f.Undone {
			return f, &TransitionError{State: f.State, Type: TypeRolledBack, Why: "only an applied plan can be undone, once"}
		}
		f.Undone, f.Undoing = true, false
		if d.RolledBack != "" {
			f.RolledBack = d.RolledBack
		}
	}
	return f.bounded(), nil
}

// afterEnd tells the facts that are only about plans that were applied.
func afterEnd(typ string) bool { return typ == TypeUndoRequested || typ == TypeUndoFailed }

// undo is a fact on the way of taking an applied change back. The plan stays applied whatever comes of it.
func (f Fold) undo(typ string, d Data) (Fold, error) {
	why := ""
	switch {
	case f.State != StateApplied:
		why = "only an applied plan can be undone"
	case f.Undone:
		why = "it is undone already"
	case typ == TypeUndoRequested:
		why = unless(!f.Undoing, "an undo was requested already")
	default:
		why = unless(f.Undoing, "no undo was requested")
	}
	if why != "" {
		return f, &TransitionError{State: f.State, Type: typ, Why: why}
	}
	if typ != TypeConflictPart {
		f.Undoing = typ == TypeUndoRequested
	}
	return f.bounded(), nil
}

// ReasonUndo is the reason of a rolled_back event that took an applied change back.
const ReasonUndo = "undo"

func ruleFor(typ string) (rule, bool) {
	notHeld := []string{StateAccepted, StateWaiting}
	held := []string{StateRunning, StateApplying}
	open := []string{StateAccepted, StateWaiting, StateRunning, StateAwaitingApproval, StateApplying}
	switch typ {
	case TypeAccepted:
		return rule{from: []string{""}, ready: needsPlan}, true
	case TypeRejected:
		return rule{from: []string{"", StateAccepted, StateWaiting, StateAwaitingApproval}}, true
	case TypeWaiting:
		return rule{from: notHeld}, true
	case TypeClaimed:
		return rule{from: append(notHeld, held...), ready: newEpoch}, true
	case TypeStepStarted:
		return rule{from: []string{StateRunning}, holder: true, cancel: true, ready: stepOpen}, true
	case TypeStepFinished:
		return rule{from: []string{StateRunning}, holder: true, ready: stepOpen}, true
	case TypeRolledBack:
		return rule{from: held, holder: true}, true
	case TypeCheckpointed:
		return rule{from: open, holder: true, ready: hasCheckpoint}, true
	case TypeExecuted:
		return rule{from: []string{StateRunning}, holder: true, cancel: true, ready: notExecuted}, true
	case TypeAwaitingApproval:
		return rule{from: []string{StateRunning}, holder: true, cancel: true, ready: isManual}, true
	case TypeApproved:
		return rule{from: []string{StateAwaitingApproval}, cancel: true}, true
	case TypeApplyIntent:
		return rule{from: []string{StateApplying}, holder: true, cancel: true, ready: noIntent}, true
	case TypeApplied:
		return rule{from: held, holder: true, cancel: true, ready: mayApply}, true
	case TypeConflict:
		return rule{from: held, holder: true, ready: isExecuted}, true
	case TypeConflictPart:
		return rule{from: held, holder: true, ready: isExecuted}, true
	case TypeFailed, TypeRetrying, TypeInterrupted:
		return rule{from: held, holder: true}, true
	case TypeCancelRequested:
		return rule{from: open, ready: mayCancel}, true
	case TypeCancelled:
		return rule{from: open, free: true, ready: beforeIntent}, true
	case TypeExpired:
		return rule{from: open, free: true, ready: beforeIntent}, true
	case TypeDead:
		return rule{from: open, ready: beforeIntent}, true
	}
	return rule{}, false
}

func needsPlan(_ Fold, d Data) string { return unless(d.Plan != nil, "the plan's facts are missing") }
func newEpoch(f Fold, d Data) string  { return unless(d.Epoch == f.Epoch+1, "not the next epoch") }
func isManual(f Fold, _ Data) string {
	return unless(f.Apply == ApplyManual, "the plan does not ask for approval")
}
func notExecuted(f Fold, _ Data) string { return unless(!f.Executed, "it is executed already") }
func isExecuted(f Fold, _ Data) string  { return unless(f.Executed, "it is not executed yet") }
func hasCheckpoint(_ Fold, d Data) string {
	return unless(d.Checkpoint != nil, "no checkpoint in it")
}

func beforeIntent(f Fold, _ Data) string {
	return unless(f.Intent == nil, "the apply has begun")
}

func stepOpen(f Fold, d Data) string {
	return unless(!f.Executed && d.StepIndex != nil && *d.StepIndex >= 0, "it needs a step_index and a plan that is not executed")
}

func mayCancel(f Fold, d Data) string {
	return beforeIntent(f, d) + unless(!f.CancelRequested, "cancel was requested already")
}

// noIntent allows a second intent to a later claim only, whose holder found the first one undone; and with another commit, to a
// holder that found the branch moved, so that the first commit came to nothing.
func noIntent(f Fold, d Data) string {
	if f.Unapproved() {
		return "nobody approved it"
	}
	fresh := f.Intent == nil || f.Intent.Epoch < d.Epoch || d.Commit != "" && f.Intent.Commit != "" && f.Intent.Commit != d.Commit
	return unless(f.Executed && fresh, "the intent is there already")
}

// mayApply: after the intent; or with nothing to change; or in place, where the steps changed the original.
func mayApply(f Fold, d Data) string {
	if f.Intent != nil {
		return ""
	}
	empty := d.Changed != nil && *d.Changed == 0
	return unless((empty || f.Strategy == strategyNone) && f.Apply != ApplyNever, "no apply_intent before it")
}

func unless(ok bool, why string) string {
	if ok {
		return ""
	}
	return why
}

// effect returns the fold changed by an event that may follow.
func (f Fold) effect(typ string, d Data) Fold {
	switch typ {
	case TypeAccepted:
		f = accepted(d)
	case TypeWaiting:
		f.State, f.Reason = StateWaiting, d.Reason
	case TypeClaimed:
		f = f.claimed(d)
	case TypeStepStarted:
		f.Cursor, f.Step = *d.StepIndex, d.Step
	case TypeStepFinished:
		f.Cursor, f.ExitCode = *d.StepIndex+1, d.ExitCode
	case TypeRolledBack:
		if d.StepIndex != nil && !f.Executed {
			f.Cursor = *d.StepIndex
		}
	case TypeExecuted:
		f = f.executed()
	case TypeAwaitingApproval:
		f.State, f.Executed, f.Held = StateAwaitingApproval, true, false
	case TypeApproved:
		f.State, f.Approved, f.ApprovedBy = StateApplying, true, d.By
	case TypeApplyIntent:
		f.Intent = &Intent{Epoch: d.Epoch, Commit: d.Commit}
		if d.Checkpoint != nil {
			f.Intent.Checkpoint = d.Checkpoint.ID
		}
	case TypeRetrying, TypeInterrupted:
		if d.Step == "" {
			f.State, f.Held, f.Reason = StateWaiting, false, d.Reason
		}
	case TypeCancelRequested:
		f.CancelRequested = true
	case TypeRejected, TypeApplied, TypeConflict, TypeFailed, TypeCancelled, TypeExpired, TypeDead:
		f.State = typ // the final states bear the names of their events
	}
	return f.outcome(typ, d)
}

// outcome takes over what any event may say: a portable checkpoint, an error, what changed.
func (f Fold) outcome(typ string, d Data) Fold {
	if c := d.Checkpoint; c != nil && c.kept() && c.resumable() && (f.Checkpoint == nil || c.Cursor >= f.Checkpoint.Cursor) {
		f.Checkpoint = &FoldCheckpoint{ID: c.ID, Phase: c.Phase, Cursor: c.Cursor, Object: c.Object}
	}
	if d.Changed != nil {
		n := *d.Changed
		f.Changed = &n
	}
	if d.Base != "" {
		f.Base = d.Base
	}
	if !f.Final() {
		return f
	}
	f.Held = false
	f.Error, f.Code, f.Reason = d.Error, d.Code, d.Reason
	if d.RolledBack != "" {
		f.RolledBack = d.RolledBack
	}
	if typ == TypeFailed {
		f.ExitCode = d.ExitCode
	}
	return f
}

// kept tells whether the store has what is to be known of a checkpoint: all of it, or what it changed of a live base
// once there is no more to run.
func (c CheckpointRef) kept() bool { return c.Portable || c.Live && c.Phase == PhasePostExecute }

func (c CheckpointRef) resumable() bool {
	return c.Phase == PhasePreExecute || c.Phase == PhaseStep || c.Phase == PhasePostExecute
}

func accepted(d Data) Fold {
	p := d.Plan
	f := Fold{
		State: StateAccepted, Name: p.Name, Strategy: p.Strategy, Apply: p.Apply, Resource: p.Resource, Pool: p.Pool, Class: p.Class,
		Key: p.Key, MaxAttempts: p.MaxAttempts, Created: p.Created, ExpiresAt: p.ExpiresAt, RetryOf: d.RetryOf, BodyDigest: p.BodyDigest,
	}
	f.Created = f.Created.Truncate(time.Millisecond)
	f.ExpiresAt = f.ExpiresAt.Truncate(time.Millisecond)
	return f
}

func (f Fold) claimed(d Data) Fold {
	if f.Held {
		f.Losses++
	}
	f.Epoch, f.Worker, f.Host, f.Held, f.Reason = d.Epoch, d.Worker, d.Host, true, ""
	if f.Executed {
		f.State = StateApplying
		if f.Unapproved() {
			f.State = StateRunning // its holder was lost before it could ask
		}
		return f
	}
	f.State, f.Attempt, f.Step, f.ExitCode = StateRunning, f.Attempt+1, "", nil
	f.Cursor = 0
	if d.Source == SourceCheckpoint && f.Checkpoint != nil {
		f.Cursor = f.Checkpoint.Cursor
	}
	if d.Strategy != "" {
		f.Strategy = d.Strategy
	}
	return f
}

func (f Fold) executed() Fold {
	f.Executed = true
	switch f.Apply {
	case ApplyNever:
		f.State = StateExecuted
	case ApplyAuto:
		f.State = StateApplying
	}
	return f
}
