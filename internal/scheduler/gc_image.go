package scheduler

import (
	"context"
	"time"

	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// keepReplaced is how long an image outlives the one that replaced it, for workers that are just fetching it.
const keepReplaced = 24 * time.Hour

// replaced returns the images that no pool starts from, by id.
func (p *pools) replaced() map[string]events.Image {
	out := p.allImages()
	for _, one := range p.all() {
		delete(out, one.latest.Image)
	}
	return out
}

// imageFate decides on the checkpoint of an image: the ones that pools start from are pinned.
func (s *Scheduler) imageFate() func(cp checkpoint.Checkpoint, written time.Time) checkpoint.Fate {
	used := map[string]bool{}
	images := s.pools.allImages()
	for _, one := range s.pools.all() {
		used[images[one.latest.Image].Checkpoint] = true
	}
	return func(cp checkpoint.Checkpoint, written time.Time) checkpoint.Fate {
		if used[cp.ID] {
			return checkpoint.Fate{Pinned: true}
		}
		return until(written, keepReplaced)
	}
}

// dropReplaced removes the records of images that were replaced long enough ago.
func (s *Scheduler) dropReplaced(ctx context.Context) {
	for id, i := range s.pools.replaced() {
		if time.Since(i.BuiltAt) < keepReplaced {
			continue
		}
		if err := s.fleet.Images.Delete(ctx, id, 0); err != nil && ctx.Err() == nil {
			s.log.Warn().Err(err).Str("image", id).Msg("remove a replaced image")
		}
	}
}
