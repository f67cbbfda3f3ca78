package events_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/pkg/events"
)

func ptr[T any](v T) *T { return &v }

// step is one event of a life of a plan, and the state or the error it must lead to.
type step struct {
	typ  string
	d    events.Data
	want string // state, "" for the state before
	err  error
}

func accept(apply string) step {
	return step{events.TypeAccepted, events.Data{Plan: &events.Fold{Apply: apply, Strategy: "copy_on_write", MaxAttempts: 3}}, events.StateAccepted, nil}
}

func claim(epoch uint64) step {
	return step{events.TypeClaimed, events.Data{Epoch: epoch, Worker: fmt.Sprintf("w%d", epoch)}, events.StateRunning, nil}
}

func start(epoch uint64, index int) step {
	return step{events.TypeStepStarted, events.Data{Epoch: epoch, StepIndex: &index, Step: "s"}, events.StateRunning, nil}
}

func finish(epoch uint64, index int) step {
	return step{events.TypeStepFinished, events.Data{Epoch: epoch, StepIndex: &index, Step: "s", ExitCode: ptr(0)}, events.StateRunning, nil}
}

func fact(typ string, epoch uint64, want string) step {
	return step{typ, events.Data{Epoch: epoch}, want, nil}
}

func commitIntent(epoch uint64, commit string) step {
	return step{events.TypeApplyIntent, events.Data{Epoch: epoch, Commit: commit}, events.StateApplying, nil}
}

func refuse(typ string, epoch uint64, err error) step {
	return step{typ, events.Data{Epoch: epoch, StepIndex: ptr(0), Plan: &events.Fold{}, Checkpoint: &events.CheckpointRef{}}, "", err}
}

func checkpoint(epoch uint64, phase string, cursor int, portable bool) step {
	return step{typ: events.TypeCheckpointed, d: events.Data{Epoch: epoch, Checkpoint: &events.CheckpointRef{
		ID: fmt.Sprintf("%s-%d", phase, cursor), Phase: phase, Cursor: cursor, Portable: portable,
	}}}
}

func run(t *testing.T, steps []step) events.Fold {
	t.Helper()
	var f events.Fold
	for i, s := range steps {
		next, err := f.Next(s.typ, s.d)
		if !errors.Is(err, s.err) || (s.err == nil && err != nil) {
			t.Fatalf("event %d %s: error %v, want %v", i, s.typ, err, s.err)
		}
		want := s.want
		if want == "" {
			want = f.State
		}
		if err == nil && next.State != want {
			t.Fatalf("event %d %s: state %q, want %q", i, s.typ, next.State, want)
		}
		if err == nil {
			f = next
		}
	}
	return f
}

