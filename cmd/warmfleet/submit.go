package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmfleet/warmfleet/internal/worker"
	"github.com/warmfleet/warmfleet/pkg/client"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

// submitFlags are the flags of `submit`.
type submitFlags struct {
	runFlags
	id           string
	at, after    string
	wait, follow bool
	timeout      time.Duration
}

func (a *app) submitCommand() *cobra.Command {
	var f submitFlags
	c := &cobra.Command{
		Use:   "submit PLAN.yaml",
		Short: "Submit a plan to the fleet and print its id",
		Long: `Submit a plan to the fleet and print its id alone on stdout; exit code 0 says that it was accepted. Where no other
process runs the fleet, the plan runs in this one, and the command ends when the plan has ended or awaits approval.

With --wait, the id goes to stderr, and after the plan's end (or when it awaits approval) stdout gets the same as from
"warmfleet run": the difference, or with -o json the plan. The exit code is then the plan's. --follow shows progress and
output on stderr meanwhile.`,
		Example: `  id=$(warmfleet submit fix.yaml --path ~/src/app)
  warmfleet submit fix.yaml --path ~/src/app --follow
  warmfleet submit fix.yaml --id 01KB93T3M4X0V2P1D5Q7R9S8TZ   # the same id and plan again is the same plan
  warmfleet submit fix.yaml --wait --wait-timeout 10m -o json | jq -r .state`,
		Args: args(1, "one plan file"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.submit(c.Context(), args[0], f)
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.id, "id", "", "the plan's id, an upper-case ULID: the same id and plan again is the same plan")
	fl.StringVar(&f.at, "at", "", "when to run it (not built in this version)")
	fl.StringVar(&f.after, "after", "", "how long from now to run it (not built in this version)")
	f.register(fl, "auto, manual or never")
	fl.BoolVar(&f.wait, "wait", false, "wait until the plan has ended or awaits approval")
	fl.BoolVar(&f.follow, "follow", false, "wait, and show progress and output meanwhile")
	fl.BoolVar(&f.cancelOnInterrupt, "cancel-on-interrupt", false, "cancel the plan on Ctrl-C instead of leaving it")
	fl.DurationVar(&f.timeout, "wait-timeout", 0, "give up waiting after this long (exit code 7)")
	return c
}

func (a *app) submit(ctx context.Context, file string, f submitFlags) error {
	if f.at != "" || f.after != "" {
		return &coded{exitGuarantee, errors.New("--at, --after: schedules are not built in this version")}
	}
	if f.id != "" {
		if err := idArg("plan", f.id); err != nil {
			return err
		}
	}
	if f.apply == applyAsk {
		return usagef("--apply %q: use auto, manual or never", f.apply)
	}
	p, err := a.readPlan(ctx, file, f.runFlags)
	if err != nil {
		return err
	}
	return a.with(ctx, func(ctx context.Context, h *handle) error {
		if err := a.tellTakenUp(ctx, h, p); err != nil {
			return err
		}
		if err := h.workIfNeeded(ctx, resourceOf(p), worker.Config{Pools: poolsOf(p.Pool), Isolation: f.isolationPolicy()}); err != nil {
			return err
		}
		id, err := a.submitPlan(ctx, h, p, f.id)
		if err != nil {
			return err
		}
		if !f.wait && !f.follow {
			fmt.Fprintln(a.stdout, id)
			return h.settle(ctx, id)
		}
		a.note("%s", id)
		return a.await(ctx, h, id, f)
	})
}

// settle lets what a worker in this process does come to its end; others go on by themselves.
func (h *handle) settle(ctx context.Context, id string) error {
	if !h.works {
		return nil
	}
	_, err := h.Wait(ctx, id, func(r events.Record) bool { return r.Event.Kind() == events.TypeAwaitingApproval })
	return err
}

// submitPlan asks for the plan to be run and returns its id. Where no scheduler answers the
// submission is stored, and taken in by the next one.
func (a *app) submitPlan(ctx context.Context, h *handle, p *plan.Plan, id string) (string, error) {
	if id == "" {
		id = events.NewID()
	}
	s := events.NewSubmission(p.Canonical(), user())
	s.PlanID = id
	verdict, err := h.Submit(ctx, s)
	if errors.Is(err, client.ErrNoScheduler) {
		if err := h.fleet.Submissions.Publish(ctx, id, s); err != nil {
			return "", err
		}
		a.note("no scheduler answers: the submission is stored until one does")
		return id, nil
	}
	if err != nil {
		return "", err
	}
	if verdict.State == events.StateRejected {
		return "", &coded{outcomeExit(verdict.State, verdict.Code), fmt.Errorf("plan %s rejected: %s", id, strings.TrimSpace(verdict.Error))}
	}
	return id, nil
}

// await waits for a submitted plan and prints it whatever its end.
func (a *app) await(ctx context.Context, h *handle, id string, f submitFlags) error {
	wait := ctx
	if f.timeout > 0 {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, f.timeout)
		defer cancel()
	}
	var last events.Record
	var err error
	if f.follow {
		last, err = a.follow(wait, h, id)
	} else {
		last, err = h.Wait(wait, id, func(r events.Record) bool { return r.Event.Kind() == events.TypeAwaitingApproval })
	}
	switch {
	case ctx.Err() != nil:
		return a.interrupted(ctx, h, id, f.cancelOnInterrupt || h.works)
	case wait.Err() != nil:
		return &coded{exitTimeout, fmt.Errorf("plan %s: did not end within %s and %s", id, f.timeout, h.afterwards(ctx, id))}
	case err != nil:
		return err
	}
	if last.Event.Data.Error != "" && !f.follow {
		a.note("plan %s %s: %s", id, last.Event.Kind(), last.Event.Data.Error)
	}
	return a.conclude(ctx, h, last)
}
