package eventstest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// patience is how long a suite waits for something that should happen at once.
const patience = 10 * time.Second

// RunLog is the conformance suite of events.Log. Each call of open returns an empty log of the prefix "fleet".
func RunLog(t *testing.T, open func(t *testing.T) events.Log) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, events.Log)
	}{
		{"AppendAndRead", logAppendAndRead},
		{"Fence", logFence},
		{"SameIDIsStoredOnce", logSameID},
		{"OneOfManyWins", logRace},
		{"PlansAreApart", logPlansApart},
		{"UnknownPlan", logUnknown},
		{"TooLargeIsShrunk", logShrunk},
		{"BodyTooLarge", logBodyTooLarge},
		{"EndedContext", logEndedContext},
		{"Publish", logPublish},
		{"FollowOldAndNew", logFollow},
		{"FollowMark", logFollowMark},
		{"FollowSubject", logFollowSubject},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
}

// PlanEvent returns an event of a plan, for tests that do not care what is in it.
func PlanEvent(planID, typ string) events.Event {
	return events.NewEvent(events.TypeOf(events.NounPlan, typ), planID, "/test", events.Data{Plan: &events.Fold{State: events.StateAccepted}})
}

// Append appends an event that has to be stored and returns its sequence.
func Append(t *testing.T, log events.Log, ev events.Event, expect uint64) uint64 {
	t.Helper()
	seq, err := log.Append(t.Context(), ev, expect)
	if err != nil {
		t.Fatalf("append %s: %v", ev.Type, err)
	}
	return seq
}

