package scheduler

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// failing is a bucket whose first writes fail, as when the server is away for a moment.
type failing struct {
	kv.Store
	left int
}

func (f *failing) Put(ctx context.Context, key string, value []byte) (uint64, error) {
	if f.left--; f.left >= 0 {
		return 0, errors.New("no answer")
	}
	return f.Store.Put(ctx, key, value)
}

func TestScheduler_FinalRecordIsTriedAgain(t *testing.T) {
	plans := kv.NewMemory()
	s := New(Fleet{Plans: &failing{plans, 2}}, 0, zerolog.Nop())
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.project(ctx)
	}()
	defer func() {
		stop()
		<-done
	}()
	id := events.NewID()
	f := events.Fold{State: events.StateRejected}
	s.index.observe(events.Record{Seq: 1, Event: events.Event{Subject: id, Data: events.Data{Final: true, Plan: &f}}})
	eventually(t, "the plan's record is written", func() bool {
		got, err := readFold(t.Context(), plans, id)
		return err == nil && got != nil && got.State == events.StateRejected
	})
}

func TestIndex_AwaitLeavesNothingBehind(t *testing.T) {
	x := newIndex()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, ok := x.await(ctx, "p"); ok {
		t.Fatal("a verdict on a plan that nobody knows")
	}
	if n := len(x.waiters); n != 0 {
		t.Errorf("%d plans are still waited for, want none", n)
	}
}

func TestIndex_ForgetsWhatTheLogForgot(t *testing.T) {
	x := newIndex()
	for id, f := range map[string]events.Fold{
		"old": {State: events.StateApplied}, "new": {State: events.StateApplied}, "waiting": {State: events.StateAwaitingApproval},
	} {
		at := epochStart
		if id == "new" {
			at = at.Add(time.Hour)
		}
		x.observe(events.Record{Seq: 1, Event: events.Event{Subject: id, Time: at, Data: events.Data{Plan: &f}}})
	}
	x.forget(epochStart.Add(time.Minute))
	if d := cmp.Diff([]string{"new", "waiting"}, x.ids()); d != "" {
		t.Errorf("plans (-want +got):\n%s", d)
	}
}

// A cancel that was stored when the worker had just let go of the plan has nobody else to end it.
func TestScheduler_CancelReachesAPlanThatNobodyHolds(t *testing.T) {
	d := open(t)
	w, err := events.OpenWriter(t.Context(), d.fleet.Log, events.NewID(), "/test")
	if err != nil {
		t.Fatal(err)
	}
	for _, typ := range []string{events.TypeAccepted, events.TypeClaimed, events.TypeAwaitingApproval} {
		switch typ {
		case events.TypeClaimed:
			err = w.Claim(t.Context(), events.Data{Worker: "w1"})
		default:
			err = w.Append(t.Context(), typ, events.Data{Plan: &events.Fold{Apply: events.ApplyManual}})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	other, err := events.OpenWriter(t.Context(), d.fleet.Log, w.PlanID(), "/other")
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Append(t.Context(), events.TypeCancelRequested, events.Data{}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.planApprove(t.Context(), []byte(w.PlanID())); errorCode(err) != api.CodeConflict {
		t.Errorf("approve: %v of code %s, want %s", err, errorCode(err), api.CodeConflict)
	}
	got, err := d.planCancel(t.Context(), []byte(w.PlanID()))
	if want := (api.Done{ID: w.PlanID(), State: events.StateCancelled}); err != nil || got != want {
		t.Errorf("cancel: %+v, %v, want %+v", got, err, want)
	}
}

func TestAdmission_ClaimedPlanIsNotRejected(t *testing.T) {
	a := newAdmission()
	a.workers["other"] = pathWorker("other", "h1", 1, "/home")
	f := waitingPlan(0, "normal", events.Resource{Host: "h1", Path: "/srv"})
	f.State, f.Epoch = events.StateWaiting, 1
	a.observe("p", f)
	got := a.decide()
	if len(got) != 1 || got[0].reject != "" || got[0].waiting == "" {
		t.Errorf("decided %+v, want it to wait for its worker to come back", got)
	}
}

func TestErrorCode(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want string
	}{
		{events.ErrNotFound, api.CodeNotFound},
		{checkpoint.ErrNotFound, api.CodeNotFound},
		{events.ErrID, api.CodeInvalid},
		{events.ErrTransition, api.CodeConflict},
		{events.ErrCancelRequested, api.CodeConflict},
		{events.ErrFenced, api.CodeConflict},
		{errTaken, api.CodeConflict},
		{events.ErrUnknown, api.CodeTimeout},
		{context.DeadlineExceeded, api.CodeTimeout},
		{errors.New("disk"), api.CodeInternal},
	} {
		if got := errorCode(fmt.Errorf("wrapped: %w", tc.err)); got != tc.want {
			t.Errorf("%v: code %s, want %s", tc.err, got, tc.want)
		}
	}
}
