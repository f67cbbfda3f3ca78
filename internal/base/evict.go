package base

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/warmfleet/warmfleet/internal/statedir"
)

// stored is a record and where it lies.
type stored struct {
	home string
	rec  *record
}

// evict removes the least recently used images beyond the budget. It never removes one that is in use,
// nor that of keep, and only warns when it fails: the image that was asked for is there.
func (s *Store) evict(ctx context.Context, keep string) {
	if s.opt.Budget <= 0 {
		return
	}
	all, err := s.records()
	if err != nil {
		s.opt.Log.Warn().Err(err).Msg("look for base images to remove")
		return
	}
	var size int64
	for _, st := range all {
		size += st.rec.size()
	}
	slices.SortFunc(all, func(a, b stored) int { return a.rec.Used.Compare(b.rec.Used) })
	for _, st := range all {
		if size <= s.opt.Budget {
			return
		}
		if st.home == keep {
			continue
		}
		gone, err := s.remove(ctx, st.home)
		if err != nil {
			s.opt.Log.Warn().Err(err).Str("path", st.rec.Path).Msg("remove base image")
		}
		if gone {
			size -= st.rec.size()
		}
	}
}

// records reads all records; damaged ones hold nothing that could be removed by name.
func (s *Store) records() ([]stored, error) {
	dir := filepath.Join(s.opt.Dir, imagesDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []stored
	for _, e := range entries {
		st := stored{home: filepath.Join(dir, e.Name()), rec: &record{}}
		err := statedir.ReadRecord(filepath.Join(st.home, recordFile), st.rec)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, statedir.ErrDamaged) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, st)
	}
	return all, nil
}

// remove removes an image unless it is in use or being made. Top layers go first: what is left of an
// image that came into use meanwhile is found incomplete and made again.
func (s *Store) remove(ctx context.Context, home string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, evictWait)
	defer cancel()
	lock, err := statedir.Lock(ctx, filepath.Join(home, lockFile))
	if errors.Is(err, context.DeadlineExceeded) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = lock.Close() }()
	var rec record
	if err := statedir.ReadRecord(filepath.Join(home, recordFile), &rec); err != nil {
		return false, err
	}
	layers := append(rec.Garbage, rec.ids()...)
	slices.Reverse(layers)
	for _, id := range layers {
		if left, err := s.removeUnused([]string{id}); err != nil || len(left) > 0 {
			return false, err
		}
	}
	// The lock file stays: somebody may be waiting for it.
	return true, errors.Join(os.Remove(filepath.Join(home, recordFile)), removeIndexes(home, ""))
}

// Layers lists every layer that the store's images are made of. A layer of the cache that neither this
// nor another owner lists was left by a kill.
func (s *Store) Layers() ([]string, error) {
	all, err := s.records()
	if err != nil {
		return nil, fmt.Errorf("base: list layers: %w", err)
	}
	var layers []string
	for _, st := range all {
		layers = append(append(layers, st.rec.ids()...), st.rec.Garbage...)
	}
	slices.Sort(layers)
	return slices.Compact(layers), nil
}
