package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/poolfile"
)

func (a *app) poolCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "pool", Short: "Keep sandboxes of a repository warm: built, fresh and ready to be claimed",
		Example: `  warmfleet pool apply examples/pool.yaml
  warmfleet pool show api
  warmfleet pool refresh api         # build the image now`,
	}
	c.AddCommand(a.poolLs(), a.poolShow(), a.poolApply(), a.poolRm(), a.poolPrewarm(), a.poolRefresh())
	return c
}

func (a *app) poolLs() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List pools by name", Args: args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				pools, err := h.Pools(ctx)
				if err != nil {
					return err
				}
				s := sheet{data: pools, header: []string{"NAME", "STATE", "WARM", "HIT RATE", "BUILT", "ERROR", "COMMIT", "IMAGE"}, wide: 2}
				for _, p := range pools {
					s.rows = append(s.rows, []any{p.Name, p.State, fmt.Sprintf("%d/%d", p.Warm, p.TargetSize), hitRate(p), age(p.BuiltAt), oneLine(p.Error), p.Commit, p.Image})
				}
				return a.printer().list(s)
			})
		},
	}
}

func (a *app) poolShow() *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Aliases: []string{"get", "info"}, Short: "Show a pool", Args: args(1, "a pool's name"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				p, err := h.Pool(ctx, args[0])
				if err != nil {
					return h.explain(ctx, err, "show", "pool", args[0])
				}
				return a.printer().one(p, p.Name, func(w io.Writer) { describePool(w, p) })
			})
		},
	}
}

func describePool(out io.Writer, p api.Pool) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer w.Flush()
	line := func(name, format string, args ...any) { fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	ms := func(n int64) time.Duration { return (time.Duration(n) * time.Millisecond).Round(time.Millisecond) }
	line("name", "%s", p.Name)
	line("state", "%s", p.State)
	if p.Error != "" {
		line("error", "%s", oneLine(p.Error))
	}
	if p.Image != "" {
		stale := ""
		if p.Stale {
			stale = ", stale"
		}
		line("image", "%s, built %s ago%s", p.Image, age(p.BuiltAt), stale)
		line("commit", "%s", p.Commit)
	}
	line("warm", "%d of %d, oldest %s", p.Warm, p.TargetSize, ms(p.OldestMS))
	for _, name := range slices.Sorted(maps.Keys(p.Workers)) {
		one := p.Workers[name]
		line("  "+name, "%d of %d %s", one.Idle, one.Target, oneLine(one.Error))
	}
	line("behind", "%d commits, synced %s ago", p.Behind, ms(p.StalenessMS))
	line("hits", "%s (%d warm, %d cold)", hitRate(p), p.Hits, p.Misses)
	line("refill", "%s", ms(p.RefillMS))
	line("wasted", "%d", p.Wasted)
	if p.Prewarmed > 0 {
		line("prewarmed", "%d", p.Prewarmed)
	}
	line("generation", "%d", p.Generation)
}

// hitRate is how many claims found a warm sandbox, in percent.
func hitRate(p api.Pool) string {
	if p.Hits+p.Misses == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*p.HitRate)
}

func (a *app) poolApply() *cobra.Command {
	return &cobra.Command{
		Use: "apply FILE", Short: "Make a pool, or bring it to what its file says now", Args: args(1, "a pool file, or - for stdin"),
		Long: `Make a pool, or bring it to what its file says now. A file that was applied before changes nothing. One with a fault is
refused with every fault, and changes nothing either. The fleet goes on by itself: a worker builds the image, and workers
keep sandboxes of it warm. See docs/pools.md for every field.`,
		RunE: func(c *cobra.Command, args []string) error {
			spec, err := a.poolFile(c.Context(), args[0])
			if err != nil {
				return err
			}
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				done, err := h.ApplyPool(ctx, spec.Canonical())
				if err != nil {
					return err
				}
				return a.printPoolChanged(done)
			})
		},
	}
}

// poolFile reads and checks a pool file.
func (a *app) poolFile(ctx context.Context, name string) (*poolfile.Pool, error) {
	const noun = "pool file"
	var src []byte
	var err error
	if name == "-" {
		src, err = a.stdinText(ctx, noun+" -")
	} else {
		src, err = source(ctx, noun, name)
	}
	if err != nil {
		return nil, err
	}
	return poolfile.ParseYAML(name, src)
}

func (a *app) printPoolChanged(done api.PoolChanged) error {
	return a.printer().one(done, done.Name, func(w io.Writer) {
		if !done.Changed {
			fmt.Fprintf(w, "%s unchanged\n", done.Name)
			return
		}
		fmt.Fprintf(w, "%s %s\n", done.Name, done.State)
	})
}

func (a *app) poolRm() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "rm NAME", Aliases: []string{"delete"}, Short: "Remove a pool; its warm sandboxes end, what was claimed goes on", Args: args(1, "a pool's name"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				done, err := h.DeletePool(ctx, args[0], force)
				if err != nil {
					return h.explain(ctx, err, "remove", "pool", args[0])
				}
				return a.printPoolChanged(done)
			})
		},
	}
	c.Flags().BoolVar(&force, "force", false, "also one that plans wait for: they wait until the pool is applied again")
	return c
}

func (a *app) poolPrewarm() *cobra.Command {
	return &cobra.Command{
		Use: "prewarm NAME", Short: "Have one more sandbox made ready, for somebody who is about to need it", Args: args(1, "a pool's name"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				p, err := h.PrewarmPool(ctx, args[0])
				if err != nil {
					return h.explain(ctx, err, "prewarm", "pool", args[0])
				}
				return a.printer().one(p, p.Name, func(w io.Writer) {
					fmt.Fprintf(w, "%s: one more on %s until %s\n", p.Name, p.Worker, p.Expires.Local().Format(time.TimeOnly))
				})
			})
		},
	}
}

func (a *app) poolRefresh() *cobra.Command {
	var scratch bool
	c := &cobra.Command{
		Use: "refresh NAME", Short: "Build a pool's image now instead of at the next interval", Args: args(1, "a pool's name"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				b, err := h.RefreshPool(ctx, args[0], scratch)
				if err != nil {
					return h.explain(ctx, err, "build", "pool", args[0])
				}
				return a.printBuilding(b)
			})
		},
	}
	c.Flags().BoolVar(&scratch, "scratch", false, "from a new clone instead of on the last image")
	return c
}

func (a *app) printBuilding(b api.Building) error {
	if b.Queued {
		a.note("pool %s: a build is queued or under way already: it is that one", b.Pool)
	}
	return a.printer().one(b, b.ID, func(w io.Writer) { fmt.Fprintln(w, b.ID) })
}