func TestFold_Next(t *testing.T) {
	executed := []step{accept(events.ApplyAuto), claim(1), start(1, 0), finish(1, 0), fact(events.TypeExecuted, 1, events.StateApplying)}
	intent := append(executed[:len(executed):len(executed)], fact(events.TypeApplyIntent, 1, events.StateApplying))
	applied := append(intent[:len(intent):len(intent)], fact(events.TypeApplied, 1, events.StateApplied))
	awaiting := []step{accept(events.ApplyManual), claim(1), start(1, 0), finish(1, 0), fact(events.TypeAwaitingApproval, 1, events.StateAwaitingApproval)}
	with := func(head []step, tail ...step) []step { return append(head[:len(head):len(head)], tail...) }
	applyClaim := step{events.TypeClaimed, events.Data{Epoch: 2, Worker: "w2"}, events.StateApplying, nil}
	empty := step{events.TypeApplied, events.Data{Epoch: 1, Changed: ptr(0)}, events.StateApplied, nil}
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{"NeverIsFinalWhenExecuted", []step{accept(events.ApplyNever), claim(1), fact(events.TypeExecuted, 1, events.StateExecuted), refuse(events.TypeApplied, 1, events.ErrFinal)}},
		{"Auto", with(intent, fact(events.TypeApplied, 1, events.StateApplied))},
		{"AutoAppliedByAnotherClaim", with(executed, applyClaim, fact(events.TypeApplyIntent, 2, events.StateApplying), fact(events.TypeApplied, 2, events.StateApplied))},
		{"IntentTakenOver", with(intent, applyClaim, refuse(events.TypeApplied, 1, events.ErrFenced), fact(events.TypeApplied, 2, events.StateApplied))},
		{"SecondIntentOnlyOfAnotherClaim", with(intent, refuse(events.TypeApplyIntent, 1, events.ErrTransition), applyClaim, fact(events.TypeApplyIntent, 2, events.StateApplying))},
		{"SecondIntentOfAnotherCommit", with(executed, commitIntent(1, "c1"), step{events.TypeApplyIntent, events.Data{Epoch: 1, Commit: "c1"}, "", events.ErrTransition},
			refuse(events.TypeApplyIntent, 1, events.ErrTransition), commitIntent(1, "c2"), fact(events.TypeApplied, 1, events.StateApplied))},
		{"Manual", with(awaiting, fact(events.TypeApproved, 0, events.StateApplying), applyClaim, fact(events.TypeApplyIntent, 2, events.StateApplying), fact(events.TypeApplied, 2, events.StateApplied))},
		{"NoClaimWhileAwaitingApproval", with(awaiting, refuse(events.TypeClaimed, 2, events.ErrTransition))},
		{"ApprovedOnce", with(awaiting, fact(events.TypeApproved, 0, events.StateApplying), refuse(events.TypeApproved, 0, events.ErrTransition), refuse(events.TypeRejected, 0, events.ErrTransition))},
		{"RejectedByUser", with(awaiting, fact(events.TypeRejected, 0, events.StateRejected), refuse(events.TypeApproved, 0, events.ErrFinal))},
		{"AutoAsksNobody", []step{accept(events.ApplyAuto), claim(1), refuse(events.TypeAwaitingApproval, 1, events.ErrTransition)}},
		{"EmptyDeltaIsAppliedAtOnce", []step{accept(events.ApplyManual), claim(1), empty}},
		{"NeverIsNotApplied", []step{accept(events.ApplyNever), claim(1), refuse(events.TypeApplied, 1, events.ErrTransition)}},
		{"NothingAppliedWithoutIntent", with(executed, refuse(events.TypeApplied, 1, events.ErrTransition))},
		{"NoIntentBeforeExecuted", []step{accept(events.ApplyAuto), claim(1), refuse(events.TypeApplyIntent, 1, events.ErrTransition)}},
		{"Conflict", with(executed, fact(events.TypeConflict, 1, events.StateConflict))},
		{"LateConflict", with(intent, fact(events.TypeConflict, 1, events.StateConflict))},
		{"CancelWhileQueued", []step{accept(""), fact(events.TypeCancelled, 0, events.StateCancelled), refuse(events.TypeClaimed, 1, events.ErrFinal)}},
		{"CancelRunning", []step{
			accept(events.ApplyAuto), claim(1), refuse(events.TypeCancelled, 0, events.ErrFenced), fact(events.TypeCancelRequested, 0, ""),
			refuse(events.TypeCancelRequested, 0, events.ErrTransition), refuse(events.TypeStepStarted, 1, events.ErrCancelRequested),
			refuse(events.TypeExecuted, 1, events.ErrCancelRequested), fact(events.TypeCancelled, 1, events.StateCancelled),
		}},
		{"CancelBeforeIntent", with(executed, fact(events.TypeCancelRequested, 0, ""), refuse(events.TypeApplyIntent, 1, events.ErrCancelRequested), fact(events.TypeCancelled, 1, events.StateCancelled))},
		{"CancelBeforeEmptyDelta", []step{
			accept(events.ApplyManual), claim(1), fact(events.TypeCancelRequested, 0, ""),
			{events.TypeApplied, events.Data{Epoch: 1, Changed: ptr(0)}, "", events.ErrCancelRequested},
			fact(events.TypeCancelled, 1, events.StateCancelled),
		}},
		{"LostBeforeItAsked", []step{
			accept(events.ApplyManual), claim(1), fact(events.TypeExecuted, 1, events.StateRunning), claim(2),
			refuse(events.TypeApplyIntent, 2, events.ErrTransition), fact(events.TypeAwaitingApproval, 2, events.StateAwaitingApproval),
			fact(events.TypeApproved, 0, events.StateApplying),
			{events.TypeClaimed, events.Data{Epoch: 3, Worker: "w3"}, events.StateApplying, nil},
			fact(events.TypeApplyIntent, 3, events.StateApplying),
		}},
		{"NoCancelAfterIntent", with(intent, refuse(events.TypeCancelRequested, 0, events.ErrTransition), refuse(events.TypeCancelled, 1, events.ErrTransition))},
		{"CancelWhileAwaiting", with(awaiting, fact(events.TypeCancelled, 0, events.StateCancelled))},
		{"CancelAfterApproval", with(awaiting, fact(events.TypeApproved, 0, events.StateApplying), fact(events.TypeCancelled, 0, events.StateCancelled))},
		{"ExpiredWhileQueued", []step{accept(""), fact(events.TypeWaiting, 0, events.StateWaiting), fact(events.TypeExpired, 0, events.StateExpired)}},
		{"RunningDoesNotExpire", []step{accept(""), claim(1), refuse(events.TypeExpired, 0, events.ErrFenced)}},
		{"RejectedAtOnce", []step{fact(events.TypeRejected, 0, events.StateRejected), refuse(events.TypeAccepted, 0, events.ErrFinal)}},
		{"RejectedAtAdmission", []step{accept(""), fact(events.TypeRejected, 0, events.StateRejected)}},
		{"RunningIsNotRejected", []step{accept(""), claim(1), refuse(events.TypeRejected, 0, events.ErrTransition)}},
		{"AcceptedOnce", []step{accept(""), refuse(events.TypeAccepted, 0, events.ErrTransition)}},
		{"Interrupted", []step{accept(""), claim(1), fact(events.TypeInterrupted, 1, events.StateWaiting), refuse(events.TypeStepStarted, 1, events.ErrTransition), claim(2)}},
		{"FailedByHolderOnly", []step{accept(""), refuse(events.TypeFailed, 0, events.ErrTransition), claim(1), refuse(events.TypeFailed, 0, events.ErrFenced), fact(events.TypeFailed, 1, events.StateFailed)}},
		{"OldEpoch", []step{accept(""), claim(1), claim(2), refuse(events.TypeStepStarted, 1, events.ErrFenced), start(2, 0)}},
		{"NextEpochOnly", []step{accept(""), refuse(events.TypeClaimed, 0, events.ErrTransition), refuse(events.TypeClaimed, 2, events.ErrTransition), claim(1)}},
		{"DeadAfterLoss", []step{accept(""), claim(1), fact(events.TypeDead, 0, events.StateDead)}},
		{"DeadNotAfterIntent", with(intent, refuse(events.TypeDead, 0, events.ErrTransition))},
		{"Unknown", []step{refuse("frobbed", 0, events.ErrTransition)}},
		{"Undo", with(applied, step{events.TypeRolledBack, events.Data{Reason: events.ReasonUndo}, events.StateApplied, nil}, step{events.TypeRolledBack, events.Data{Reason: events.ReasonUndo}, "", events.ErrTransition})},
		{"UndoFailsAndIsAskedAgain", with(applied,
			refuse(events.TypeUndoFailed, 0, events.ErrTransition), refuse(events.TypeConflictPart, 0, events.ErrFinal),
			fact(events.TypeUndoRequested, 0, events.StateApplied), refuse(events.TypeUndoRequested, 0, events.ErrTransition),
			fact(events.TypeConflictPart, 0, events.StateApplied), fact(events.TypeUndoFailed, 0, events.StateApplied),
			fact(events.TypeUndoRequested, 0, events.StateApplied), step{events.TypeRolledBack, events.Data{Reason: events.ReasonUndo}, events.StateApplied, nil},
			refuse(events.TypeUndoRequested, 0, events.ErrTransition), refuse(events.TypeUndoFailed, 0, events.ErrTransition))},
		{"UndoOfAppliedOnly", with(intent, refuse(events.TypeUndoRequested, 0, events.ErrTransition), fact(events.TypeConflictPart, 1, events.StateApplying),
			fact(events.TypeConflict, 1, events.StateConflict), refuse(events.TypeUndoRequested, 0, events.ErrTransition))},
		{"ConflictPartByHolderOnly", with(intent, refuse(events.TypeConflictPart, 0, events.ErrFenced))},
	} {
		t.Run(test.name, func(t *testing.T) { run(t, test.steps) })
	}
}

