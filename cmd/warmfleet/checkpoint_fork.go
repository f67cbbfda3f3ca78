package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/warmfleet/warmfleet/internal/worker"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/client"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// sandboxVerb is a command that makes a sandbox of a checkpoint.
type sandboxVerb struct {
	use, short, long, explain string
	make                      func(c *client.Client, ctx context.Context, id, worker string) (api.RolledBack, error)
}

func (a *app) checkpointRollback() *cobra.Command {
	return a.sandboxCommand(sandboxVerb{
		use: "rollback ID", short: "Make a sandbox in the state of a checkpoint, kept for an hour", explain: "roll back to",
		make: (*client.Client).Rollback,
	})
}

func (a *app) checkpointFork() *cobra.Command {
	return a.sandboxCommand(sandboxVerb{
		use: "fork ID", short: "Start a new sandbox from a checkpoint, kept for an hour", explain: "fork",
		long: `Start a new sandbox from a checkpoint, on any worker, kept for an hour. It stands on the checkpoint's layers, which are
not copied; what it writes is its own. The sandbox that the checkpoint was taken of, and other forks, see nothing of it. A
checkpoint that is not stored yet is forked on the worker that holds it.`,
		make: (*client.Client).Fork,
	})
}

func (a *app) sandboxCommand(v sandboxVerb) *cobra.Command {
	var on string
	c := &cobra.Command{
		Use: v.use, Short: v.short, Long: v.long, Args: args(1, "a checkpoint id"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := idArg("checkpoint", args[0]); err != nil {
				return err
			}
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				if err := a.workForNow(ctx, h); err != nil {
					return err
				}
				r, err := v.make(h.Client, ctx, args[0], on)
				if err != nil {
					return h.explain(ctx, err, v.explain, "checkpoint", args[0])
				}
				return a.printer().one(r, r.Sandbox, func(w io.Writer) { fmt.Fprintf(w, "sandbox %s on %s: %s\n", r.Sandbox, r.Worker, r.State) })
			})
		},
	}
	c.Flags().StringVar(&on, "worker", "", "the worker to make it on; any live one if absent")
	return c
}

// workForNow gives a fleet that lives in this process a worker, and says that both end with it.
func (a *app) workForNow(ctx context.Context, h *handle) error {
	if h.local == nil || !h.local.Holds() {
		return nil
	}
	if err := h.work(ctx, events.Resource{}, worker.Config{}); err != nil {
		return err
	}
	if err := h.awaitWorker(ctx); err != nil {
		return err
	}
	a.note("this fleet ends with the command, and the sandbox with it: run warmfleet up to keep one, or checkpoint export to get the files")
	return nil
}
