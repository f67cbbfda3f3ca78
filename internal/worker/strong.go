package worker

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

// ErrNoStrong is what New's error matches where the policy is Strong and gVisor does not work.
var ErrNoStrong = isolate.ErrNoStrong

// installRunsc says what to do where gVisor does not work.
const installRunsc = "put gVisor's runsc on the worker's PATH (docs/gvisor.md), and see `warmfleet doctor`"

// strongRung is what plans that ask for strong isolation get from a worker of another policy. It is tried when the first
// of them comes, for a worker without one does not need it.
type strongRung struct {
	once   sync.Once
	err    error
	report atomic.Pointer[isolate.Report] // nil until it was tried and works
}

// probe finds out what holds on the rung that the policy asks for.
func (w *Worker) probe(ctx context.Context, scratch string) (isolate.Report, error) {
	switch w.cfg.Isolation {
	case Off:
		return offReport(), nil
	case Strong:
		r, err := isolate.ProbeStrong(ctx, scratch)
		if err != nil {
			err = fmt.Errorf("worker: isolation strong: %w: %s, or start the worker with --isolation required", err, installRunsc)
		}
		return r, err
	}
	return isolate.ProbeOf(ctx, scratch, w.cfg.rungs()...)
}

// tryStrong makes sure that a plan that asks for strong isolation can have it here.
func (w *Worker) tryStrong(ctx context.Context, p *plan.Plan) error {
	switch {
	case p.Isolation != plan.IsolationStrong || w.cfg.Isolation == Strong:
		return nil
	case p.Pool != "":
		return refuse("unmet_isolation", "isolation strong: sandboxes of pools are what the worker's policy makes them: start the worker with --isolation strong, or run the plan without the pool")
	case !w.report.Rung.Mounts():
		return refuse("unmet_isolation", "isolation strong: gVisor needs namespaces around it, and this worker has isolation %s: see `warmfleet doctor`", w.report.Rung)
	}
	s := &w.strong
	s.once.Do(func() {
		// The end of the plan that came first must not be what all later ones are told.
		r, err := isolate.ProbeStrong(context.WithoutCancel(ctx), filepath.Join(w.cfg.StateDir, "scratch"))
		if s.err = err; err == nil {
			w.limits.Describe(&r)
			r.Guarantees[isolate.Disk] = w.report.Guarantees[isolate.Disk] // trees and disks are those of other plans
			s.report.Store(&r)
		}
	})
	if s.err != nil {
		return refuse("unmet_isolation", "isolation strong: %v: %s, or run the plan with isolation: required", s.err, installRunsc)
	}
	return nil
}

// reportFor is what holds for a plan; for one that tryStrong refused, or was not asked about, what holds for others.
func (w *Worker) reportFor(p *plan.Plan) isolate.Report {
	if p.Isolation == plan.IsolationStrong && w.cfg.Isolation != Strong {
		if r := w.strong.report.Load(); r != nil {
			return *r
		}
	}
	return w.report
}

// hostOf is hostFor a plan's own sandboxes, on the rung that it asks for.
func (w *Worker) hostOf(p *plan.Plan, planID string) sandbox.Host {
	h := w.hostFor(planID)
	h.Report = w.reportFor(p)
	if h.Report.Rung == w.report.Rung {
		return h
	}
	h.Init = func(ctx context.Context, network string, noSetuid bool) (*isolate.Init, error) {
		return w.startInitOn(ctx, h.Report.Rung, network, noSetuid)
	}
	h.Notify = func(c sandbox.Change) { w.notifyOn(h.Report.Rung, sandboxOwner{plan: planID}, c) }
	return h
}
