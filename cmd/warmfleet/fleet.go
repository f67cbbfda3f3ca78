package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/warmfleet/warmfleet/internal/fleet"
	"github.com/warmfleet/warmfleet/internal/natsboot"
	"github.com/warmfleet/warmfleet/internal/scheduler"
	"github.com/warmfleet/warmfleet/internal/version"
	"github.com/warmfleet/warmfleet/internal/worker"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// upFlags are the flags of `up`.
type upFlags struct {
	workers   int
	slots     int
	listen    string
	paths     []string
	shown     fleet.Shown
	isolation string
	layers    string
	budget    int64
	keep      *scheduler.Keep
	worker    worker.Config // of it only what the flags of up set
}

func (a *app) upCommand() *cobra.Command {
	var f upFlags
	c := &cobra.Command{
		Use: "up", Short: "Run a whole fleet in this process until it is stopped", Args: args(0, "no arguments"),
		Long: `Run a NATS server, a scheduler and workers in this process until it is stopped. Other commands of this user find
it by the state directory; programs by <state directory>/nats.env or the nats context warmfleet-local. It listens
on loopback only, with credentials of its own. Workers on other hosts need a server of yours: see deploy/nats.conf.`,
		Example: `  warmfleet up --allow-path ~/src
  warmfleet up --workers 0 --listen 127.0.0.1:4222     # server and scheduler; workers are processes of their own`,
		RunE: func(c *cobra.Command, _ []string) error { return a.up(c.Context(), f) },
	}
	fl := c.Flags()
	fl.IntVar(&f.workers, "workers", 1, "how many workers; 0: only server and scheduler")
	fl.IntVar(&f.slots, "slots", 4, "plans at once on each worker")
	fl.StringVar(&f.listen, "listen", "", "host:port of NATS on loopback (default a random port)")
	fl.StringArrayVar(&f.paths, "allow-path", nil, "directory that path plans may name; may be repeated")
	fleet.ShownFlags(fl, &f.shown)
	fl.StringVar(&f.isolation, "isolation", "required", "required, preferred, strong or off")
	fl.StringVar(&f.layers, "layers", "", layersHelp)
	fl.Var((*fleet.Bytes)(&f.budget), "base-budget", "what bases may take on disk for each worker; 0: a fifth of the file system, -1: no bound")
	f.keep = fleet.KeepFlags(fl)
	fleet.BudgetFlags(fl, &f.worker)
	fleet.SecretFlags(fl, &f.worker)
	fleet.AuthorFlag(fl, &f.worker)
	fleet.CgroupsFlag(fl, &f.worker)
	fleet.ReserveFlag(fl, &f.worker)
	return c
}

func (a *app) up(ctx context.Context, f upFlags) error {
	if f.workers < 0 || f.workers > 64 {
		return usagef("--workers %d: use 0 to 64", f.workers)
	}
	if !slices.Contains([]string{"required", "preferred", "strong", "off"}, f.isolation) {
		return usagef("--isolation %q: use required, preferred, strong or off", f.isolation)
	}
	if err := errors.Join(checkLayers(f.layers), checkCgroups(f.worker.Cgroups), checkWorkerFlags(f.worker)); err != nil {
		return err
	}
	if f.listen != "" {
		if _, port, err := net.SplitHostPort(f.listen); err != nil || port == "" || strings.Trim(port, "0123456789") != "" {
			return usagef("--listen %q: write host:port, as in 127.0.0.1:4222", f.listen)
		}
	}
	if f.slots < 1 {
		return usagef("--slots %d: at least 1 is needed", f.slots)
	}
	if f.budget < worker.Unbounded {
		return usagef("--base-budget %d: use a number of bytes, 0 for the default or -1 for no bound", f.budget)
	}
	if err := f.keep.Validate(); err != nil {
		return &coded{exitUsage, err}
	}
	dir, err := natsboot.StateDir(a.stateDir)
	if err != nil {
		return &coded{exitUsage, err}
	}
	l, err := fleet.OpenLocal(ctx, fleet.LocalOptions{StateDir: dir, Listen: f.listen, MustHold: true, Context: true, Keep: f.keep, Log: a.log()})
	if errors.Is(err, natsboot.ErrNotLoopback) {
		return &coded{exitUsage, err}
	}
	if err != nil {
		return err
	}
	err = a.serve(ctx, l, f)
	if closed := l.Close(context.WithoutCancel(ctx)); err == nil {
		return closed
	}
	return err
}

