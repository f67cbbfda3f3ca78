package base

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/warmfleet/warmfleet/internal/shelf"
	"github.com/warmfleet/warmfleet/internal/statedir"
)

// Items lists the images, for a shelf. Damaged records hold nothing that could be removed by name.
func (s *Store) Items() ([]shelf.Item, error) {
	dir := filepath.Join(s.opt.Dir, imagesDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []shelf.Item
	for _, e := range entries {
		var rec record
		err := statedir.ReadRecord(filepath.Join(dir, e.Name(), recordFile), &rec)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, statedir.ErrDamaged) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, shelf.Item{Key: e.Name(), What: rec.Path, Layers: append(rec.ids(), rec.Garbage...), Used: rec.Used})
	}
	return all, nil
}

// Remove removes an image unless it is in use or being made. Top layers go first: what is left of an image that
// came into use meanwhile, or of a removal that was killed, is found incomplete and made again.
func (s *Store) Remove(ctx context.Context, key string) (bool, error) {
	home := filepath.Join(s.opt.Dir, imagesDir, filepath.Base(key))
	limited, cancel := context.WithTimeout(ctx, evictWait)
	defer cancel()
	lock, err := statedir.Lock(limited, filepath.Join(home, lockFile))
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return false, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = lock.Close() }()
	var rec record
	err = statedir.ReadRecord(filepath.Join(home, recordFile), &rec)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	layers := append(rec.Garbage, rec.ids()...)
	slices.Reverse(layers)
	for _, id := range layers {
		if err := s.hook("remove layer"); err != nil {
			return false, err
		}
		if left, err := s.removeUnused([]string{id}); err != nil || len(left) > 0 {
			return false, err
		}
	}
	if err := s.hook("remove record"); err != nil {
		return false, err
	}
	if err := os.Remove(filepath.Join(home, recordFile)); err != nil {
		return false, err
	}
	if err := s.hook("remove index"); err != nil {
		return false, err
	}
	// The lock file stays: somebody may be waiting for it.
	return true, removeIndexes(home, "")
}

// Layers lists every layer that the store's images are made of. A layer of the cache that neither this
// nor another owner lists was left by a kill.
func (s *Store) Layers() ([]string, error) {
	all, err := s.Items()
	if err != nil {
		return nil, err
	}
	var layers []string
	for _, it := range all {
		layers = append(layers, it.Layers...)
	}
	slices.Sort(layers)
	return slices.Compact(layers), nil
}
