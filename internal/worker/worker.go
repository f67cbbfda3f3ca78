// Package worker is one worker of a fleet: it pulls commands of the pools it serves, claims
// plans, runs them in sandboxes, applies them, and answers for what it holds.
//
// It meets the scheduler only in pkg/events. It must not know flags, how the server was
// started, or how people look at plans.
package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/base"
	"github.com/warmfleet/warmfleet/internal/disk"
	"github.com/warmfleet/warmfleet/internal/egress"
	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/limit"
	"github.com/warmfleet/warmfleet/internal/reserve"
	"github.com/warmfleet/warmfleet/internal/shelf"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
	"github.com/warmfleet/warmfleet/pkg/warmpool"
)

// Fleet is what a worker meets the rest of the fleet through.
type Fleet struct {
	Conn        *nats.Conn
	Subjects    events.Subjects
	Log         events.Log
	Queue       events.Queue
	Output      events.Output
	Workers     kv.Store
	Checkpoints kv.Store
	Pools       kv.Store
	Images      kv.Store
	Sessions    kv.Store
	Store       objectstore.Store
}

// Worker is one worker. Use New, then Run.
type Worker struct {
	cfg   Config
	fleet Fleet
	log   zerolog.Logger

	report  isolate.Report
	strong  strongRung
	limits  *limit.Groups
	mounter isolate.Mounter
	cache   *layer.Cache
	layers  layer.Choice // the driver of views
	disks   *disk.Maker  // nil where none can be made
	reserve *reserve.Reserve
	bases   *base.Store
	repos   *gitrepo.Store
	shelf   *shelf.Shelf // of both
	cps     *checkpoint.Manager
	inits   *warmpool.Pool[*isolate.Init]
	host    sandbox.Host
	tokens  map[string]string // of default and of allowed paths -> that path
	pooling *pooling          // the named ones
	started time.Time
	// applyHook is nil but in tests: see applier.Options.
	applyHook func(point string) error

	facts    chan events.Event // about sandboxes, to be stored
	recorded chan struct{}     // closed when nobody stores them any more

	slots    chan struct{}
	running  sync.WaitGroup
	draining chan struct{}

	mu    sync.Mutex
	plans map[string]*job     // plans under way, by id
	held  map[string]*heldBox // sandboxes kept for people, by id
	// sessions are those that this worker has, by id.
	sessions map[string]*liveSession
}