// serve adds the workers, says that all is ready and waits for the end.
func (a *app) serve(ctx context.Context, l *fleet.Local, f upFlags) error {
	paths, err := worker.RealPaths(f.paths)
	if err != nil {
		return &coded{exitUsage, err}
	}
	expose, caches, err := f.shown.Dirs()
	if err != nil {
		return &coded{exitUsage, err}
	}
	for i := range f.workers {
		err := l.AddWorker(ctx, worker.Config{
			Name: fmt.Sprintf("up-%d", i+1), HostID: fleet.HostID(""), Slots: f.slots, AllowPaths: paths, Expose: expose, Caches: caches,
			Isolation: worker.Isolation(f.isolation), Layers: fleet.Layers(f.layers), Warm: f.slots, DrainTimeout: worker.DefaultDrain,
			BaseBudget:  f.budget,
			CacheBudget: f.worker.CacheBudget, PlanBudget: f.worker.PlanBudget,
			SecretsDir: f.worker.SecretsDir, Author: f.worker.Author, Cgroups: f.worker.Cgroups, DiskReserve: f.worker.DiskReserve,
		})
		if err != nil {
			return err
		}
	}
	a.note("ready: NATS at %s, state in %s, credentials in %s/nats.env", l.URL(), l.Dir(), l.Dir())
	select {
	case <-ctx.Done():
		a.note("stopping: running steps get %s, then their plans are handed over; again ends at once", worker.DefaultDrain)
		return nil
	case err := <-l.Failed():
		return err
	}
}

func (a *app) workerCommand() *cobra.Command {
	c := &cobra.Command{Use: "worker", Short: "Look at workers"}
	c.AddCommand(a.workerLs(), a.workerShow())
	return c
}

func (a *app) workerLs() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List live workers", Args: args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				workers, err := h.Workers(ctx)
				if err != nil {
					return err
				}
				s := sheet{data: workers, header: []string{"NAME", "STATE", "FREE", "SLOTS", "ISOLATION", "HOST"}, wide: 1}
				for _, w := range workers {
					s.rows = append(s.rows, []any{w.Name, stateOf(w), w.Free, w.Slots, isolationOf(w), w.Host})
				}
				return a.printer().list(s)
			})
		},
	}
}

func (a *app) workerShow() *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Aliases: []string{"get", "info"}, Short: "Show a live worker", Args: args(1, "a worker's name"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				workers, err := h.Workers(ctx)
				if err != nil {
					return err
				}
				for _, w := range workers {
					if w.Name == args[0] {
						return a.printer().one(w, w.Name, func(out io.Writer) {
							fmt.Fprintf(out, "name       %s\nhost       %s\nstate      %s\nslots      %d, %d free\nisolation  %s\n", w.Name, w.Host, stateOf(w), w.Slots, w.Free, isolationOf(w))
							if w.Paused != "" {
								fmt.Fprintf(out, "paused     %s\n", w.Paused)
							}
							for _, token := range slices.Sorted(maps.Keys(w.Pools)) {
								fmt.Fprintf(out, "pool       %s %s\n", token, w.Pools[token])
							}
						})
					}
				}
				return &coded{exitNotFound, fmt.Errorf("worker %q: is not live: see warmfleet worker ls", args[0])}
			})
		},
	}
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: args(0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version string `json:"version"`
			}{version.Version()}
			return a.printer().one(v, v.Version, func(w io.Writer) { fmt.Fprintln(w, "warmfleet", v.Version) })
		},
	}
}

// stateOf is a worker's state for people.
func stateOf(w events.Worker) string {
	if w.State == events.WorkerReady && w.Paused != "" {
		return "paused"
	}
	return w.State
}
