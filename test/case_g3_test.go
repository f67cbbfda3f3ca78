package test

import (
	"strings"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// Case G3: a cancel counts whenever it comes: before a worker is there, while one takes the plan, twice, too late.
func TestCase_G3(t *testing.T) {
	t.Parallel()
	c := startCluster(t, ordinary(t))
	dir := c.tree(t, "g3", "echo a >a")
	file := c.plan(t, "apply: never\n"+resource(dir), "echo ran")
	t.Run("BeforeAnyWorker", func(t *testing.T) {
		id := c.submit(t, file)
		c.do(t, "warmfleet", "plan", "cancel", id)
		w := c.worker(t, "early")
		v := c.ended(t, id, events.StateCancelled)
		c.queueEmpties(t)
		if v.Steps[0].State != "pending" && v.Steps[0].State != "skipped" || ranStep(t, c, id) || c.count(t, id, isFinal) != 1 {
			t.Errorf("step %s, ran %v\n%s", v.Steps[0].State, ranStep(t, c, id), c.story(t, id))
		}
		w.kill(t)
	})
	c.worker(t, "w")
	t.Run("AtAnyMoment", func(t *testing.T) { cancelsAtAnyMoment(t, c, file) })
	t.Run("TwiceAndTooLate", func(t *testing.T) {
		id := c.submit(t, c.plan(t, "apply: never\n"+resource(dir), "sleep 60"))
		c.until(t, id, "its step", isType(events.TypeStepStarted))
		c.do(t, "warmfleet", "plan", "cancel", id)
		c.warmfleet(t, "plan", "cancel", id)
		c.ended(t, id, events.StateCancelled)
		if n := c.count(t, id, isFinal); n != 1 {
			t.Errorf("got %d final events, want 1", n)
		}
		done := c.submit(t, file)
		c.ended(t, done, events.StateExecuted)
		if r := c.warmfleet(t, "plan", "cancel", done); r.code == 0 && !strings.Contains(r.stdout+r.stderr, "executed") {
			t.Errorf("cancel of what is done: got %+v, want a word that it is", r)
		}
		if v := c.ends(t, done); v.State != events.StateExecuted {
			t.Errorf("afterwards it is %s", v.State)
		}
		c.warmfleet(t, "plan", "cancel", "01ARZ3NDEKTSV4RRFFQ69G5FAV").exits(t, 4)
	})
}

func ranStep(t *testing.T, c *cluster, id string) bool {
	t.Helper()
	return strings.Contains(c.do(t, "warmfleet", "plan", "logs", id), "ran")
}

// cancelsAtAnyMoment cancels plans from at once until they are likely to be over.
func cancelsAtAnyMoment(t *testing.T, c *cluster, file string) {
	const plans, spread = 40, 200 * time.Millisecond
	var ids []string
	for i := range plans {
		id := c.submit(t, file)
		<-time.After(spread * time.Duration(i) / plans)
		c.warmfleet(t, "plan", "cancel", id)
		ids = append(ids, id)
	}
	states := map[string]int{}
	for _, id := range ids {
		v := c.ends(t, id)
		states[v.State]++
		started := c.count(t, id, isType(events.TypeStepStarted)) > 0
		if n := c.count(t, id, isFinal); n != 1 || v.State != events.StateCancelled && v.State != events.StateExecuted {
			t.Errorf("%s with %d final events, want one, cancelled or executed\n%s", v.State, n, c.story(t, id))
		}
		if ranStep(t, c, id) && !started {
			t.Errorf("the step ran and is not shown as run\n%s", c.story(t, id))
		}
	}
	t.Log(states)
}
