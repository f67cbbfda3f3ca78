package worker

import (
	"cmp"
	"fmt"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

// limitsOf are a plan's limits and the worker's; the stricter of both counts.
func (w *Worker) limitsOf(p *plan.Plan) isolate.Limits { return w.stricterLimits(p.Limits) }

func (w *Worker) stricterLimits(asked *plan.Limits) isolate.Limits {
	l := w.cfg.Limits
	if asked == nil {
		return l
	}
	return isolate.Limits{
		Memory: stricter(l.Memory, int64(asked.MemoryMB)<<20),
		CPUs:   stricter(l.CPUs, asked.CPUCores),
		PIDs:   stricter(l.PIDs, asked.PIDs),
		Disk:   stricter(l.Disk, int64(asked.DiskGB*(1<<30))),
	}
}

// stricter is the smaller of two limits, where zero is none.
func stricter[T cmp.Ordered](a, b T) T {
	var none T
	if a == none || b != none && b < a {
		return b
	}
	return a
}

// asked are the guarantees that a plan's limits need.
func (w *Worker) asked(p *plan.Plan) []string {
	l := w.limitsOf(p)
	var names []string
	for _, each := range []struct {
		set  bool
		name string
	}{{l.Memory > 0, isolate.Memory}, {l.CPUs > 0, isolate.CPU}, {l.PIDs > 0, isolate.Pids}, {l.Disk > 0, isolate.Disk}} {
		if each.set {
			names = append(names, each.name)
		}
	}
	return names
}

// unbounded are the limits of a plan that nothing here enforces.
func (w *Worker) unbounded(p *plan.Plan) []string {
	var names []string
	for _, name := range w.asked(p) {
		if w.reportFor(p).Guarantees[name].State == isolate.Absent {
			names = append(names, name)
		}
	}
	return names
}

// limitNotes say which of a plan's limits do not hold in full.
func (w *Worker) limitNotes(p *plan.Plan) []string {
	var notes []string
	for _, name := range w.asked(p) {
		if g := w.reportFor(p).Guarantees[name]; g.State != isolate.Enforced {
			notes = append(notes, fmt.Sprintf("limit: %s: %s: %s", name, g.State, g.Why))
		}
	}
	if w.measured(p) {
		notes = append(notes, "limit: disk: best_effort: what a step wrote is measured while it runs: a disk of its own has only a tree that is not the original, for a limit below the size of the worker's own file system")
	}
	return notes
}
