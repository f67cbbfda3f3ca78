package test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// killPoint is how far a plan has come when its worker is killed.
type killPoint struct {
	name    string
	reached func(t *testing.T, c *cluster, worker, id string) bool
}

func afterEvent(typ, step string) killPoint {
	return killPoint{typ + step, func(t *testing.T, c *cluster, _, id string) bool {
		return c.count(t, id, isType(typ), ofStep(step)) > 0
	}}
}

// killPoints go once through a plan of the steps one and two, both with a checkpoint. Where in the making of bases,
// sandboxes, checkpoints and their storing each of them hits is up to the machine.
func killPoints() []killPoint {
	return []killPoint{
		{"submitted", func(*testing.T, *cluster, string, string) bool { return true }},
		{"staging", func(t *testing.T, c *cluster, worker, id string) bool {
			return len(unfinished(t, c.path(worker))) > 0 || c.count(t, id, isType(events.TypeClaimed)) > 0
		}},
		afterEvent(events.TypeClaimed, ""),
		afterEvent(events.TypeStepStarted, "one"),
		afterEvent(events.TypeStepFinished, "one"),
		afterEvent(events.TypeStepStarted, "two"),
		afterEvent(events.TypeCheckpointed, "one"),
		afterEvent(events.TypeStepFinished, "two"),
		{"end", func(t *testing.T, c *cluster, _, id string) bool { return c.count(t, id, isFinal) > 0 }},
	}
}

// unfinished is what lies in those places below a worker's state directory where only what is under way may.
func unfinished(t testing.TB, state string) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"layers/staging/*/*", "scratch/*", "bases/*.tmp*", "repos/staging/*"} {
		files, err := filepath.Glob(filepath.Join(state, "worker", pattern))
		must(t, err)
		found = append(found, files...)
	}
	return found
}

// killedAt runs a plan on a worker that is killed at a point and started again, and returns the plan's id.
func killedAt(t *testing.T, c *cluster, point killPoint, worker *process, file string) (string, *process) {
	t.Helper()
	id := c.submit(t, file)
	eventually(t, point.name, func() bool { return point.reached(t, c, worker.name, id) })
	worker.kill(t)
	return id, c.worker(t, worker.name)
}

// endedWell waits until plans are final, each once, whatever happened to their workers.
func endedWell(t *testing.T, c *cluster, ids []string) {
	t.Helper()
	for _, id := range ids {
		v := c.ends(t, id)
		if !strings.Contains("executed applied", v.State) {
			t.Errorf("plan %s: got state %s, want it done\n%s", id, v.State, c.story(t, id))
		}
		if got := c.count(t, id, isFinal); got != 1 {
			t.Errorf("plan %s: got %d final events, want 1", id, got)
		}
	}
}
