package worker

import (
	"fmt"
	"strings"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

// Isolation says what a worker does where a required guarantee does not hold.
type Isolation string

// The isolation policies; a plan can only tighten its worker's. Off isolates nothing, on
// any machine: commands are plain processes of the worker's user. Strong is Required, with a kernel of gVisor's around
// each command.
const (
	Strong    Isolation = "strong"
	Required  Isolation = "required"
	Preferred Isolation = "preferred"
	Off       Isolation = "off"
)

// meets checks the guarantees that plan and worker require; the stricter of both counts.
func (w *Worker) meets(p *plan.Plan) error {
	if err := w.lists(p); err != nil {
		return err
	}
	if !w.requires() && p.Isolation != plan.IsolationRequired && p.Isolation != plan.IsolationStrong {
		return nil
	}
	report := w.reportFor(p)
	return unmet(report, append(report.Unmet(p.NetworkMode()), w.unbounded(p)...), w.loosening(p))
}

// holds checks what the worker itself requires of every sandbox, whoever asks for one.
func (w *Worker) holds(network string) error {
	if !w.requires() {
		return nil
	}
	return unmet(w.report, w.report.Unmet(network), w.loosening(&plan.Plan{}))
}

// requires tells whether the worker's policy lets nothing run where a guarantee is missing.
func (w *Worker) requires() bool { return w.cfg.Isolation == Required || w.cfg.Isolation == Strong }

// loosening says how to do without, which files of a project can't.
func (w *Worker) loosening(p *plan.Plan) string {
	switch {
	case !w.requires():
		return "run the plan without isolation: required"
	case p.Isolation == plan.IsolationRequired:
		return "run it without isolation: required on a worker that was started with --isolation preferred"
	}
	return "start the worker with --isolation preferred (`warmfleet run` starts its own: run --isolation preferred)"
}

// unmet refuses for guarantees that are missing of a report, if there are any.
func unmet(r isolate.Report, names []string, instead string) error {
	var missing []string
	for _, name := range names {
		g := r.Guarantees[name]
		missing = append(missing, fmt.Sprintf("%s (%s; %s)", name, g.Why, g.Fix))
	}
	if len(missing) == 0 {
		return nil
	}
	return refuse("unmet_isolation", "isolation required: this machine does not hold %s: see `warmfleet doctor`, or %s", strings.Join(missing, ", "), instead)
}

// statesOf are what holds, by name, as records and events say it.
func statesOf(r isolate.Report) map[string]string {
	states := map[string]string{}
	for name, g := range r.Guarantees {
		states[name] = string(g.State)
	}
	return states
}

// isolationNotes say what a plan runs without.
func (w *Worker) isolationNotes(p *plan.Plan) []string {
	report := w.reportFor(p)
	unmet := report.Unmet(p.NetworkMode())
	if w.cfg.Isolation == Off {
		return []string{"isolation: off: the worker was started with --isolation off: nothing keeps steps from what its user may read, change and reach"}
	}
	if len(unmet) == 0 {
		return nil
	}
	g := report.Guarantees[unmet[0]]
	return []string{fmt.Sprintf("isolation: preferred: these do not hold here: %s: %s; %s", strings.Join(unmet, ", "), g.Why, g.Fix)}
}

// offReport is of a worker that was told not to isolate.
func offReport() isolate.Report {
	return isolate.Unisolated("switched off by --isolation off", "start the worker without --isolation off")
}
