package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/warmfleet/warmfleet/internal/termsafe"
	"github.com/warmfleet/warmfleet/internal/worker"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

func (a *app) planCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "plan", Short: "Look at plans, approve, reject, cancel and undo them",
		Example: `  warmfleet plan ls
  warmfleet plan show ID -o json
  warmfleet plan diff ID
  warmfleet plan approve ID`,
	}
	c.AddCommand(
		a.planLs(), a.planShow(), a.planEvents(), a.planLogs(), a.planDiff(),
		a.planApprove(), a.planUndo(),
		a.planChange("reject", "End a plan that awaits approval", (*handle).reject),
		a.planChange("cancel", "Cancel a plan; until its apply has begun", (*handle).cancel),
		a.planLint(), a.planSchema(),
	)
	return c
}

func (a *app) planLs() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List plans, oldest first", Args: args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				plans, err := h.Plans(ctx)
				if err != nil {
					return err
				}
				s := sheet{data: plans, header: []string{"ID", "NAME", "STATE", "WORKER", "AGE", "RESOURCE", "STRATEGY", "ERROR"}, wide: 2}
				for _, v := range plans {
					s.rows = append(s.rows, []any{v.ID, v.Name, v.State, deref(v.Worker), age(v.CreatedAt), resource(v.Resource), v.Strategy, oneLine(deref(v.Error))})
				}
				return a.printer().list(s)
			})
		},
	}
}

func (a *app) planShow() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Aliases: []string{"get", "info"}, Short: "Show a plan", Args: args(1, "a plan id"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := idArg("plan", args[0]); err != nil {
				return err
			}
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				v, err := h.Plan(ctx, args[0])
				if err != nil {
					return h.explain(ctx, err, "show", "plan", args[0])
				}
				return a.printPlan(v)
			})
		},
	}
}

func (a *app) printPlan(v events.View) error {
	return a.printer().one(v, v.ID, func(w io.Writer) {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		facts := []struct{ label, text string }{
			{"id", v.ID},
			{"name", v.Name},
			{"state", v.State},
			{"resource", resource(v.Resource)},
			{"strategy", v.Strategy},
			{"worker", deref(v.Worker)},
			{"isolation", deref(v.Isolation)},
			{"not enforced", notEnforced(v.Guarantees)},
			{"error", deref(v.Error)},
			{"reason", deref(v.Reason)},
			{"rolled back", deref(v.RolledBack)},
		}
		for _, f := range facts {
			if f.text != "" {
				fmt.Fprintf(t, "%s\t%s\n", f.label, termsafe.Line(f.text))
			}
		}
		if v.Attempt > 1 {
			fmt.Fprintf(t, "attempt\t%d\n", v.Attempt)
		}
		if v.Changed != nil {
			fmt.Fprintf(t, "changed\t%d paths\n", *v.Changed)
		}
		if v.Commit != nil {
			fmt.Fprintf(t, "commit\t%s on %s\n", v.Commit.ID, termsafe.Line(v.Commit.Branch))
		}
		for _, s := range v.Steps {
			fmt.Fprintf(t, "step %s\t%s\n", s.ID, stepState(s))
			for _, line := range networkLines(s.Network, s.NetworkMore) {
				fmt.Fprintf(t, "\t%s\n", line)
			}
		}
		for _, c := range v.Checkpoints {
			fmt.Fprintf(t, "checkpoint\t%s  %s, %s%s\n", c.ID, c.Phase, size(c.SizeBytes), portable(c.Portable))
		}
		printUndoView(t, v.Undo)
		for _, n := range v.Notes {
			fmt.Fprintf(t, "note\t%s\n", termsafe.Line(n))
		}
		t.Flush()
		printConflicts(w, v.Conflicts, v.ConflictCount)
		if v.Undo != nil {
			printConflicts(w, v.Undo.Conflicts, v.Undo.ConflictCount)
		}
	})
}

