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
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/base"
	"github.com/warmfleet/warmfleet/internal/egress"
	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/limit"
	"github.com/warmfleet/warmfleet/internal/shelf"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
	"github.com/warmfleet/warmfleet/pkg/warmpool"
)

// DefaultDrain is how long running steps may go on after a daemon was asked to stop.
const DefaultDrain = 60 * time.Second

// DefaultPullWait is when a pull of commands expires (design 3.4).
const DefaultPullWait = time.Second

// Config is what people set about a worker.
type Config struct {
	// Name is unique in the fleet: letters, digits, - and _.
	Name string
	// HostID is the id of the host whose paths this worker serves; "" serves no paths.
	HostID string
	// StateDir is private to this worker.
	StateDir string
	// Slots is how many plans run at once.
	Slots int
	// Pools are the named pools that are served, once they are applied; none: all that are.
	Pools []string
	// NoPools serves no named pools; Pools is empty then.
	NoPools bool
	// AllowPaths are the directories (with all below them) that path plans may name.
	AllowPaths []string
	// Isolation is Required where empty.
	Isolation Isolation
	// Expose are host directories that every sandbox sees read-only.
	Expose []string
	// Caches are host directories, by name, that every sandbox has a private copy of, made as it writes.
	Caches map[string]string
	Labels map[string]string
	// SecretsDir holds secrets of plans, one file each, "" for none; see secret.Dir.
	SecretsDir string
	// Layers names the driver that sandboxes' trees are made with: auto (also ""), overlay, reflink or copy.
	Layers string
	// Cgroups names the control groups that bound plans: auto (also ""), v2, v1 or none.
	Cgroups string
	// BaseBudget is how much bases of paths and repositories may take on disk, in bytes, before those that were not
	// used for longest go; a fifth of the state directory's file system if zero, Unbounded for no bound.
	BaseBudget int64
	// RemoteStall is how long a git remote may give no sign of life; gitrepo.DefaultTimeout if zero.
	RemoteStall time.Duration
	// Warm is how many started inits wait for a plan.
	Warm int
	// PullWait is how long one pull of commands waits, and with it how long a stop may take to
	// be noticed; DefaultPullWait if zero.
	PullWait time.Duration
	// CacheBudget bounds the layers in the cache that nothing here uses, in bytes; 0 is
	// DefaultCacheBudget, less keeps none.
	CacheBudget int64
	// PlanBudget bounds what the layers of one plan take in the object store, in bytes; 0 is
	// DefaultPlanBudget, less is no bound.
	PlanBudget int64
	// DrainTimeout bounds how long running steps may go on after a stop was asked.
	DrainTimeout time.Duration
	// Grace is the time between SIGTERM and SIGKILL of a step; isolate.DefaultGrace if zero.
	Grace time.Duration
	// Limits bound every plan; a plan can only ask for less.
	Limits isolate.Limits
}

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
	limits  *limit.Groups
	mounter isolate.Mounter
	cache   *layer.Cache
	layers  layer.Choice // the driver of views
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

// Validate fills in defaults and says which field is wrong, and why.
func (c *Config) Validate() error {
	if c.PullWait == 0 {
		c.PullWait = DefaultPullWait
	}
	if c.Isolation == "" {
		c.Isolation = Required
	}
	for _, pool := range c.Pools {
		if err := events.ValidPool(pool); err != nil || pool == "default" || strings.HasPrefix(pool, "h-") {
			return fmt.Errorf("worker: config: pools: %q is not the name of a pool: use a-z, 0-9 and -, up to 40, not default and not beginning with h-", pool)
		}
	}
	if _, err := layer.ParseDriver(c.Layers); err != nil {
		return fmt.Errorf("worker: config: %w", err)
	}
	if _, err := limit.ParseVersion(c.Cgroups); err != nil {
		return fmt.Errorf("worker: config: %w", err)
	}
	switch {
	case events.ValidToken(c.Name) != nil:
		return fmt.Errorf("worker: config: name is %q: use letters, digits, - and _", c.Name)
	case c.Slots < 1:
		return fmt.Errorf("worker: config: slots is %d, at least 1 is needed", c.Slots)
	case c.Isolation != Required && c.Isolation != Preferred && c.Isolation != Off:
		return fmt.Errorf("worker: config: isolation is %q: use required, preferred or off", c.Isolation)
	case c.BaseBudget < Unbounded:
		return fmt.Errorf("worker: config: base-budget is %d: use a number of bytes, 0 for the default or -1 for no bound", c.BaseBudget)
	case c.RemoteStall < 0:
		return fmt.Errorf("worker: config: remote-stall is %s: use a duration above 0", c.RemoteStall)
	case c.NoPools && len(c.Pools) > 0:
		return errors.New("worker: config: pools are named, and none is to be served: choose one")
	case len(c.AllowPaths) > 0 && c.HostID == "":
		return errors.New("worker: config: paths are allowed but this host has no id: no /etc/machine-id; set --host-id")
	case len(c.AllowPaths) > 0 && events.ValidPool(events.PoolToken(c.HostID, "/")) != nil:
		return fmt.Errorf("worker: config: host-id is %q: use letters, digits and -, up to 50", c.HostID)
	}
	return nil
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
	var err error
	if w.cfg.Isolation == Off {
		w.report = offReport()
	} else if w.report, err = isolate.Probe(ctx, dir("scratch")); err != nil {
		return err
	}
	w.limits.Describe(&w.report)
	if w.report.Rung != isolate.RungBare { // where nothing can be mounted, sandboxes are plain copies
		if w.mounter, err = isolate.NewMounter(w.report.Rung); err != nil {
			return err
		}
	}
	root := w.report.Rung == isolate.RungRoot
	owner := os.Getuid()
	if root {
		owner = isolate.HostID
	}
	if w.cache, err = layer.OpenCache(dir("layers"), layer.Options{Owner: owner, Trusted: root, Log: w.log}); err != nil {
		return err
	}
	if err := w.chooseLayers(); err != nil {
		return err
	}
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
		Cache: w.cache, Mounter: w.mounter, Report: w.report, Layers: w.layers, Egress: egress.Config{Never: w.never},
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
		Rung: w.report.Rung, Network: network, Expose: w.cfg.Expose, NoSetuid: noSetuid && w.report.Rung == isolate.RungRoot,
		Log: func(message string) { w.log.Error().Msg(message) },
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
