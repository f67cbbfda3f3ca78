package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/client"
)

func (a *app) gcCommand() *cobra.Command {
	var req api.Collect
	var grace time.Duration
	c := &cobra.Command{
		Use: "gc", Short: "Remove what nobody needs any more from the store of checkpoints", Args: args(0, "no arguments"),
		Long: `Remove the checkpoints of plans that ended long enough ago, then layers and differences that no checkpoint names, and
what interrupted uploads left. The scheduler does it by itself every hour; how long checkpoints are kept is set there
(--keep-applied and others). An object goes when it has had no checkpoint for the grace, 24h by the server's clock. What
plans need that have not ended is never removed.`,
		Example: `  warmfleet gc --dry-run
  warmfleet gc --grace 0s       # at once; safe beside running plans, which then upload again what they need`,
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("grace") {
				if grace < 0 {
					return usagef("--grace %s: use 0s or more", grace)
				}
				req.Grace = grace.String()
			}
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				done, err := collectGarbage(ctx, h, req)
				if err != nil {
					return err
				}
				return a.printer().one(done, fmt.Sprint(done.Objects), func(w io.Writer) { writeCollected(w, done) })
			})
		},
	}
	c.Flags().BoolVar(&req.DryRun, "dry-run", false, "only say what would go")
	c.Flags().DurationVar(&grace, "grace", 0, "how long objects must have been without a checkpoint (default the scheduler's, 24h)")
	return c
}

// gcPatience is how long a collection waits for another one, such as the scheduler's own soon after its start: longer
// than the lease of one that was killed.
const gcPatience = 10 * time.Second

func collectGarbage(ctx context.Context, h *handle, req api.Collect) (api.Collected, error) {
	patience := time.After(gcPatience)
	for {
		done, err := h.CollectGarbage(ctx, req)
		var refused *client.Error
		if !errors.As(err, &refused) || refused.Code != api.CodeConflict {
			return done, err
		}
		select {
		case <-ctx.Done():
			return done, ctx.Err()
		case <-patience:
			return done, &coded{exitError, err}
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func writeCollected(w io.Writer, c api.Collected) {
	verb := "removed"
	if c.DryRun {
		verb = "would remove"
	}
	for _, d := range c.Checkpoints {
		fmt.Fprintf(w, "%s checkpoint %s of plan %s: %s\n", verb, d.ID, d.Plan, d.Why)
	}
	fmt.Fprintf(w, "%s %d checkpoints, %d objects (%s), %d leavings of uploads\n", verb, len(c.Checkpoints), c.Objects, size(c.Bytes), c.Leavings)
	if c.Marked > 0 {
		fmt.Fprintf(w, "%d objects (%s) go when they have been without a checkpoint for long enough\n", c.Marked, size(c.MarkedBytes))
	}
	fmt.Fprintf(w, "%d checkpoints stay, with %s\n", c.Kept, size(c.KeptBytes))
	if c.OverBudget > 0 {
		fmt.Fprintf(w, "that is %s more than the budget: plans that have not ended need all of it\n", size(c.OverBudget))
	}
	if c.Foreign > 0 {
		fmt.Fprintf(w, "%d objects of other kinds are left alone\n", c.Foreign)
	}
}
