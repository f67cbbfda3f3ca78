package worker

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"

	"github.com/warmfleet/warmfleet/internal/base"
	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/plan/executor"
)

// conclude turns what stopped a claimed plan into its last event, where it is its last.
func (w *Worker) conclude(ctx context.Context, j *job, err error) error {
	if err != nil && (silent(ctx) || ctx.Err() != nil && (errors.Is(err, ctx.Err()) || !j.stuck && errors.Is(err, isolate.ErrLost))) {
		err = context.Cause(ctx) // a call that was cut short says only that it was, or that its process is gone
	}
	ctx = context.WithoutCancel(ctx)
	switch {
	case err == nil, fenced(err):
		return err
	case errors.Is(err, executor.ErrCancelled), errors.Is(err, events.ErrCancelRequested):
		return j.end(ctx, events.TypeCancelled, events.Data{RolledBack: j.rolledBack()})
	case errors.Is(err, executor.ErrInterrupted), errors.Is(err, errDrained):
		if err := j.writer.Append(ctx, events.TypeInterrupted, events.Data{Reason: "worker " + w.cfg.Name + " is stopping"}); err != nil {
			return err
		}
		return executor.ErrInterrupted
	case errors.Is(err, errAgain):
		if err := j.writer.Append(ctx, events.TypeRetrying, events.Data{Reason: j.mask.Text(err.Error())}); err != nil {
			return err
		}
		return fmt.Errorf("%w: %w", executor.ErrInterrupted, err)
	case errors.Is(err, events.ErrUnknown), errors.Is(err, context.Canceled), errors.Is(err, errUnsettled):
		return err
	}
	return w.giveUp(ctx, j, err)
}

// giveUp ends a claimed plan that cannot be run here.
func (w *Worker) giveUp(ctx context.Context, j *job, err error) error {
	d := events.Data{Code: "internal", Error: err.Error(), RolledBack: j.rolledBack()}
	var r *refusal
	switch {
	case errors.As(err, &r):
		d.Code = r.code
	case errors.Is(err, base.ErrStateInside), errors.Is(err, base.ErrPath), errors.Is(err, base.ErrUnreadable),
		errors.Is(err, gitrepo.ErrURL), errors.Is(err, gitrepo.ErrRef), errors.Is(err, gitrepo.ErrNoRef), errors.Is(err, gitrepo.ErrUnborn):
		d.Code = "invalid_resource"
		if errors.Is(err, base.ErrStateInside) {
			d.Error += ": use --state-dir outside the path"
		}
	case errors.Is(err, checkpoint.ErrBudget):
		d.Code = "checkpoint_budget"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		d.Code = "disk_full"
		d.Error += ": free some room in " + w.cfg.StateDir + " or name another directory with --state-dir"
	case errors.Is(err, objectstore.ErrFull):
		d.Code = "store_full"
		d.Error += ": delete checkpoints that nobody needs (warmfleet checkpoint rm), or give the object store more room"
	}
	d.Error = j.mask.Text(d.Error)
	return j.end(ctx, events.TypeFailed, d)
}

// hasBash tells whether sandboxes see bash: they see this host's /usr and /bin.
func hasBash() bool {
	_, err := exec.LookPath("/bin/bash")
	return err == nil
}

// rolledBack names what of a plan that did not succeed is as it was at its start.
func (j *job) rolledBack() string {
	switch {
	case j.stuck:
		return ""
	case j.plan.Strategy == plan.InPlace:
		return "original"
	default:
		return "sandbox"
	}
}

func fenced(err error) bool {
	return errors.Is(err, events.ErrFenced) || errors.Is(err, errSilent)
}

// silent tells whether the lease behind ctx was lost: what failed since says nothing about the plan.
func silent(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errSilent) }

// end appends a final event. A plan that others ended first is as good.
func (j *job) end(ctx context.Context, typ string, d events.Data) error {
	return settled(j.writer.Append(context.WithoutCancel(ctx), typ, d))
}

func (t *target) release() {
	if t.done != nil {
		t.done()
	}
}
