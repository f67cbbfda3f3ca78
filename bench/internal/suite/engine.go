package suite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/base"
	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

// engine is what a worker makes sandboxes and checkpoints with, without the fleet around it.
type engine struct {
	report  isolate.Report
	mounter isolate.Mounter
	cache   *layer.Cache
	bases   *base.Store
	cps     *checkpoint.Manager
	host    sandbox.Host
}

// stored is where an engine's checkpoints become portable.
type stored struct {
	store   objectstore.Store
	records kv.Store
}

// inMemory is for what does not measure storing.
func inMemory() stored { return stored{objectstore.NewMemory(), kv.NewMemory()} }

// newEngine makes an engine whose caches lie below dir, as package worker does.
func newEngine(ctx context.Context, dir string, s stored) (*engine, error) {
	sub := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"layers", "bases", "scratch"} {
		if err := os.MkdirAll(sub(name), 0o711); err != nil {
			return nil, err
		}
	}
	g := &engine{}
	var err error
	if g.report, err = isolate.Probe(ctx, sub("scratch")); err != nil {
		return nil, err
	}
	if !g.report.Overlay {
		return nil, fmt.Errorf("no overlay here: %s", g.report.OverlayWhy)
	}
	if g.mounter, err = isolate.NewMounter(g.report.Rung); err != nil {
		return nil, err
	}
	o := layer.Options{Owner: os.Getuid(), Log: zerolog.Nop()}
	if g.report.Rung == isolate.RungRoot {
		o.Owner, o.Trusted = isolate.HostID, true
	}
	if g.cache, err = layer.OpenCache(sub("layers"), o); err != nil {
		return nil, errors.Join(err, g.mounter.Close())
	}
	g.bases, err = base.Open(base.Options{Dir: sub("bases"), Cache: g.cache, Log: zerolog.Nop()})
	g.cps = checkpoint.New(checkpoint.Config{
		Cache: g.cache, Store: s.store, Records: s.records, Scratch: sub("scratch"), Worker: "bench", Log: zerolog.Nop(), NewID: events.NewID,
	})
	g.host = sandbox.Host{Cache: g.cache, Mounter: g.mounter, Report: g.report, Layers: layer.Choice{Driver: layer.Overlay}, Init: func(ctx context.Context, _ string, _ bool) (*isolate.Init, error) {
		return g.start(ctx, "")
	}}
	return g, err
}

// close ends an engine; its directory goes with the benchmark's.
func (g *engine) close() { _ = errors.Join(g.mounter.Close(), g.cache.Close()) }

// start starts an init; binary "" is what a worker would take.
func (g *engine) start(ctx context.Context, binary string) (*isolate.Init, error) {
	return isolate.Start(ctx, isolate.Config{Rung: g.report.Rung, Binary: binary})
}

// on makes a sandbox that the checkpoint manager knows; all of chain is its base.
func (g *engine) on(ctx context.Context, chain layer.Chain) (*sandbox.Sandbox, error) {
	sb, err := g.make(ctx, chain, g.host)
	if err == nil {
		g.cps.Adopt(sb, len(chain))
	}
	return sb, err
}

func (g *engine) make(ctx context.Context, chain layer.Chain, host sandbox.Host) (*sandbox.Sandbox, error) {
	return sandbox.New(ctx, host, sandbox.Spec{ID: events.NewID(), Strategy: sandbox.CopyOnWrite, Chain: chain, Network: isolate.NetworkNone})
}

// onTree makes a sandbox on the base image of a tree, and takes its pre_execute checkpoint.
func (g *engine) onTree(ctx context.Context, t tree) (*sandbox.Sandbox, checkpoint.Checkpoint, error) {
	b, err := g.bases.FromPath(ctx, t.dir)
	if err != nil {
		return nil, checkpoint.Checkpoint{}, err
	}
	sb, err := g.on(ctx, b.Chain)
	if err != nil {
		return nil, checkpoint.Checkpoint{}, err
	}
	pre, err := g.cps.Create(ctx, sb, "", checkpoint.PreExecute, nil)
	if err != nil {
		return nil, pre, errors.Join(err, sb.Close())
	}
	return sb, pre, nil
}

// writeIn writes a change into a sandbox, as a write_file step does.
func (c change) writeIn(ctx context.Context, sb *sandbox.Sandbox) error {
	for name, b := range c {
		if err := sb.WriteFile(ctx, isolate.FileWrite{Path: name, Content: b, MkdirAll: true}); err != nil {
			return err
		}
	}
	return nil
}

// execute runs a command that must succeed.
func execute(ctx context.Context, sb *sandbox.Sandbox, argv ...string) error {
	res, err := sb.Exec(ctx, isolate.Command{Argv: argv, Env: sb.BaseEnv()})
	if err != nil {
		return err
	}
	if res.Cause != isolate.CauseExit || res.ExitCode == nil || *res.ExitCode != 0 {
		return fmt.Errorf("%v in a sandbox: %s %s %s", argv, res.Cause, res.Signal, res.StartError)
	}
	return nil
}