func TestFold_NoneIsAppliedWithoutIntent(t *testing.T) {
	a := accept(events.ApplyAuto)
	a.d.Plan.Strategy = "none"
	f := run(t, []step{a, claim(1), start(1, 0), finish(1, 0), {events.TypeApplied, events.Data{Epoch: 1, Changed: ptr(4)}, events.StateApplied, nil}})
	if f.Changed == nil || *f.Changed != 4 {
		t.Errorf("changed %v, want 4", f.Changed)
	}
}

func TestFold_ResumesAfterLastPortableCheckpoint(t *testing.T) {
	f := run(t, []step{
		accept(events.ApplyAuto), claim(1), start(1, 0), finish(1, 0), checkpoint(1, events.PhaseStep, 1, true),
		start(1, 1), finish(1, 1), checkpoint(1, events.PhaseStep, 2, false), start(1, 2),
	})
	if f.Checkpoint == nil || f.Checkpoint.Cursor != 1 || f.Cursor != 2 {
		t.Fatalf("cursor %d, checkpoint %+v", f.Cursor, f.Checkpoint)
	}
	resumed, err := f.Next(events.TypeClaimed, events.Data{Epoch: 2, Worker: "b", Source: events.SourceCheckpoint})
	if err != nil {
		t.Fatal(err)
	}
	if resumed.Cursor != 1 || resumed.Attempt != 2 || resumed.Losses != 1 || resumed.Worker != "b" {
		t.Errorf("after take-over: %+v", resumed)
	}
	again, err := f.Next(events.TypeClaimed, events.Data{Epoch: 2, Source: "cold"})
	if err != nil || again.Cursor != 0 {
		t.Errorf("from the start: cursor %d, %v", again.Cursor, err)
	}
	// An upload that ends late doesn't take the plan back.
	late, err := resumed.Next(events.TypeCheckpointed, checkpoint(2, events.PhaseStep, 0, true).d)
	if err != nil || late.Checkpoint.Cursor != 1 {
		t.Errorf("checkpoint %+v, %v", late.Checkpoint, err)
	}
}

