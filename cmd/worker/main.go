// Command worker runs plans of a fleet.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmfleet/warmfleet/internal/daemon"
	"github.com/warmfleet/warmfleet/internal/fleet"
	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/natsboot"
	"github.com/warmfleet/warmfleet/internal/worker"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
)

// flags are what people set about a worker.
type flags struct {
	worker.Config
	hostID, prefix, isolation string
	labels                    []string
	shown                     fleet.Shown
	stall                     time.Duration
}

func main() {
	isolate.Main()
	d := &daemon.Daemon{Name: "worker"}
	var f flags
	var cfg worker.Config
	c := d.Command("Run plans in sandboxes, keep checkpoints, apply", func(ctx context.Context, nc *natsboot.Connection) error {
		return serve(ctx, d, nc, cfg, fleet.Options{Prefix: f.prefix, Stall: f.stall})
	})
	f.register(c)
	c.PreRunE = func(*cobra.Command, []string) error { // before a server is waited for
		var err error
		if cfg, err = f.config(); err == nil {
			err = cfg.Validate()
		}
		return daemon.Usage(err)
	}
	os.Exit(daemon.Main(c))
}

func (f *flags) register(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.Name, "name", "", "unique name in the fleet (default the host's name)")
	fl.StringVar(&f.StateDir, "state-dir", "", "directory for layers and bases (WARMFLEET_STATE_DIR)")
	fl.IntVar(&f.Slots, "slots", 2, "plans at once")
	fl.StringSliceVar(&f.Pools, "pools", nil, "named pools to serve")
	fl.StringArrayVar(&f.AllowPaths, "allow-path", nil, "directory that path plans may name; may be repeated")
	fl.StringVar(&f.hostID, "host-id", "", "this host's id (default /etc/machine-id)")
	fl.StringVar(&f.isolation, "isolation", "required", "required, preferred, strong or off")
	fleet.ShownFlags(fl, &f.shown)
	fl.StringVar(&f.Layers, "layers", "", "how sandboxes' trees are made: auto, overlay, reflink or copy (WARMFLEET_LAYERS; default auto)")
	fl.StringArrayVar(&f.labels, "labels", nil, "key=value; may be repeated")
	fl.Var((*fleet.Bytes)(&f.BaseBudget), "base-budget", "what bases may take on disk; 0: a fifth of the file system, -1: no bound")
	fl.DurationVar(&f.RemoteStall, "remote-stall", gitrepo.DefaultTimeout, "how long a git remote may give no sign of life before it is given up")
	fl.DurationVar(&f.DrainTimeout, "drain-timeout", worker.DefaultDrain, "how long running steps may go on after SIGTERM")
	fleet.LimitFlags(fl, &f.Config)
	fleet.BudgetFlags(fl, &f.Config)
	fleet.SecretFlags(fl, &f.Config)
	fleet.AuthorFlag(fl, &f.Config)
	fl.DurationVar(&f.stall, "transfer-stall", objectstore.DefaultStall, "how long a transfer of layers may make no progress before it fails")
	fl.StringVar(&f.prefix, "prefix", "", `first token of all subjects (default "fleet")`)
}

func serve(ctx context.Context, d *daemon.Daemon, nc *natsboot.Connection, cfg worker.Config, o fleet.Options) error {
	layers, err := d.Dial(ctx, "worker layers")
	if err != nil {
		return err
	}
	defer layers.Close()
	o.Layers = layers.JS
	shared, err := openWhenDeclared(ctx, d, nc, o)
	if err != nil {
		return err
	}
	w, err := shared.Worker(ctx, cfg, d.Log)
	if errors.Is(err, worker.ErrNoStrong) {
		err = daemon.Guarantee(err)
	}
	if err != nil {
		return err
	}
	defer w.Close()
	d.Measure(w.Metrics())
	return w.Run(ctx, func() { d.Ready("worker %s on %s", cfg.Name, nc.URL) })
}

func (f flags) config() (worker.Config, error) {
	cfg := f.Config
	cfg.HostID = fleet.HostID(f.hostID)
	cfg.Isolation = worker.Isolation(f.isolation)
	cfg.Warm = cfg.Slots
	cfg.Layers = fleet.Layers(f.Layers)
	var err error
	if cfg.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return cfg, fmt.Errorf("name: %w: set --name", err)
		}
		cfg.Name = strings.ReplaceAll(host, ".", "-") // the name is one token of subjects
	}
	dir, err := natsboot.StateDir(f.StateDir)
	if err != nil {
		return cfg, err
	}
	cfg.StateDir = filepath.Join(dir, "worker")
	if cfg.Expose, cfg.Caches, err = f.shown.Dirs(); err != nil {
		return cfg, err
	}
	if st, err := os.Stat(cfg.SecretsDir); cfg.SecretsDir != "" && (err != nil || !st.IsDir()) {
		return cfg, fmt.Errorf("--secrets-dir %q: no such directory: name one that exists", cfg.SecretsDir)
	}
	if cfg.AllowPaths, err = worker.RealPaths(f.AllowPaths); err != nil {
		return cfg, err
	}
	cfg.Labels = map[string]string{}
	for _, l := range f.labels {
		key, value, ok := strings.Cut(l, "=")
		if !ok {
			return cfg, errors.New("--labels " + l + ": write key=value")
		}
		cfg.Labels[key] = value
	}
	return cfg, nil
}

// openWhenDeclared waits for a scheduler to have made the streams.
func openWhenDeclared(ctx context.Context, d *daemon.Daemon, nc *natsboot.Connection, o fleet.Options) (*fleet.Fleet, error) {
	for {
		f, err := fleet.Open(ctx, nc.JS, o)
		if err == nil {
			return f, nil
		}
		d.Log.Warn().Err(err).Msg("waiting for a scheduler to set the fleet up")
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}
