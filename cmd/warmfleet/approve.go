package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) planApprove() *cobra.Command {
	var detach bool
	c := &cobra.Command{
		Use: "approve ID", Short: "Apply a plan that awaits approval, and wait for its end",
		Long: `Apply a plan that awaits approval, and wait for its end: the exit code is its outcome, as 9 after a conflict.
Ctrl-C takes nothing back; it leaves the plan.`,
		Args: args(1, "a plan id"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := idArg("plan", args[0]); err != nil {
				return err
			}
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				if detach {
					return a.approveOnly(ctx, h, args[0])
				}
				return a.approve(ctx, h, args[0])
			})
		},
	}
	c.Flags().BoolVar(&detach, "detach", false, "return once it is approved")
	return c
}

// approveOnly approves a plan and leaves the rest to a worker that runs elsewhere, or will.
func (a *app) approveOnly(ctx context.Context, h *handle, id string) error {
	done, err := h.Approve(ctx, id, user())
	if err != nil {
		return h.explain(ctx, err, "approve", "plan", id)
	}
	if h.local != nil && h.local.Holds() {
		a.note("no worker runs now: it is applied with the next `warmfleet up` or `run` on this path")
	}
	return a.printDone(done)
}

// approve approves a plan and waits for its end.
func (a *app) approve(ctx context.Context, h *handle, id string) error {
	if err := h.workOn(ctx, id); err != nil {
		return h.explain(ctx, err, "approve", "plan", id)
	}
	done, err := h.Approve(ctx, id, user())
	if err != nil {
		return h.explain(ctx, err, "approve", "plan", id)
	}
	if !h.works {
		a.tellUnserved(ctx, h, id)
	}
	end, err := h.end(ctx, id)
	if ctx.Err() != nil {
		return a.interrupted(ctx, h, id, false)
	}
	if err != nil {
		return err
	}
	done.State = end.State
	if err := a.printDone(done); err != nil {
		return err
	}
	if code := outcomeExit(end.State, end.Code); code != exitOK {
		return &coded{code, fmt.Errorf("plan %s %s: %s", id, end.State, end.Error)}
	}
	return nil
}

// tellUnserved says that the wait for a plan is for a worker first. It is a hint only.
func (a *app) tellUnserved(ctx context.Context, h *handle, id string) {
	v, err := h.Plan(ctx, id)
	if err != nil || v.Final {
		return
	}
	if served, err := h.served(ctx, v.Resource, poolsOf(v.Pool)); err == nil && !served {
		a.note("plan %s is approved, but no live worker allows %s: waiting for one", id, resource(v.Resource))
	}
}
