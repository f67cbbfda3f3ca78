package worker

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/poolfile"
	"github.com/warmfleet/warmfleet/pkg/warmpool"
)

const (
	// madeAtOnce is how many warm sandboxes a worker makes at once, over all of its pools.
	madeAtOnce = 2
	// queuePause is how often at most a queue is looked for that a scheduler has yet to make.
	queuePause = time.Second
	// rewatch is the pause before a bucket is watched again whose watch broke off.
	rewatch = time.Second
)

// pooling is the named pools that a worker serves, as their records say.
type pooling struct {
	w    *Worker
	gate *warmpool.Gate
	work sync.WaitGroup // one a served pool

	mu sync.Mutex
	// served are keepers by pool; that of a removed pool stays until its queue is gone.
	served map[string]*keeper
	latest map[string]events.Latest
	peers  map[string]peer
	known  bool // peers was filled once
	// changed has one when what is served did, so that the worker's record need not wait for its turn.
	changed chan struct{}
}

// peer is what was last heard of a worker.
type peer struct {
	record events.Worker
	heard  time.Time
}

func newPooling(w *Worker) *pooling {
	return &pooling{
		w: w, gate: warmpool.NewGate(madeAtOnce), served: map[string]*keeper{}, latest: map[string]events.Latest{}, peers: map[string]peer{},
		changed: make(chan struct{}, 1),
	}
}

// run serves pools until ctx ends; commands that were taken go on with life.
func (p *pooling) run(ctx, life context.Context) {
	var watches sync.WaitGroup
	watches.Go(func() { p.w.watch(ctx, p.w.fleet.Images, p.seeImage) })
	watches.Go(func() { p.w.watch(ctx, p.w.fleet.Workers, p.seeWorker) })
	watches.Go(func() { p.w.watch(ctx, p.w.fleet.Pools, func(e kv.Entry) { p.seePool(ctx, life, e) }) })
	watches.Go(func() { p.forgetPeers(ctx) })
	watches.Wait()
	p.work.Wait()
}

// watch tells see each record of a bucket and each change until ctx ends. After a watch that broke off it tells again what is
// there, and what was deleted meanwhile. An entry without a key says that everything was told once.
func (w *Worker) watch(ctx context.Context, bucket kv.Store, see func(kv.Entry)) {
	known := map[string]bool{}
	for ; ctx.Err() == nil; _ = sleep(ctx, rewatch) {
		entries, err := bucket.Watch(ctx)
		if err != nil {
			w.log.Warn().Err(err).Msg("watch records")
			continue
		}
		told := map[string]bool{}
		for e := range entries {
			if e.Key == "" {
				for key := range known {
					if !told[key] {
						see(kv.Entry{Key: key, Deleted: true})
					}
				}
				known = told
			}
			if e.Key != "" {
				told[e.Key] = !e.Deleted
			}
			see(e)
		}
	}
}

