package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"sync"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/poolfile"
)

// pools is what the buckets of pools and images say, kept in memory. It is safe for concurrent use.
type pools struct {
	read chan struct{} // closed once everything stored at start was read

	mu     sync.Mutex
	unread int
	byName map[string]events.Pool
	specs  map[string]poolfile.Pool
	latest map[string]events.Latest
	images map[string]events.Image
	lost   map[string]bool // images that cannot be started from, by id
}

func newPools() *pools {
	return &pools{
		read: make(chan struct{}), unread: 2, byName: map[string]events.Pool{}, specs: map[string]poolfile.Pool{},
		latest: map[string]events.Latest{}, images: map[string]events.Image{},
		lost: map[string]bool{},
	}
}

// pool is all that is known of one pool.
type pool struct {
	record events.Pool
	// there is false for one whose record is gone and whose queue is not yet.
	there  bool
	spec   poolfile.Pool
	latest events.Latest
	// built tells that the latest image is there, with its checkpoint and, as far as workers tell, its layers.
	built bool
}

func (p *pools) awaitRead(ctx context.Context) bool {
	select {
	case <-p.read:
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *pools) markRead() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unread--; p.unread == 0 {
		close(p.read)
	}
}

func (p *pools) get(name string) pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lookup(name)
}

// lookup is get; the lock is held.
func (p *pools) lookup(name string) pool {
	record, there := p.byName[name]
	l := p.latest[name]
	_, built := p.images[l.Image]
	return pool{record: record, there: there, spec: p.specs[name], latest: l, built: built && !p.lost[l.Image]}
}

// all returns every pool by name, those being removed included.
func (p *pools) all() map[string]pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]pool{}
	for name := range p.byName {
		out[name] = p.lookup(name)
	}
	for name := range p.latest {
		out[name] = p.lookup(name)
	}
	return out
}

func (p *pools) allImages() map[string]events.Image {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.images)
}

// takePool takes in a record of the pools' bucket.
func (p *pools) takePool(e kv.Entry) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.Deleted {
		delete(p.byName, e.Key)
		delete(p.specs, e.Key)
		return nil
	}
	record, spec, err := readPool(e.Value)
	if err != nil {
		return fmt.Errorf("scheduler: read pool %q: %w", e.Key, err)
	}
	p.byName[e.Key], p.specs[e.Key] = record, spec
	return nil
}

// readPool reads a pool's record and the file in it.
func readPool(b []byte) (events.Pool, poolfile.Pool, error) {
	var record events.Pool
	var spec poolfile.Pool
	if err := json.Unmarshal(b, &record); err != nil {
		return record, spec, err
	}
	if err := json.Unmarshal(record.Spec, &spec); err != nil {
		return record, spec, err
	}
	spec.Defaults()
	return record, spec, nil
}

// takeImage takes in a record of the images' bucket: an image, or the Latest of a pool.
func (p *pools) takeImage(e kv.Entry) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if name, ok := events.PoolOfLatest(e.Key); ok {
		delete(p.latest, name)
		if e.Deleted {
			return nil
		}
		var l events.Latest
		if err := json.Unmarshal(e.Value, &l); err != nil {
			return fmt.Errorf("scheduler: read the latest image of pool %q: %w", name, err)
		}
		p.latest[name] = l
		return nil
	}
	delete(p.images, e.Key)
	if e.Deleted {
		return nil
	}
	var i events.Image
	if err := json.Unmarshal(e.Value, &i); err != nil {
		return fmt.Errorf("scheduler: read image %q: %w", e.Key, err)
	}
	p.images[e.Key] = i
	return nil
}

// watchPools keeps what is known of pools and images up to date.
func (s *Scheduler) watchPools(ctx context.Context, tasks *sync.WaitGroup) error {
	for _, w := range []struct {
		bucket kv.Store
		take   func(kv.Entry) error
	}{{s.fleet.Pools, s.pools.takePool}, {s.fleet.Images, s.pools.takeImage}} {
		updates, err := w.bucket.Watch(ctx)
		if err != nil {
			return err
		}
		tasks.Go(func() {
			for e := range updates {
				if e.Key == "" {
					s.pools.markRead()
				} else if err := w.take(e); err != nil {
					s.log.Warn().Err(err).Msg("take in a record")
				}
				s.index.pool(s.pools.facts())
			}
		})
	}
	return nil
}

// changeLatest changes the Latest of a pool by compare-and-set; change returns an error to leave it as it is.
func (s *Scheduler) changeLatest(ctx context.Context, name string, change func(*events.Latest) error) error {
	return kv.Change(ctx, s.fleet.Images, events.LatestKey(name), func(l *events.Latest) error {
		l.Pool = name
		return change(l)
	})
}

// tellPool publishes an event about a pool. It is told once: a pool's record says the same.
func (s *Scheduler) tellPool(ctx context.Context, typ, name string, d events.Data) {
	d.Pool = name
	if err := s.fleet.Log.Publish(ctx, events.NewEvent(events.TypeOf(events.NounPool, typ), name, s.source(), d)); err != nil && ctx.Err() == nil {
		s.log.Warn().Err(err).Str("pool", name).Msg("tell of a pool")
	}
}
