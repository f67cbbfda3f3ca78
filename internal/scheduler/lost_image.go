package scheduler

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// lostEvery is how often the leader looks whether the images that pools start from are all there.
const lostEvery = 5 * time.Second

// latestImages are the records of the images that pools start from.
func (p *pools) latestImages() map[string]events.Image {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]events.Image{}
	for name, l := range p.latest {
		if i, there := p.images[l.Image]; there && p.byName[name].Name != "" {
			out[name] = i
		}
	}
	return out
}

func (p *pools) isLost(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost[id]
}

// setLost sets which images cannot be started from, and tells whether that is news.
func (p *pools) setLost(lost map[string]bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := !maps.Equal(p.lost, lost)
	p.lost = lost
	return changed
}

// findLost finds the images that pools start from and that nobody can start from any more: their checkpoint is gone, or a worker
// says that something of them is gone or damaged in the store.
func (s *Scheduler) findLost(ctx context.Context) error {
	lost := map[string]bool{}
	var failed error
	workers := s.index.workers()
	for name, i := range s.pools.latestImages() {
		for _, w := range workers {
			if w.Warm[name].Lost == i.ID {
				lost[i.ID] = true
			}
		}
		if lost[i.ID] {
			continue
		}
		_, err := checkpoint.Load(ctx, s.fleet.Checkpoints, i.Checkpoint)
		switch {
		case errors.Is(err, checkpoint.ErrNotFound):
			lost[i.ID] = true
		case err != nil: // nobody knows: it is as it was
			failed = errors.Join(failed, err)
			if s.pools.isLost(i.ID) {
				lost[i.ID] = true
			}
		}
	}
	if s.pools.setLost(lost) {
		s.index.pool(s.pools.facts())
	}
	return failed
}
