package fleettest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// Until waits for an event of a plan for which cond holds. What a final event shows cannot come later.
func (c *Cluster) Until(t testing.TB, id, what string, cond func(events.Event) bool) events.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	r, err := c.Client.Wait(ctx, id, func(r events.Record) bool { return cond(r.Event) })
	if err != nil || !cond(r.Event) {
		t.Fatalf("plan %s: waited for %s: got %s %s: %v\n%s", id, what, r.Event.Kind(), r.Event.Data.Error, err, c.Story(t, id))
	}
	return r.Event
}

// Ends waits until a plan is final and returns it.
func (c *Cluster) Ends(t testing.TB, id string) events.View {
	t.Helper()
	c.Until(t, id, "a final event", func(e events.Event) bool { return e.Data.Final })
	return events.BuildView(c.Records(t, id))
}

// Ended waits until a plan is final in a state.
func (c *Cluster) Ended(t testing.TB, id, state string) events.View {
	t.Helper()
	v := c.Ends(t, id)
	if v.State != state {
		t.Fatalf("plan %s: got state %s, want %s\n%s", id, v.State, state, c.Story(t, id))
	}
	return v
}

// Records are all events of a plan so far.
func (c *Cluster) Records(t testing.TB, id string) []events.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Patience)
	defer cancel()
	all, err := c.Client.Events(ctx, id)
	if err != nil {
		t.Fatalf("events of plan %s: %v", id, err)
	}
	return all
}

// Story is a plan's events in short, for messages of failed tests.
func (c *Cluster) Story(t testing.TB, id string) string {
	t.Helper()
	var b strings.Builder
	for _, r := range c.Records(t, id) {
		d := r.Event.Data
		fmt.Fprintf(&b, "  %s %s %s %s %s %s %s\n", r.Event.Time.Format("05.000"), r.Event.Kind(), r.Event.Source, d.Step, d.Worker, d.Reason, d.Error)
	}
	return b.String()
}

// Count counts the events of a plan for which all conditions hold.
func (c *Cluster) Count(t testing.TB, id string, conds ...func(events.Event) bool) int {
	t.Helper()
	n := 0
	for _, r := range c.Records(t, id) {
		if All(conds...)(r.Event) {
			n++
		}
	}
	return n
}

// Once fails the test unless the plan was claimed as often as said and has one final event.
func (c *Cluster) Once(t testing.TB, id string, claims int) {
	t.Helper()
	if got := c.Count(t, id, IsType(events.TypeClaimed)); got != claims {
		t.Errorf("plan %s: got %d claims, want %d\n%s", id, got, claims, c.Story(t, id))
	}
	if got := c.Count(t, id, IsFinal); got != 1 {
		t.Errorf("plan %s: got %d final events, want 1\n%s", id, got, c.Story(t, id))
	}
}

// QueueEmpties waits until no command is queued or held.
func (c *Cluster) QueueEmpties(t testing.TB) {
	t.Helper()
	Eventually(t, "an empty queue of commands", func() bool {
		s, err := c.Fleet.JetStream.Stream(t.Context(), c.Fleet.Subjects.CommandsStream())
		return err == nil && s.CachedInfo().State.Msgs == 0
	})
}

// All is a condition that holds where all of them do.
func All(conds ...func(events.Event) bool) func(events.Event) bool {
	return func(e events.Event) bool {
		for _, cond := range conds {
			if !cond(e) {
				return false
			}
		}
		return true
	}
}

// IsType is the condition that an event is of a type.
func IsType(typ string) func(events.Event) bool {
	return func(e events.Event) bool { return e.Kind() == typ }
}

// OfStep is the condition that an event is about a step.
func OfStep(id string) func(events.Event) bool {
	return func(e events.Event) bool { return e.Data.Step == id }
}

// ByWorker is the condition that a worker published an event.
func ByWorker(name string) func(events.Event) bool {
	return func(e events.Event) bool { return e.Source == "/worker/"+name }
}

// IsFinal tells a plan's last event.
func IsFinal(e events.Event) bool { return e.Data.Final }