func (p *pooling) seePool(ctx, life context.Context, e kv.Entry) {
	if e.Key == "" || !p.wanted(e.Key) {
		return
	}
	var rec events.Pool
	var spec poolfile.Pool
	if !e.Deleted {
		err := json.Unmarshal(e.Value, &rec)
		if err == nil {
			err = json.Unmarshal(rec.Spec, &spec)
			spec.Defaults()
		}
		if err != nil {
			p.w.log.Error().Err(err).Str("pool", e.Key).Msg("read the record of a pool")
			return
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.served[e.Key]
	if k == nil {
		if e.Deleted {
			return
		}
		k = newKeeper(p.w, e.Key, p.gate)
		p.served[e.Key] = k
		defer p.work.Go(func() { p.serve(ctx, life, k) })
	}
	k.change(func(s *keeping) {
		s.removed = e.Deleted
		if !e.Deleted {
			s.spec, s.generation = spec, rec.Generation
		}
		s.latest, s.peers, s.settled = p.latest[e.Key], p.peersOf(e.Key), p.known
	})
	p.tellSoon()
}

// tellSoon has the worker's record told before its turn.
func (p *pooling) tellSoon() {
	select {
	case p.changed <- struct{}{}:
	default: // that is to be told already
	}
}

// wanted tells whether this worker serves a pool: one of --pools, where there are any, and none at all where it is told so.
func (p *pooling) wanted(name string) bool {
	return !p.w.cfg.NoPools && events.ValidPool(name) == nil && (len(p.w.cfg.Pools) == 0 || slices.Contains(p.w.cfg.Pools, name))
}

// serve keeps a pool warm and pulls its commands until ctx ends, or the pool is removed and its queue with it.
func (p *pooling) serve(ctx, life context.Context, k *keeper) {
	keep, stop := context.WithCancel(ctx)
	var kept sync.WaitGroup
	kept.Go(func() { k.run(keep) })
	for {
		p.w.pullWhile(ctx, life, k.name, func() bool { return !k.now().removed })
		p.mu.Lock()
		if gone := k.now().removed; gone || ctx.Err() != nil {
			if gone {
				delete(p.served, k.name)
			}
			p.mu.Unlock()
			break
		}
		p.mu.Unlock() // it was applied again at the last moment
	}
	stop()
	kept.Wait()
}

// pullWhile pulls commands of a queue until ctx ends, or the queue is gone and nobody wants it any more.
func (w *Worker) pullWhile(ctx, life context.Context, token string, wanted func() bool) {
	pause := poolWait
	for ctx.Err() == nil {
		switch there, err := w.fleet.Queue.HasPool(ctx, token); {
		case there:
			w.pull(ctx, life, token)
			pause = poolWait
		case err == nil && !wanted():
			return
		}
		_ = sleep(ctx, pause)
		pause = min(2*pause, queuePause)
	}
}

func (p *pooling) seeImage(e kv.Entry) {
	name, ok := events.PoolOfLatest(e.Key)
	if !ok {
		return
	}
	var latest events.Latest
	if !e.Deleted {
		if err := json.Unmarshal(e.Value, &latest); err != nil {
			p.w.log.Error().Err(err).Str("pool", name).Msg("read which image of a pool is the latest")
			return
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latest[name] = latest
	if k := p.served[name]; k != nil {
		k.change(func(s *keeping) { s.latest = latest })
	}
}

func (p *pooling) seeWorker(e kv.Entry) {
	var rec events.Worker
	if e.Key != "" && !e.Deleted {
		if err := json.Unmarshal(e.Value, &rec); err != nil {
			p.w.log.Error().Err(err).Str("of", e.Key).Msg("read the record of a worker")
			return
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case e.Key == "":
		p.known = true
	case e.Deleted:
		delete(p.peers, e.Key)
	default:
		p.peers[e.Key] = peer{rec, time.Now()}
	}
	p.share()
}

// forgetPeers takes workers for gone that were not heard of for as long as their records live: that a record expired is told, but
// not while the server is away.
func (p *pooling) forgetPeers(ctx context.Context) {
	for sleep(ctx, events.WorkerInterval) == nil {
		p.mu.Lock()
		maps.DeleteFunc(p.peers, func(_ string, h peer) bool { return time.Since(h.heard) > events.WorkerTTL })
		p.share()
		p.mu.Unlock()
	}
}

// share tells each keeper who else serves its pool. The lock is held.
func (p *pooling) share() {
	for name, k := range p.served {
		peers := p.peersOf(name)
		if was := k.now(); was.settled != p.known || !slices.Equal(was.peers, peers) {
			k.change(func(s *keeping) { s.peers, s.settled = peers, p.known })
		}
	}
}

// peersOf lists the workers that serve a pool, in order. The lock is held.
func (p *pooling) peersOf(pool string) []string {
	var names []string
	for name, h := range p.peers {
		if _, serves := h.record.Pools[pool]; serves && h.record.State == events.WorkerReady {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// keeper returns the keeper of a pool, nil where this worker does not serve it. That of a removed pool keeps nothing.
func (p *pooling) keeper(pool string) *keeper {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.served[pool]
}

// record adds what is served and how warm it is to what the worker says of itself.
func (p *pooling) record(r *events.Worker) {
	p.mu.Lock()
	served := maps.Clone(p.served)
	p.mu.Unlock()
	r.Warm = map[string]events.Warm{}
	for name, k := range served {
		if !k.now().removed {
			r.Pools[name], r.Warm[name] = "", k.stats()
		}
	}
}

// poolSpec returns what a pool's file says and its generation; false where this worker does not serve the pool.
func (w *Worker) poolSpec(name string) (poolfile.Pool, uint64, bool) {
	k := w.pooling.keeper(name)
	if k == nil || k.now().removed {
		return poolfile.Pool{}, 0, false
	}
	s := k.now()
	return s.spec, s.generation, true
}

// errNoPool is a request for a pool that this worker does not serve.
var errNoPool = errors.New("this worker does not serve the pool")
