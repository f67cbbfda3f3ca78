package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/poolfile"
	"github.com/warmfleet/warmfleet/pkg/warmpool"
)

const (
	// leastFreshen and mostFreshen bound how often idle sandboxes are brought to the remote's tip: half of max_staleness.
	leastFreshen = 5 * time.Second
	mostFreshen  = 5 * time.Minute
	// prewarmFor is how long one sandbox more is kept than the pool says.
	prewarmFor = 5 * time.Minute
)

// keeper keeps a worker's share of one pool warm.
type keeper struct {
	w    *Worker
	name string
	warm *warmpool.Pool[*warmBox]
	// imageKick and freshKick hold one token when there is something to look at.
	imageKick, freshKick chan struct{}
	opening              chan struct{} // held by who opens an image
	rush                 rush

	mu sync.Mutex
	s  keeping
}

// keeping is what a keeper goes by, and what came of it.
type keeping struct {
	spec       poolfile.Pool
	generation uint64
	removed    bool
	latest     events.Latest
	peers      []string
	settled    bool // peers is known
	image      *poolImage
	// imageErr and syncErr are why the latest image could not be opened, and the remote not be fetched.
	imageErr, syncErr string
	lost              string // the latest image, where something of it is gone or damaged
	unheard           int    // how often in a row the idle ones could not be freshened, for lack of the remote
	// behind is how many commits the idle sandbox that is furthest behind lacks, as of synced.
	behind int
	synced gitrepo.Tip
}

func newKeeper(w *Worker, name string, gate *warmpool.Gate) *keeper {
	k := &keeper{
		w: w, name: name, imageKick: make(chan struct{}, 1), freshKick: make(chan struct{}, 1), opening: make(chan struct{}, 1),
	}
	k.warm = warmpool.New(warmpool.Config[*warmBox]{
		Settings: warmpool.Settings{Off: true}, Make: k.make, Alive: (*warmBox).works, Gate: gate,
		Log: w.log.With().Str("pool", name).Logger(),
	})
	return k
}

// now is a copy of what the keeper goes by.
func (k *keeper) now() keeping {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.s
}

// change changes what the keeper goes by and lets it act on that.
func (k *keeper) change(do func(*keeping)) {
	k.mu.Lock()
	do(&k.s)
	k.warm.Configure(k.settings())
	k.mu.Unlock()
	kick(k.imageKick)
	kick(k.freshKick)
}

func kick(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// settings are what the warm pool is to keep. The lock is held.
func (k *keeper) settings() warmpool.Settings {
	s := &k.s
	if s.removed || !s.settled || s.image == nil || !poolfile.SameRepo(s.image.Repo, s.spec.Resource.Repo) {
		return warmpool.Settings{Off: true}
	}
	spread := warmpool.Spread{Target: *s.spec.TargetSize, Least: s.spec.MinIdle}
	return warmpool.Settings{
		Target: spread.Share(s.peers, k.w.cfg.Name), MaxAge: time.Duration(*s.spec.MaxAge),
		Generation: s.image.ID, Shape: shapeOf(s.spec), Making: madeAtOnce,
	}
}

// shapeOf is what of a pool's file cannot be changed in a sandbox that is there.
func shapeOf(spec poolfile.Pool) string {
	limits, err := json.Marshal(spec.Limits)
	if err != nil {
		panic(err) // numbers always encode
	}
	return fmt.Sprintf("%s %s %s %q", spec.Resource.Repo, spec.PlanNetwork, limits, spec.Submodules)
}

// run keeps the pool until ctx ends, and then closes what idles.
func (k *keeper) run(ctx context.Context) {
	var work sync.WaitGroup
	work.Go(func() { k.warm.Run(ctx) })
	work.Go(func() { k.keepImage(ctx) })
	work.Go(func() { k.keepFresh(ctx) })
	work.Wait()
	k.mu.Lock()
	image := k.s.image
	k.s.image = nil
	k.mu.Unlock()
	image.done()
}

// keepImage opens each latest image; one that can't be opened is tried again, and the one before it kept.
func (k *keeper) keepImage(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		pause := warmpool.MaxBackoff
		if err := k.openImage(ctx); err != nil {
			pause = min(warmpool.FirstBackoff<<min(failures, 6), warmpool.MaxBackoff)
			failures++
		} else {
			failures = 0
		}
		waitFor(ctx, k.imageKick, pause)
	}
}

// keepFresh brings idle sandboxes to the remote's tip now and then.
func (k *keeper) keepFresh(ctx context.Context) {
	var last time.Time
	for ctx.Err() == nil {
		s := k.now()
		period := freshenEvery(s.spec)
		pause := min(period<<min(s.unheard, 8), max(period, mostFreshen))
		if due := time.Until(last.Add(pause)); due > 0 || k.warm.Stats().Idle == 0 && s.syncErr == "" {
			waitFor(ctx, k.freshKick, max(due, leastFreshen/10))
			continue
		}
		k.freshen(ctx)
		last = time.Now()
	}
}

func freshenEvery(spec poolfile.Pool) time.Duration {
	if spec.MaxStaleness == nil { // before its record was read
		return leastFreshen
	}
	return min(max(time.Duration(*spec.MaxStaleness)/2, leastFreshen), mostFreshen)
}

// waitFor returns at a kick, after a while, or when ctx ends.
func waitFor(ctx context.Context, kick <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-kick:
	case <-t.C:
	}
}

// freshen fetches the remote once and brings every idle sandbox to its tip.
func (k *keeper) freshen(ctx context.Context) {
	remote := k.w.poolRemote(k.now().spec)
	tip, err := k.sync(ctx, remote)
	if err != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.s.unheard++
		return
	}
	behind := 0
	k.warm.Each(func(b *warmBox) { behind = max(behind, b.freshen(ctx, remote, tip)) })
	k.mu.Lock()
	defer k.mu.Unlock()
	k.s.synced, k.s.behind = tip, behind
}