func logAppendAndRead(t *testing.T, log events.Log) {
	id := events.NewID()
	first, second := PlanEvent(id, events.TypeAccepted), PlanEvent(id, events.TypeClaimed)
	first.Data.Body = json.RawMessage(`{"steps":[{"run":"a < b && c"}]}`)
	first.TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	one := Append(t, log, first, 0)
	two := Append(t, log, second, one)
	last, err := log.Last(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(events.Record{Event: second, Seq: two}, last); diff != "" {
		t.Errorf("last event (-want +got):\n%s", diff)
	}
	all, err := log.Events(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]events.Record{{Event: first, Seq: one}, {Event: second, Seq: two}}, all); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func logFence(t *testing.T, log events.Log) {
	id := events.NewID()
	one := Append(t, log, PlanEvent(id, events.TypeAccepted), 0)
	for _, wrong := range []uint64{0, one - 1, one + 1, one + 1000} {
		if wrong == one {
			continue
		}
		if _, err := log.Append(t.Context(), PlanEvent(id, events.TypeClaimed), wrong); !errors.Is(err, events.ErrSequence) {
			t.Errorf("append after sequence %d: %v, want %v", wrong, err, events.ErrSequence)
		}
	}
	if all, err := log.Events(t.Context(), id); err != nil || len(all) != 1 {
		t.Errorf("%d events, %v; want 1", len(all), err)
	}
}

// logSameID repeats an event whose answer was lost, also after another one came on top.
func logSameID(t *testing.T, log events.Log) {
	id := events.NewID()
	ev := PlanEvent(id, events.TypeAccepted)
	one := Append(t, log, ev, 0)
	if again := Append(t, log, ev, 0); again != one {
		t.Errorf("the same event got sequences %d and %d", one, again)
	}
	two := Append(t, log, PlanEvent(id, events.TypeCancelRequested), one)
	if again := Append(t, log, ev, 0); again != one {
		t.Errorf("the same event got sequences %d and %d", one, again)
	}
	last, err := log.Last(t.Context(), id)
	if err != nil || last.Seq != two {
		t.Errorf("last sequence %d, %v; want %d", last.Seq, err, two)
	}
}

func logRace(t *testing.T, log events.Log) {
	const racers, rounds = 8, 10
	id := events.NewID()
	var last uint64
	for range rounds {
		var wg sync.WaitGroup
		won := make(chan uint64, racers)
		for range racers {
			wg.Go(func() {
				seq, err := log.Append(t.Context(), PlanEvent(id, events.TypeClaimed), last)
				if err == nil {
					won <- seq
				} else if !errors.Is(err, events.ErrSequence) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if len(won) != 1 {
			t.Fatalf("%d of %d writers at one sequence won, want 1", len(won), racers)
		}
		last = <-won
	}
}

func logPlansApart(t *testing.T, log events.Log) {
	a, b := events.NewID(), events.NewID()
	seq := Append(t, log, PlanEvent(a, events.TypeAccepted), 0)
	Append(t, log, PlanEvent(b, events.TypeAccepted), 0)
	Append(t, log, PlanEvent(a, events.TypeClaimed), seq)
	for id, want := range map[string]int{a: 2, b: 1} {
		if all, err := log.Events(t.Context(), id); err != nil || len(all) != want {
			t.Errorf("%d events, %v; want %d", len(all), err, want)
		}
	}
}

func logUnknown(t *testing.T, log events.Log) {
	if _, err := log.Last(t.Context(), events.NewID()); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("last of an unknown plan: %v, want %v", err, events.ErrNotFound)
	}
	if _, err := log.Events(t.Context(), events.NewID()); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("events of an unknown plan: %v, want %v", err, events.ErrNotFound)
	}
}

// logShrunk is case I3: what does not fit into a message is reported with the same outcome.
func logShrunk(t *testing.T, log events.Log) {
	id := events.NewID()
	ev := PlanEvent(id, events.TypeConflict)
	ev.Data.Final = true
	ev.Data.Error = strings.Repeat("\x01\"", 1<<20)
	for i := range 20000 {
		ev.Data.Conflicts = append(ev.Data.Conflicts, events.Conflict{Path: fmt.Sprintf("%s/%d", strings.Repeat("d", 100), i), Kind: "content"})
	}
	Append(t, log, ev, 0)
	last, err := log.Last(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	got := last.Event
	if got.Type != ev.Type || got.ID != ev.ID || !got.Data.Final || len(got.Data.Conflicts) == 0 || got.Data.Omitted == "" {
		t.Errorf("stored event has type %s, final %v, %d conflicts, omitted %q", got.Type, got.Data.Final, len(got.Data.Conflicts), got.Data.Omitted)
	}
}

func logBodyTooLarge(t *testing.T, log events.Log) {
	ev := PlanEvent(events.NewID(), events.TypeAccepted)
	ev.Data.Body, _ = json.Marshal(strings.Repeat("x", events.MaxBody))
	_, err := log.Append(t.Context(), ev, 0)
	var size *events.SizeError
	if !errors.As(err, &size) || size.Size != events.MaxBody+2 || size.Max != events.MaxBody {
		t.Errorf("got %v, want a SizeError with both numbers", err)
	}
}

func logEndedContext(t *testing.T, log events.Log) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := log.Append(ctx, PlanEvent(events.NewID(), events.TypeAccepted), 0); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

func logPublish(t *testing.T, log events.Log) {
	ctx := t.Context()
	records, err := log.Follow(ctx, events.Filter{Noun: events.NounWorker})
	if err != nil {
		t.Fatal(err)
	}
	ev := events.NewEvent(events.TypeOf(events.NounWorker, "ready"), "w1", "/worker/w1", events.Data{Worker: "w1"})
	for range 2 {
		if err := log.Publish(ctx, ev); err != nil {
			t.Fatal(err)
		}
	}
	other := events.NewEvent(events.TypeOf(events.NounWorker, "draining"), "w1", "/worker/w1", events.Data{})
	if err := log.Publish(ctx, other); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{ev.ID, other.ID}, ids(take(t, records, 2))); diff != "" {
		t.Errorf("followed (-want +got):\n%s", diff)
	}
	if err := log.Publish(ctx, PlanEvent(events.NewID(), events.TypeAccepted)); err == nil {
		t.Error("a plan's event was stored without a fence")
	}
	if err := log.Publish(ctx, events.NewEvent(events.TypeOf(events.NounWorker, "ready"), "a.b", "/x", events.Data{})); err == nil {
		t.Error("an event about more than one token was stored")
	}
}

func logFollow(t *testing.T, log events.Log) {
	id, other := events.NewID(), events.NewID()
	var want []string
	var last uint64
	add := func() {
		ev := PlanEvent(id, events.TypeWaiting)
		last = Append(t, log, ev, last)
		want = append(want, ev.ID)
	}
	add()
	add()
	Append(t, log, PlanEvent(other, events.TypeAccepted), 0)
	ctx, cancel := context.WithCancel(t.Context())
	records, err := log.Follow(ctx, events.Filter{Plan: id})
	if err != nil {
		t.Fatal(err)
	}
	got := take(t, records, 2)
	add()
	got = append(got, take(t, records, 1)...)
	if diff := cmp.Diff(want, ids(got)); diff != "" {
		t.Errorf("followed (-want +got):\n%s", diff)
	}
	from, err := log.Follow(ctx, events.Filter{Plan: id, From: got[1].Seq})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want[1:], ids(take(t, from, 2))); diff != "" {
		t.Errorf("followed from the second (-want +got):\n%s", diff)
	}
	cancel()
	for _, c := range []<-chan events.Record{records, from} {
		select {
		case r, ok := <-c:
			if ok {
				t.Errorf("record %v after the end of the context", r)
			}
		case <-time.After(patience):
			t.Fatal("channel stays open after the end of the context")
		}
	}
}

func logFollowMark(t *testing.T, log events.Log) {
	ctx := t.Context()
	empty, err := log.Follow(ctx, events.Filter{Mark: true})
	if err != nil {
		t.Fatal(err)
	}
	if r := take(t, empty, 1)[0]; r.Seq != 0 {
		t.Errorf("an empty log gave record %d before the mark", r.Seq)
	}
	a := PlanEvent(events.NewID(), events.TypeAccepted)
	Append(t, log, a, 0)
	Append(t, log, PlanEvent(events.NewID(), events.TypeAccepted), 0)
	for filter, want := range map[events.Filter]int{
		{Mark: true}:                           2,
		{Mark: true, Plan: a.Subject}:          1,
		{Mark: true, Noun: events.NounWorker}:  0,
		{Mark: true, From: 1000}:               0,
		{Mark: true, Plan: a.Subject, From: 1}: 1,
	} {
		records, err := log.Follow(ctx, filter)
		if err != nil {
			t.Fatal(err)
		}
		for n := 0; ; n++ {
			if r := take(t, records, 1)[0]; r.Seq == 0 {
				if n != want {
					t.Errorf("%+v: mark after %d records, want %d", filter, n, want)
				}
				break
			}
		}
	}
}

func logFollowSubject(t *testing.T, log events.Log) {
	id := events.NewID()
	seq := Append(t, log, PlanEvent(id, events.TypeAccepted), 0)
	done := PlanEvent(id, events.TypeApplied)
	Append(t, log, done, seq)
	records, err := log.Follow(t.Context(), events.Filter{Subject: "fleet.evt.plan.*.applied"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{done.ID}, ids(take(t, records, 1))); diff != "" {
		t.Errorf("followed (-want +got):\n%s", diff)
	}
}

func take(t *testing.T, records <-chan events.Record, n int) []events.Record {
	t.Helper()
	var got []events.Record
	for range n {
		select {
		case r, ok := <-records:
			if !ok {
				t.Fatalf("channel closed after %d of %d records", len(got), n)
			}
			got = append(got, r)
		case <-time.After(patience):
			t.Fatalf("only %d of %d records arrived", len(got), n)
		}
	}
	return got
}

func ids(records []events.Record) []string {
	var s []string
	for _, r := range records {
		s = append(s, r.Event.ID)
	}
	return s
}
