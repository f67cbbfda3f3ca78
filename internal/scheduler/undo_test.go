package scheduler

import (
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// A plan that has ended is admitted once more while it is being undone, waits in silence, and is never rejected.
func TestAdmission_Undo(t *testing.T) {
	a := newAdmission()
	f := waitingPlan(0, "normal", events.Resource{Path: "/p/x", Host: "h"})
	f.State, f.Executed, f.Undoing = events.StateApplied, true, true
	a.observe("p", f)
	if got := a.decide(); len(got) != 0 {
		t.Errorf("without a worker: %+v, want nothing", got)
	}
	a.workers["w"] = pathWorker("w", "h", 1, "/other")
	if got := a.decide(); len(got) != 0 {
		t.Errorf("not allowed there: %+v, want nothing", got)
	}
	a.workers["w"] = pathWorker("w", "h", 1, "/p")
	got := a.decide()
	if len(got) != 1 || got[0].verb != events.VerbUndo || got[0].pool != events.PoolToken("h", "/p") {
		t.Fatalf("admitted %+v", got)
	}
	if got := a.decide(); len(got) != 0 {
		t.Errorf("admitted twice: %+v", got)
	}
	f.Undoing, f.Undone = false, true
	a.observe("p", f)
	if len(a.plans) != 0 {
		t.Errorf("still known: %v", a.plans)
	}
}