// stepState is how a step ended, or that it did not.
func stepState(s events.StepView) string {
	how := s.State
	switch {
	case s.Signal != nil:
		how += ": " + deref(s.Cause) + ", signal " + *s.Signal
	case s.State == events.StepFailed && s.ExitCode != nil:
		how += fmt.Sprintf(": exit code %d", *s.ExitCode)
	case s.State == events.StepFailed:
		how += ": " + deref(s.Cause)
	}
	return how + took(s.DurationMS)
}

func portable(yes bool) string {
	if yes {
		return ""
	}
	return ", only on its worker"
}

// planChange is a verb that asks the API to change a plan.
func (a *app) planChange(verb, short string, do func(*handle, context.Context, string) (api.Done, error)) *cobra.Command {
	return &cobra.Command{
		Use: verb + " ID", Short: short, Args: args(1, "a plan id"),
		RunE: func(c *cobra.Command, args []string) error {
			id := args[0]
			if err := idArg("plan", id); err != nil {
				return err
			}
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				if err := h.workOn(ctx, id); err != nil {
					return h.explain(ctx, err, verb, "plan", id)
				}
				done, err := do(h, ctx, id)
				if err != nil {
					return h.explain(ctx, err, verb, "plan", id)
				}
				if h.works {
					end, err := h.end(ctx, id)
					if err != nil {
						return err
					}
					done.State = end.State
				}
				return a.printDone(done)
			})
		},
	}
}

func (a *app) printDone(done api.Done) error {
	return a.printer().one(done, done.ID, func(w io.Writer) { fmt.Fprintln(w, done.ID) })
}

// end waits for the end of a plan.
func (h *handle) end(ctx context.Context, id string) (events.Fold, error) {
	last, err := h.Wait(ctx, id, nil)
	if err == nil && last.Event.Data.Plan == nil {
		err = errors.New("the plan ended without a state")
	}
	if err != nil {
		return events.Fold{}, err
	}
	return *last.Event.Data.Plan, nil
}

// workOn gives a fleet of this process a worker for a plan it has already, if that is to go on.
func (h *handle) workOn(ctx context.Context, id string) error {
	if h.local == nil {
		return nil
	}
	v, err := h.Plan(ctx, id)
	if err != nil || v.Final {
		return err
	}
	return h.workIfNeeded(ctx, v.Resource, worker.Config{Pools: poolsOf(v.Pool)})
}

func (h *handle) reject(ctx context.Context, id string) (api.Done, error) {
	return h.Reject(ctx, id, user())
}

func (h *handle) cancel(ctx context.Context, id string) (api.Done, error) {
	return h.Cancel(ctx, id, user())
}

func (a *app) planLint() *cobra.Command {
	return &cobra.Command{
		Use: "lint FILE", Short: "Check a plan file: every fault at once, with line and column; exit code 10 if it is valid and would be refused", Args: args(1, "one plan file"),
		RunE: func(c *cobra.Command, args []string) error {
			src, err := source(c.Context(), planFile, args[0])
			if err != nil {
				return err
			}
			p, err := plan.ParseYAML(args[0], src)
			if lacksResource(err) {
				a.note("%s: names no resource: give --path or --repo when it is run", args[0])
				p, err = plan.ParseYAML(args[0], src, plan.WithResource(plan.Resource{Path: "."}))
			}
			if err != nil {
				return err
			}
			p.Defaults()
			missing := p.Unsupported()
			for _, m := range missing {
				a.note("%s: valid, but would be refused: %s", args[0], m)
			}
			if len(missing) > 0 {
				return &coded{exitGuarantee, nil}
			}
			a.note("%s: valid", args[0])
			return nil
		},
	}
}

// lacksResource tells whether a plan is to be given its resource on the command line.
func lacksResource(err error) bool {
	var invalid *plan.Errors
	return errors.As(err, &invalid) && slices.ContainsFunc(invalid.List, func(e plan.Error) bool {
		return e.Path == "resource" && strings.HasPrefix(e.Message, "is missing")
	})
}

func (a *app) planSchema() *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of plan files", Args: args(0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			_, err := a.stdout.Write(plan.Schema())
			return err
		},
	}
}

func resource(r events.Resource) string {
	if r.Repo != "" {
		return r.Repo
	}
	return r.Path
}
