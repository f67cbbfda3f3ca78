package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/warmfleet/warmfleet/internal/statedir"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
)

const (
	// sweepEvery is how often unused layers are looked for; one goes the second time it is found.
	sweepEvery = 10 * time.Minute
	// DefaultCacheBudget is what layers may take in a worker's cache that nothing there uses.
	DefaultCacheBudget = 10 << 30
	// DefaultPlanBudget is what the layers of one plan may take in the object store.
	DefaultPlanBudget = 20 << 30
)

// budget is what a configured number of bytes means: 0 the default, less than 0 none.
func budget(configured, standard, none int64) int64 {
	switch {
	case configured == 0:
		return standard
	case configured < 0:
		return none
	}
	return configured
}

// sweepOften removes what nothing needs from the cache until ctx ends.
func (w *Worker) sweepOften(ctx context.Context) {
	for sleep(ctx, sweepEvery) == nil {
		if err := w.sweepCache(false); err != nil {
			w.log.Warn().Err(err).Msg("sweep the layer cache")
		}
	}
}

// sweepCache removes layers that nothing needs: what killed workers left, and what sandboxes
// left that were rolled back, forked or ended. Another process that shares the directory may
// use any of them, so nothing is removed while there is one.
func (w *Worker) sweepCache(start bool) error {
	alone, err := w.cache.Alone(func() error {
		owned, err := w.ownedLayers()
		if err != nil {
			return err
		}
		swept, err := w.cps.SweepCache(checkpoint.CacheSweep{
			Owned: owned, Budget: budget(w.cfg.CacheBudget, DefaultCacheBudget, 0), Start: start,
		})
		if swept.Removed > 0 {
			w.log.Info().Int("layers", swept.Removed).Int64("bytes", swept.Bytes).Msg("swept the layer cache")
		}
		return err
	})
	if err == nil && !alone {
		w.log.Debug().Msg("the layer cache is not swept: another process uses it")
	}
	return err
}

// ownedLayers are those of base images, and those that originals changed in place are rolled back to.
func (w *Worker) ownedLayers() ([]string, error) {
	owned, err := w.bases.Layers()
	if err != nil {
		return nil, err
	}
	ofRepos, err := w.repos.Layers()
	if err != nil {
		return nil, err
	}
	owned = append(owned, ofRepos...)
	markers, err := filepath.Glob(filepath.Join(w.cfg.StateDir, "inplace", "*.json"))
	if err != nil {
		return nil, fmt.Errorf("worker: look for markers: %w", err)
	}
	for _, path := range markers {
		var m marker
		err := statedir.ReadRecord(path, &m)
		if errors.Is(err, fs.ErrNotExist) {
			continue // its plan has just ended
		}
		if err != nil {
			return nil, fmt.Errorf("worker: read marker %s: %w", path, err)
		}
		for _, l := range m.Layers {
			owned = append(owned, l.ID)
		}
	}
	return owned, nil
}