// New prepares a worker: state directory, isolation probe, caches. It recovers paths that a
// killed worker of this state directory left half changed before it returns.
func New(ctx context.Context, cfg Config, fleet Fleet, log zerolog.Logger) (*Worker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	w := &Worker{
		cfg: cfg, fleet: fleet, log: log.With().Str("worker", cfg.Name).Logger(),
		slots: make(chan struct{}, cfg.Slots), draining: make(chan struct{}), facts: make(chan events.Event, factsQueued),
		recorded: make(chan struct{}),
		plans:    map[string]*job{}, held: map[string]*heldBox{}, sessions: map[string]*liveSession{}, tokens: poolTokens(cfg), started: time.Now().UTC(),
	}
	w.pooling = newPooling(w)
	if err := w.prepare(ctx); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

func (w *Worker) prepare(ctx context.Context) error {
	dir := func(name string) string { return filepath.Join(w.cfg.StateDir, name) }
	layer.RemoveTree(dir("caches")) // of inits that died with another process
	for _, name := range []string{"layers", "bases", "repos", "scratch", "inplace", "caches"} {
		if err := os.MkdirAll(dir(name), 0o700); err != nil {
			return fmt.Errorf("worker: make state directory: %w; use --state-dir to name another", err)
		}
	}
	w.limits = limit.Open(limit.Version(w.cfg.Cgroups))
	disks := w.tryDisks(ctx, dir("scratch"))
	var err error
	if w.report, err = w.probe(ctx, dir("scratch")); err != nil {
		return err
	}
	w.limits.Describe(&w.report)
	if w.report.Rung.Mounts() { // where nothing can be mounted, sandboxes are plain copies
		if w.mounter, err = isolate.NewMounter(w.report.Rung); err != nil {
			return err
		}
	}
	owner := w.report.Rung.Owner()
	if w.cache, err = layer.OpenCache(dir("layers"), layer.Options{Owner: owner, Trusted: owner == isolate.HostID, Log: w.log}); err != nil {
		return err
	}
	if err := w.chooseLayers(); err != nil {
		return err
	}
	w.useDisks(<-disks)
	w.keepReserve()
	if err := w.tryShown(ctx); err != nil {
		return err
	}
	if err := w.openBases(); err != nil {
		return err
	}
	w.cps = checkpoint.New(checkpoint.Config{
		Cache: w.cache, Store: w.fleet.Store, Records: w.fleet.Checkpoints,
		Scratch: dir("scratch"), Worker: w.cfg.Name, Log: w.log, NewID: events.NewID,
		PlanBudget: budget(w.cfg.PlanBudget, DefaultPlanBudget, 0),
	})
	if err := w.sweepCache(true); err != nil {
		return err
	}
	w.warm()
	return w.recoverInPlace(ctx)
}

// warm sets up the pool of started inits; a plan that wants a network starts its own.
func (w *Worker) warm() {
	target := w.cfg.Warm
	if w.holds("none") != nil {
		target = 0 // none could be started
	}
	w.inits = warmpool.New(warmpool.Config[*isolate.Init]{
		Settings: warmpool.Settings{Target: target}, Log: w.log,
		Make:  func(ctx context.Context, _ string) (*isolate.Init, error) { return w.startInit(ctx, "none", false) },
		Alive: func(i *isolate.Init) bool { return open(i.Done()) },
	})
	w.host = sandbox.Host{
		Cache: w.cache, Mounter: w.mounter, Report: w.report, Layers: w.layers, Disks: w.disks, Reserve: w.reserve, Egress: egress.Config{Never: w.never},
		Init: func(ctx context.Context, network string, noSetuid bool) (*isolate.Init, error) {
			if network == "none" && !noSetuid {
				if i, ok := w.inits.Claim(); ok {
					return i, nil
				}
			}
			return w.startInit(ctx, network, noSetuid)
		},
	}
}

func (w *Worker) startInit(ctx context.Context, network string, noSetuid bool) (*isolate.Init, error) {
	return w.startInitOn(ctx, w.report.Rung, network, noSetuid)
}

func (w *Worker) startInitOn(ctx context.Context, rung isolate.Rung, network string, noSetuid bool) (*isolate.Init, error) {
	if err := w.holds(network); err != nil {
		return nil, err
	}
	group, err := w.limits.New()
	if err != nil {
		return nil, err
	}
	caches, err := w.openCaches(ctx)
	if err != nil {
		return nil, errors.Join(err, closeGroup(group))
	}
	defer caches.close()
	i, err := isolate.Start(ctx, isolate.Config{
		Group: group, Caches: caches.list,
		Rung: rung, Network: network, Expose: w.cfg.Expose, NoSetuid: noSetuid && rung.Owner() == isolate.HostID,
		Within: w.cfg.StateDir,
		Log:    func(message string) { w.log.Error().Msg(message) },
	})
	caches.removeWith(i)
	return i, err
}

func closeGroup(g isolate.Group) error {
	if g == nil {
		return nil
	}
	return g.Close()
}

// Run serves until ctx ends, then drains: no new commands, running steps get DrainTimeout,
// and what is still under way is handed over at its last checkpoint.
func (w *Worker) Run(ctx context.Context, ready func()) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	stopRecording := make(chan struct{})
	go w.record(stopRecording)
	defer func() {
		w.dropHeld()
		close(stopRecording)
		<-w.recorded
	}()
	var services sync.WaitGroup
	defer func() {
		end()
		services.Wait()
	}()
	services.Go(func() { w.inits.Run(life) })
	services.Go(func() { w.bases.Run(life) })
	services.Go(func() { w.shelf.Run(life) })
	services.Go(func() { w.reserve.Run(life) })
	api, err := w.serve(life)
	if err != nil {
		return err
	}
	defer func() {
		end() // requests under way are cut short
		api.stop()
	}()
	services.Go(func() { w.present(life) })
	services.Go(func() { w.forgetEnded(life) })
	services.Go(func() { w.sweepOften(life) })
	if err := w.awaitPools(ctx); err != nil {
		return err
	}
	ready()
	var pulls sync.WaitGroup
	for token := range w.tokens {
		pulls.Go(func() { w.pullWhile(ctx, life, token, func() bool { return true }) })
	}
	pulls.Go(func() { w.pooling.run(ctx, life) })
	<-ctx.Done()
	close(w.draining)
	pulls.Wait()
	w.drain()
	w.endSessions()
	return nil
}

// Close frees what New opened. Call it after Run has returned.
func (w *Worker) Close() {
	if w.mounter != nil {
		w.mounter.Close()
	}
	if w.limits != nil {
		if err := w.limits.Close(); err != nil {
			w.log.Warn().Err(err).Msg("remove control groups")
		}
	}
	if w.cache != nil {
		if err := w.cache.Close(); err != nil {
			w.log.Warn().Err(err).Msg("close the layer cache")
		}
	}
}

func open(c <-chan struct{}) bool {
	select {
	case <-c:
		return false
	default:
		return true
	}
}
