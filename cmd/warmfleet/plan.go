package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmfleet/warmfleet/internal/worker"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

func (a *app) planCommand() *cobra.Command {
	c := &cobra.Command{Use: "plan", Short: "Look at plans, approve, reject and cancel them"}
	c.AddCommand(
		a.planLs(), a.planShow(), a.planEvents(), a.planLogs(), a.planDiff(),
		a.planChange("approve", "Apply a plan that awaits approval", (*handle).approve),
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
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				v, err := h.Plan(ctx, args[0])
				if err != nil {
					return err
				}
				return a.printPlan(v)
			})
		},
	}
}

func (a *app) printPlan(v events.View) error {
	return a.printer().one(v, func(w io.Writer) {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintf(t, "id\t%s\nname\t%s\nstate\t%s\n", v.ID, v.Name, v.State)
		fmt.Fprintf(t, "resource\t%s\nstrategy\t%s\nworker\t%s\nattempt\t%d\n", resource(v.Resource), v.Strategy, deref(v.Worker), v.Attempt)
		for label, text := range map[string]*string{"error": v.Error, "reason": v.Reason, "rolled back": v.RolledBack} {
			if text != nil {
				fmt.Fprintf(t, "%s\t%s\n", label, *text)
			}
		}
		for _, s := range v.Steps {
			fmt.Fprintf(t, "step %s\t%s%s\n", s.ID, s.State, took(s.DurationMS))
		}
		for _, c := range v.Checkpoints {
			fmt.Fprintf(t, "checkpoint %s\t%s, %d bytes, portable %v\n", c.ID, c.Phase, c.SizeBytes, c.Portable)
		}
		for _, c := range v.Conflicts {
			fmt.Fprintf(t, "conflict\t%q: %s\n", c.Path, c.Kind)
		}
		t.Flush()
	})
}

func (a *app) planDiff() *cobra.Command {
	return &cobra.Command{
		Use: "diff ID", Short: "Print what a plan changed", Args: args(1, "a plan id"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				diff, err := h.Diff(ctx, args[0])
				if err != nil {
					return err
				}
				return a.printer().one(api.Diff{ID: args[0], Diff: diff}, func(w io.Writer) { io.WriteString(w, diff) })
			})
		},
	}
}

// planChange is a verb that asks the API to change a plan. A local fleet stays until what
// it caused has ended.
func (a *app) planChange(verb, short string, do func(*handle, context.Context, string) (api.Done, error)) *cobra.Command {
	return &cobra.Command{
		Use: verb + " ID", Short: short, Args: args(1, "a plan id"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				if err := h.workOn(ctx, args[0]); err != nil {
					return err
				}
				done, err := do(h, ctx, args[0])
				if err != nil {
					return err
				}
				if verb == "approve" {
					if err := h.settle(ctx, args[0]); err != nil {
						return err
					}
				}
				return a.printer().one(done, func(w io.Writer) { fmt.Fprintln(w, done.ID) })
			})
		},
	}
}

// workOn gives a fleet of this process a worker for a plan it has already.
func (h *handle) workOn(ctx context.Context, id string) error {
	if h.local == nil {
		return nil
	}
	v, err := h.Plan(ctx, id)
	if err != nil {
		return err
	}
	var paths []string
	if v.Resource.Path != "" {
		paths = []string{v.Resource.Path}
	}
	return h.work(ctx, worker.Required, paths...)
}

func (h *handle) approve(ctx context.Context, id string) (api.Done, error) {
	return h.Approve(ctx, id, user())
}

func (h *handle) reject(ctx context.Context, id string) (api.Done, error) {
	return h.Reject(ctx, id, user())
}

func (h *handle) cancel(ctx context.Context, id string) (api.Done, error) {
	return h.Cancel(ctx, id, user())
}

func (a *app) planLint() *cobra.Command {
	return &cobra.Command{
		Use: "lint FILE", Short: "Check a plan file", Args: args(1, "one plan file"),
		RunE: func(_ *cobra.Command, args []string) error {
			src, err := readFile(args[0])
			if err != nil {
				return err
			}
			p, err := plan.ParseYAML(args[0], src)
			if err != nil {
				return err
			}
			p.Defaults()
			for _, m := range p.Unsupported() {
				a.note("%s: %s", args[0], m)
			}
			return nil
		},
	}
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

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func resource(r events.Resource) string {
	if r.Repo != "" {
		return r.Repo
	}
	return r.Path
}

func age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return time.Since(t).Round(time.Second).String()
}
