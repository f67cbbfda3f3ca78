package plans

import (
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// killPoint is how far a plan has come when its worker is killed.
type killPoint struct {
	name    string
	reached func(t *testing.T, c *fleettest.Cluster, worker, id string) bool
}

func afterEvent(typ, step string) killPoint {
	return killPoint{typ + step, func(t *testing.T, c *fleettest.Cluster, _, id string) bool {
		return c.Count(t, id, fleettest.IsType(typ), fleettest.OfStep(step)) > 0
	}}
}

// killPoints go once through a plan of the steps one and two, both with a checkpoint. Where in the making of bases,
// sandboxes, checkpoints and their storing each of them hits is up to the machine.
func killPoints() []killPoint {
	return []killPoint{
		{"submitted", func(*testing.T, *fleettest.Cluster, string, string) bool { return true }},
		{"staging", func(t *testing.T, c *fleettest.Cluster, worker, id string) bool {
			return len(fleettest.Unfinished(t, c.Path(worker))) > 0 || c.Count(t, id, fleettest.IsType(events.TypeClaimed)) > 0
		}},
		afterEvent(events.TypeClaimed, ""),
		afterEvent(events.TypeStepStarted, "one"),
		afterEvent(events.TypeStepFinished, "one"),
		afterEvent(events.TypeStepStarted, "two"),
		afterEvent(events.TypeCheckpointed, "one"),
		afterEvent(events.TypeStepFinished, "two"),
		{"end", func(t *testing.T, c *fleettest.Cluster, _, id string) bool {
			return c.Count(t, id, fleettest.IsFinal) > 0
		}},
	}
}

// killedAt runs a plan on a worker that is killed at a point and started again, and returns the plan's id.
func killedAt(t *testing.T, c *fleettest.Cluster, point killPoint, worker *fleettest.Process, file string) (string, *fleettest.Process) {
	t.Helper()
	id := c.Submit(t, file)
	fleettest.Eventually(t, point.name, func() bool { return point.reached(t, c, worker.Name, id) })
	worker.Kill(t)
	return id, c.Worker(t, worker.Name)
}

// endedWell waits until plans are final, each once, whatever happened to their workers.
func endedWell(t *testing.T, c *fleettest.Cluster, ids []string) {
	t.Helper()
	for _, id := range ids {
		v := c.Ends(t, id)
		if !strings.Contains("executed applied", v.State) {
			t.Errorf("plan %s: got state %s, want it done\n%s", id, v.State, c.Story(t, id))
		}
		if got := c.Count(t, id, fleettest.IsFinal); got != 1 {
			t.Errorf("plan %s: got %d final events, want 1", id, got)
		}
	}
}
