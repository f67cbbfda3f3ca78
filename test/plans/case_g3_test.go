package plans

import (
	"strings"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// Case G3: a cancel counts whenever it comes: before a worker is there, while one takes the plan, twice, too late.
func TestCase_G3(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	dir := c.Tree(t, "g3", "echo a >a")
	file := c.Plan(t, "apply: never\n"+fleettest.Resource(dir), "echo ran")
	t.Run("BeforeAnyWorker", func(t *testing.T) {
		id := c.Submit(t, file)
		c.Do(t, "warmfleet", "plan", "cancel", id)
		w := c.Worker(t, "early")
		v := c.Ended(t, id, events.StateCancelled)
		c.QueueEmpties(t)
		if v.Steps[0].State != "pending" && v.Steps[0].State != "skipped" || ranStep(t, c, id) || c.Count(t, id, fleettest.IsFinal) != 1 {
			t.Errorf("step %s, ran %v\n%s", v.Steps[0].State, ranStep(t, c, id), c.Story(t, id))
		}
		w.Kill(t)
	})
	c.Worker(t, "w")
	t.Run("AtAnyMoment", func(t *testing.T) { cancelsAtAnyMoment(t, c, file) })
	t.Run("TwiceAndTooLate", func(t *testing.T) {
		id := c.Submit(t, c.Plan(t, "apply: never\n"+fleettest.Resource(dir), "sleep 60"))
		c.Until(t, id, "its step", fleettest.IsType(events.TypeStepStarted))
		c.Do(t, "warmfleet", "plan", "cancel", id)
		c.Warmfleet(t, "plan", "cancel", id)
		c.Ended(t, id, events.StateCancelled)
		if n := c.Count(t, id, fleettest.IsFinal); n != 1 {
			t.Errorf("got %d final events, want 1", n)
		}
		done := c.Submit(t, file)
		c.Ended(t, done, events.StateExecuted)
		if r := c.Warmfleet(t, "plan", "cancel", done); r.Code == 0 && !strings.Contains(r.Stdout+r.Stderr, "executed") {
			t.Errorf("cancel of what is done: got %+v, want a word that it is", r)
		}
		if v := c.Ends(t, done); v.State != events.StateExecuted {
			t.Errorf("afterwards it is %s", v.State)
		}
		c.Warmfleet(t, "plan", "cancel", "01ARZ3NDEKTSV4RRFFQ69G5FAV").Exits(t, 4)
	})
}

func ranStep(t *testing.T, c *fleettest.Cluster, id string) bool {
	t.Helper()
	return strings.Contains(c.Do(t, "warmfleet", "plan", "logs", id), "ran")
}

// cancelsAtAnyMoment cancels plans from at once until they are likely to be over.
func cancelsAtAnyMoment(t *testing.T, c *fleettest.Cluster, file string) {
	const plans, spread = 40, 200 * time.Millisecond
	var ids []string
	for i := range plans {
		id := c.Submit(t, file)
		<-time.After(spread * time.Duration(i) / plans)
		c.Warmfleet(t, "plan", "cancel", id)
		ids = append(ids, id)
	}
	states := map[string]int{}
	for _, id := range ids {
		v := c.Ends(t, id)
		states[v.State]++
		started := c.Count(t, id, fleettest.IsType(events.TypeStepStarted)) > 0
		if n := c.Count(t, id, fleettest.IsFinal); n != 1 || v.State != events.StateCancelled && v.State != events.StateExecuted {
			t.Errorf("%s with %d final events, want one, cancelled or executed\n%s", v.State, n, c.Story(t, id))
		}
		if ranStep(t, c, id) && !started {
			t.Errorf("the step ran and is not shown as run\n%s", c.Story(t, id))
		}
	}
	t.Log(states)
}
