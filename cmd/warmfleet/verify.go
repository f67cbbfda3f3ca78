package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
)

func (a *app) verifyCommand() *cobra.Command {
	var part string
	c := &cobra.Command{
		Use: "verify", Short: "Check that everything stored checkpoints need is there", Args: args(0, "no arguments"),
		Long: `Check that every layer that a stored checkpoint names is there, in the size and with the digest of its record. With
--read-data-subset n/t the n-th of t parts is also read whole and decoded: n = 1 to t, one a day, reads all of it. What is
found corrupt is put in quarantine: nobody uses it, and a worker that still has the layer stores it anew. Exit code 1 when
something is wrong.`,
		Example: `  warmfleet verify
  warmfleet verify --read-data-subset 1/7      # a seventh of the data
  warmfleet verify --read-data-subset 1/1      # all of it`,
		RunE: func(c *cobra.Command, _ []string) error {
			var read checkpoint.Part
			if part != "" {
				var err error
				if read, err = checkpoint.ParsePart(part); err != nil {
					return usagef("--read-data-subset %q: write n/t with n from 1 to t, as in 1/7", part)
				}
			}
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				found, err := checkpoint.Verify(ctx, h.fleet.Store, h.fleet.Checkpoints, read)
				if err != nil {
					return err
				}
				return a.verdict("verify", shownVerified(found))
			})
		},
	}
	c.Flags().StringVar(&part, "read-data-subset", "", "n/t: also read the n-th of t parts of the data")
	return c
}

func (a *app) checkpointVerify() *cobra.Command {
	return &cobra.Command{
		Use: "verify ID", Short: "Read everything a stored checkpoint needs, its base included", Args: args(1, "a checkpoint id"),
		Long: `Read every layer of a stored checkpoint whole, its base included: size and digest as stored and of the tar, and that it
decodes within the limits. Exit code 1 when something is wrong; what is found corrupt is put in quarantine.`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := idArg("checkpoint", args[0]); err != nil {
				return err
			}
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				found, err := h.VerifyCheckpoint(ctx, args[0])
				if err != nil {
					return h.explain(ctx, err, "verify", "checkpoint", args[0])
				}
				return a.verdict("checkpoint "+args[0], found)
			})
		},
	}
}

// shownVerified is what a verification in this process found, as the API would say it.
func shownVerified(v checkpoint.Verified) api.Verified {
	out := api.Verified{
		Checkpoints: v.Checkpoints, Objects: v.Objects, Read: v.Read, ReadBytes: v.ReadBytes,
		Problems: []api.Problem{}, Orphans: v.Orphans, OrphanBytes: v.OrphanBytes,
	}
	for _, p := range v.Problems {
		out.Problems = append(out.Problems, api.Problem(p))
	}
	return out
}

// verdict prints what was found; problems make it an error.
func (a *app) verdict(what string, v api.Verified) error {
	state := "ok"
	if len(v.Problems) > 0 {
		state = "bad"
	}
	err := a.printer().one(v, state, func(w io.Writer) { writeVerified(w, v) })
	if err == nil && len(v.Problems) > 0 {
		return fmt.Errorf("%s: %d stored objects are not as they should be: checkpoints that need them can't be restored elsewhere", what, len(v.Problems))
	}
	return err
}

func writeVerified(w io.Writer, v api.Verified) {
	for _, p := range v.Problems {
		fmt.Fprintf(w, "%s  %s  needed by %s: %s\n", p.Kind, p.Object, strings.Join(p.Checkpoints, " "), p.What)
	}
	fmt.Fprintf(w, "%d checkpoints, %d objects, %d of them read (%s), %d problems\n", v.Checkpoints, v.Objects, v.Read, size(v.ReadBytes), len(v.Problems))
	if n := len(v.Orphans); n > 0 {
		fmt.Fprintf(w, "%d objects that no checkpoint names (%s): warmfleet gc removes them in time\n", n, size(v.OrphanBytes))
	}
}