// sync fetches a remote. How that went with what the pool follows is what the pool says of it, whoever asked.
func (k *keeper) sync(ctx context.Context, remote gitrepo.Remote) (gitrepo.Tip, error) {
	tip, err := k.w.repos.Sync(ctx, remote)
	if ctx.Err() != nil {
		return tip, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if remote.Ref != k.s.spec.Resource.Ref || remote.URL != k.s.spec.Resource.Repo {
		return tip, err
	}
	if k.s.syncErr = text(err); err == nil && k.s.unheard > 0 {
		k.s.unheard = 0
		kick(k.freshKick)
	}
	return tip, err
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// errImageGone is a latest image whose record nobody has any more.
var errImageGone = errors.New("its record is gone")

// openImage brings the latest image into the cache and makes it the one that sandboxes are made of. It does nothing
// where it is that already, or there is none.
func (k *keeper) openImage(ctx context.Context) error {
	select {
	case k.opening <- struct{}{}:
		defer func() { <-k.opening }()
	case <-ctx.Done():
		return ctx.Err()
	}
	s := k.now()
	want := s.latest.Image
	if want == "" || s.image != nil && s.image.ID == want {
		return nil
	}
	image, err := k.w.fetchImage(ctx, want)
	if err != nil && ctx.Err() != nil {
		return err
	}
	if err != nil {
		k.w.log.Warn().Err(err).Str("pool", k.name).Msg("open the latest image")
	}
	old := image
	k.change(func(s *keeping) {
		if s.imageErr, s.lost = text(err), ""; err == nil {
			old, s.image = s.image, image
		} else if lostImage(err) {
			s.lost = want
		}
	})
	old.done()
	return err
}

// lostImage tells whether something of an image is gone or damaged in the store, so that trying again is of no use.
func lostImage(err error) bool {
	for _, gone := range []error{errImageGone, checkpoint.ErrNotFound, checkpoint.ErrMissingLayer, checkpoint.ErrBadLayer} {
		if errors.Is(err, gone) {
			return true
		}
	}
	return false
}

// poolImage is an image whose layers are kept in the cache while somebody uses it.
type poolImage struct {
	events.Image
	chain   layer.Chain
	release func()

	mu    sync.Mutex
	users int
}

// fetchImage brings an image into the cache, layer by layer, only what is missing.
func (w *Worker) fetchImage(ctx context.Context, id string) (*poolImage, error) {
	image := &poolImage{users: 1}
	e, err := w.fleet.Images.Get(ctx, id)
	if errors.Is(err, kv.ErrNotFound) {
		err = errImageGone
	}
	if err == nil {
		err = json.Unmarshal(e.Value, &image.Image)
	}
	if err != nil {
		return nil, fmt.Errorf("worker: open image %q: %w", id, err)
	}
	r, release, err := w.restore(ctx, image.Checkpoint)
	if err != nil {
		return nil, fmt.Errorf("worker: open image %q: %w", id, err)
	}
	image.chain, image.release = r.Chain, release
	return image, nil
}

// use makes the image last until one more done.
func (i *poolImage) use() *poolImage {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.users++
	return i
}

// done ends a use; of no image is nothing to end.
func (i *poolImage) done() {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.users--; i.users == 0 {
		i.release()
	}
}

// current is the image that sandboxes are made of now, in use, nil where there is none.
func (k *keeper) current() *poolImage {
	k.mu.Lock()
	defer k.mu.Unlock()
	if i := k.s.image; i != nil && poolfile.SameRepo(i.Repo, k.s.spec.Resource.Repo) {
		return i.use()
	}
	return nil
}

// prewarm keeps one sandbox more for a while. It claims nothing.
func (k *keeper) prewarm() time.Time {
	until := time.Now().Add(prewarmFor)
	k.warm.Prewarm(until)
	return until
}

// stats are the keeper's part of the worker's record.
func (k *keeper) stats() events.Warm {
	n, s := k.warm.Stats(), k.now()
	out := events.Warm{
		Idle: n.Idle, Target: n.Target, Making: n.Making, Prewarmed: n.Prewarmed, Behind: s.behind, SyncedAt: s.synced.FetchedAt,
		OldestMS: n.Oldest.Milliseconds(), Hits: int64(n.Hits), Misses: int64(n.Misses), Wasted: int64(n.Wasted),
		RefillMS: n.RefillLag.Milliseconds(),
	}
	out.Lost = s.lost
	if s.image != nil {
		out.Image, out.Commit = s.image.ID, s.image.Commit
	}
	k.warm.Each(func(b *warmBox) { out.Commit = b.commit() })
	for _, why := range []string{s.imageErr, n.Error, s.syncErr} {
		if why != "" {
			out.Error = why
			break
		}
	}
	return out
}

// wantsOther says why a claim cannot have what the pool's warm sandboxes are, "" where it can.
func (k *keeper) wantsOther(c poolClaim) string {
	s := k.now()
	switch {
	case s.removed:
		return "the pool is being removed"
	case c.strategy != plan.CopyOnWrite:
		return fmt.Sprintf("strategy %s: warm sandboxes are made with copy_on_write", c.strategy)
	case !c.network.Same(*s.spec.PlanNetwork):
		return fmt.Sprintf("network %s: warm sandboxes of this pool are made with %s", c.network, s.spec.PlanNetwork)
	case c.limits != nil && (s.spec.Limits == nil || *c.limits != *s.spec.Limits):
		return "limits: warm sandboxes of this pool are made with others"
	}
	return ""
}