func TestFold_ExhaustedCountsLossesOnly(t *testing.T) {
	f := run(t, []step{accept("")})
	epoch := uint64(0)
	next := func(typ string) {
		t.Helper()
		if typ == events.TypeClaimed {
			epoch++
		}
		var err error
		if f, err = f.Next(typ, events.Data{Epoch: epoch}); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 { // gentle hand-overs are no crashes: case H2
		next(events.TypeClaimed)
		next(events.TypeInterrupted)
	}
	for i, want := range []bool{false, false, true} {
		next(events.TypeClaimed)
		if got := f.Exhausted(); got != want {
			t.Errorf("exhausted after claim %d without a word: %v, want %v", i+1, got, want)
		}
	}
}

// hostile fills every field of a value with the worst: long texts that grow when escaped, extreme numbers.
func hostile(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(strings.Repeat("\x00\xff\"<\u2028é", 4000))
	case reflect.Int, reflect.Int64:
		v.SetInt(math.MinInt64)
	case reflect.Uint64:
		v.SetUint(math.MaxUint64)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		hostile(v.Elem())
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.FixedZone("x", 3601*5))))
			return
		}
		for i := range v.NumField() {
			hostile(v.Field(i))
		}
	}
}

func TestFold_NeverLargerThanMaxFold(t *testing.T) {
	var f events.Fold
	hostile(reflect.ValueOf(&f).Elem())
	f.Undone, f.Reason = false, ""
	f.State = events.StateApplied
	f.Cut = nil
	f, err := f.Next(events.TypeRolledBack, events.Data{Reason: events.ReasonUndo})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := f.Next(events.TypeRolledBack, events.Data{}); err != nil || len(again.Cut) != len(f.Cut) {
		t.Errorf("cut fields grow: %q, %q, %v", f.Cut, again.Cut, err)
	}
	b, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes", len(b))
	if len(b) > events.MaxFold {
		t.Errorf("hostile fold takes %d bytes, at most %d are allowed:\n%s", len(b), events.MaxFold, b)
	}
	for _, name := range []string{"name", "error", "resource.path"} {
		if !strings.Contains(strings.Join(f.Cut, " "), name) {
			t.Errorf("%s was cut silently: %q", name, f.Cut)
		}
	}
}

func TestFold_HostileLife(t *testing.T) {
	var d events.Data
	hostile(reflect.ValueOf(&d).Elem())
	d.StepIndex = ptr(math.MaxInt)
	d.Checkpoint.Portable, d.Checkpoint.Phase = true, events.PhaseStep
	d.Plan.Apply = events.ApplyAuto
	var f events.Fold
	for _, typ := range []string{
		events.TypeAccepted, events.TypeWaiting, events.TypeClaimed, events.TypeStepStarted, events.TypeStepFinished, events.TypeCheckpointed,
		events.TypeExecuted, events.TypeApplyIntent, events.TypeFailed,
	} {
		d.Epoch = f.Epoch
		if typ == events.TypeClaimed {
			d.Epoch++
		}
		next, err := f.Next(typ, d)
		if err != nil {
			t.Fatalf("%s: %v", typ, err)
		}
		f = next
		if b, err := json.Marshal(f); err != nil || len(b) > events.MaxFold {
			t.Errorf("after %s the fold takes %d bytes, %v", typ, len(b), err)
		}
	}
}
