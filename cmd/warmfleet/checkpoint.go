package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/warmfleet/warmfleet/internal/worker"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
)

func (a *app) checkpointCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "checkpoint", Aliases: []string{"cp"}, Short: "Look at checkpoints, go back to them, export them",
		Example: `  warmfleet checkpoint ls --plan ID
  warmfleet checkpoint export ID | tar --xattrs -xpSf - -C dir
  warmfleet checkpoint rollback ID --worker w2`,
	}
	c.AddCommand(a.checkpointLs(), a.checkpointShow(), a.checkpointRollback(), a.checkpointExport(), a.checkpointRm())
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

func describe(w io.Writer, cp api.Checkpoint) {
	fmt.Fprintf(w, "id        %s\nplan      %s\nsandbox   %s\nphase     %s\ncreated   %s\nsize      %d bytes\nportable  %v\nworker    %s\nbase      %s\n",
		cp.ID, cp.Plan, cp.Sandbox, cp.Phase, cp.CreatedAt.Format("2006-01-02 15:04:05 MST"), cp.SizeBytes, cp.Portable, cp.Worker, cp.Base)
	for _, l := range cp.Layers {
		fmt.Fprintf(w, "layer     %s\n", l)
	}
	if string(cp.Lost) != "[]" {
		fmt.Fprintf(w, "lost      %s\n", cp.Lost)
	}
}

func (a *app) checkpointRollback() *cobra.Command {
	var on string
	c := &cobra.Command{
		Use: "rollback ID", Short: "Make a sandbox in the state of a checkpoint, kept for an hour", Args: args(1, "a checkpoint id"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := idArg("checkpoint", args[0]); err != nil {
				return err
			}
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				if h.local != nil && h.local.Holds() {
					if err := h.work(ctx, events.Resource{}, worker.Config{}); err != nil {
						return err
					}
					if err := h.awaitWorker(ctx); err != nil {
						return err
					}
					a.note("this fleet ends with the command, and the sandbox with it: run warmfleet up to keep one, or checkpoint export to get the files")
				}
				r, err := h.Rollback(ctx, args[0], on)
				if err != nil {
					return h.explain(ctx, err, "roll back to", "checkpoint", args[0])
				}
				return a.printer().one(r, r.Sandbox, func(w io.Writer) { fmt.Fprintf(w, "sandbox %s on %s: %s\n", r.Sandbox, r.Worker, r.State) })
			})
		},
	}
	c.Flags().StringVar(&on, "worker", "", "the worker to make it on; any live one if absent")
	return c
}

func (a *app) checkpointExport() *cobra.Command {
	return &cobra.Command{
		Use: "export ID", Short: "Write the full tree of a checkpoint as a tar to stdout", Args: args(1, "a checkpoint id"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := idArg("checkpoint", args[0]); err != nil {
				return err
			}
			if f, ok := a.stdout.(*os.File); ok && terminal(f) {
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
	return &cobra.Command{
		Use: "rm ID", Aliases: []string{"delete"}, Short: "Delete a checkpoint's record; its layers go once nothing names them", Args: args(1, "a checkpoint id"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := idArg("checkpoint", args[0]); err != nil {
				return err
			}
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				done, err := h.DeleteCheckpoint(ctx, args[0])
				if err != nil {
					return h.explain(ctx, err, "delete", "checkpoint", args[0])
				}
				return a.printer().one(done, done.ID, func(w io.Writer) { fmt.Fprintln(w, done.ID) })
			})
		},
	}
}
