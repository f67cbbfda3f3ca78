package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
)

func (a *app) checkpointCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "checkpoint", Aliases: []string{"cp"}, Short: "Look at checkpoints, go back to them, fork, export, verify them",
		Example: `  warmfleet checkpoint ls --plan ID
  warmfleet checkpoint diff ID --stat
  warmfleet checkpoint export ID | tar --xattrs -xpSf - -C dir
  warmfleet checkpoint rollback ID --worker w2`,
	}
	c.AddCommand(a.checkpointLs(), a.checkpointShow(), a.checkpointDiff(), a.checkpointRollback(), a.checkpointFork(),
		a.checkpointExport(), a.checkpointVerify(), a.checkpointRm())
	return c
}

func (a *app) checkpointLs() *cobra.Command {
	var f api.CheckpointFilter
	c := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List checkpoints, oldest first", Args: args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				cps, err := h.Checkpoints(ctx, f)
				if err != nil {
					return err
				}
				s := sheet{data: cps, header: []string{"ID", "PLAN", "PHASE", "SIZE", "PORTABLE", "AGE", "SANDBOX", "WORKER"}, wide: 2}
				for _, c := range cps {
					s.rows = append(s.rows, []any{c.ID, c.Plan, c.Phase, size(c.SizeBytes), c.Portable, age(c.CreatedAt), c.Sandbox, c.Worker})
				}
				return a.printer().list(s)
			})
		},
	}
	c.Flags().StringVar(&f.Plan, "plan", "", "only this plan's")
	c.Flags().StringVar(&f.Sandbox, "sandbox", "", "only this sandbox's")
	return c
}

func (a *app) checkpointShow() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Aliases: []string{"get", "info"}, Short: "Show a checkpoint", Args: args(1, "a checkpoint id"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := idArg("checkpoint", args[0]); err != nil {
				return err
			}
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				cp, err := h.Checkpoint(ctx, args[0])
				if err != nil {
					return h.explain(ctx, err, "show", "checkpoint", args[0])
				}
				return a.printer().one(cp, cp.ID, func(w io.Writer) { describe(w, cp) })
			})
		},
	}
}

func describe(out io.Writer, cp api.Checkpoint) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer w.Flush()
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, value)
		}
	}
	line("id", cp.ID)
	line("plan", cp.Plan)
	line("sandbox", cp.Sandbox)
	line("phase", cp.Phase)
	line("created", cp.CreatedAt.Format("2006-01-02 15:04:05 MST"))
	line("size", fmt.Sprintf("%s (%d bytes)", size(cp.SizeBytes), cp.SizeBytes))
	line("portable", fmt.Sprint(cp.Portable))
	if cp.Fuzzy {
		line("fuzzy", "processes ran when it was taken: files may be half written")
	}
	line("worker", cp.Worker)
	line("base", cp.Base)
	for _, l := range cp.Layers {
		line("layer", l)
	}
	for _, k := range slices.Sorted(maps.Keys(cp.Metadata)) {
		line("metadata", oneLine(k+"="+cp.Metadata[k]))
	}
	if string(cp.Lost) != "[]" {
		line("lost", string(cp.Lost))
	}
}

func (a *app) checkpointExport() *cobra.Command {
	return &cobra.Command{
		Use: "export ID", Short: "Write the full tree of a checkpoint as a tar to stdout", Args: args(1, "a checkpoint id"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := idArg("checkpoint", args[0]); err != nil {
				return err
			}
			if _, ok := a.stdout.(*tty); ok {
				return usagef("checkpoint export: stdout is a terminal: redirect it, as in > tree.tar")
			}
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				cp, err := checkpoint.Load(ctx, h.fleet.Checkpoints, args[0])
				if errors.Is(err, checkpoint.ErrNotFound) {
					cp, err = h.storeNow(ctx, args[0])
				}
				if err != nil {
					return h.explain(ctx, err, "export", "checkpoint", args[0])
				}
				return checkpoint.Export(ctx, cp, h.fleet.Store, a.stdout)
			})
		},
	}
}

// storeNow has the worker that holds a checkpoint store it: one without a record is not
// portable yet.
func (h *handle) storeNow(ctx context.Context, id string) (checkpoint.Checkpoint, error) {
	workers, err := h.Workers(ctx)
	if err != nil {
		return checkpoint.Checkpoint{}, err
	}
	for _, w := range workers {
		if err := h.StoreCheckpoint(ctx, id, w.Name); err == nil {
			return checkpoint.Load(ctx, h.fleet.Checkpoints, id)
		}
	}
	return checkpoint.Checkpoint{}, checkpoint.ErrNotFound
}

func (a *app) checkpointRm() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "rm ID", Aliases: []string{"delete"}, Short: "Delete a checkpoint's record; its layers go once nothing names them", Args: args(1, "a checkpoint id"),
		Long: `Delete the record of a checkpoint. Layers and differences that no other checkpoint needs go with a later collection of
garbage (warmfleet gc). While a plan has not ended its checkpoints are refused; --force takes them all the same, but never
the one that the plan goes on from.`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := idArg("checkpoint", args[0]); err != nil {
				return err
			}
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				done, err := h.DeleteCheckpoint(ctx, args[0], force)
				if err != nil {
					return h.explain(ctx, err, "delete", "checkpoint", args[0])
				}
				return a.printer().one(done, done.ID, func(w io.Writer) { fmt.Fprintln(w, done.ID) })
			})
		},
	}
	c.Flags().BoolVar(&force, "force", false, "also one of a plan that has not ended")
	return c
}
