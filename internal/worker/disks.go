package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/warmfleet/warmfleet/internal/disk"
	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/limit"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

// triedDisks is what came of trying to make a disk.
type triedDisks struct {
	maker *disk.Maker
	err   error
}

// tryDisks tries, beside the other preparations, whether sandboxes can have disks of their own.
func (w *Worker) tryDisks(ctx context.Context, dir string) <-chan triedDisks {
	tried := make(chan triedDisks, 1)
	if w.cfg.Isolation == Off {
		tried <- triedDisks{err: errors.New("isolation is off")}
		return tried
	}
	go func() {
		m, err := disk.Open(ctx, dir)
		tried <- triedDisks{m, err}
	}()
	return tried
}

// useDisks notes how the limit of disk holds here.
func (w *Worker) useDisks(d triedDisks) {
	if d.err == nil && w.layers.Driver != layer.Overlay {
		d = triedDisks{err: fmt.Errorf("trees are made by %s", w.layers.Driver)}
	}
	limit.DescribeDisk(&w.report, d.err)
	w.disks = d.maker
	if d.err == nil && len(w.cfg.Caches) > 0 {
		w.report.Guarantees[isolate.Disk] = isolate.Guarantee{
			State: isolate.BestEffort,
			Why:   "a workspace has a disk of its own, but what a step changes in caches is measured while it runs",
			Fix:   "start the worker without --cache",
		}
	}
}

// guaranteesOf are what holds for a plan, by name, as records and events say it.
func (w *Worker) guaranteesOf(p *plan.Plan) map[string]string {
	states := statesOf(w.reportFor(p))
	if w.measured(p) {
		states[isolate.Disk] = string(isolate.BestEffort)
	}
	return states
}

// measured tells whether a plan's limit of disk is held by measuring, where others have disks of their own.
func (w *Worker) measured(p *plan.Plan) bool {
	spec := sandbox.Spec{Strategy: sandbox.Strategy(p.Strategy), Limits: w.limitsOf(p)}
	return w.report.Guarantees[isolate.Disk].State == isolate.Enforced && spec.Limits.Disk > 0 && !w.host.HasDisk(spec)
}
