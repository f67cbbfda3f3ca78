package gitrepo

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/warmfleet/warmfleet/internal/shelf"
	"github.com/warmfleet/warmfleet/internal/statedir"
)

// evictWait bounds the wait for the lock of a source whose base may be evicted.
const evictWait = 100 * time.Millisecond

// Items lists the bases, for a shelf. What no base needs any more counts with the source's oldest one.
func (s *Store) Items() ([]shelf.Item, error) {
	homes, err := os.ReadDir(filepath.Join(s.opt.Dir, reposDir))
	if err != nil {
		return nil, err
	}
	var all []shelf.Item
	for _, h := range homes {
		rec, err := s.readRecord(filepath.Join(s.opt.Dir, reposDir, h.Name()), source{label: h.Name()})
		if err != nil {
			return nil, err
		}
		for i, b := range rec.Bases {
			layers := b.layers()
			if i == 0 {
				layers = slices.Concat(layers, rec.objectIDs(), rec.Garbage)
			}
			all = append(all, shelf.Item{Key: h.Name() + "/" + b.Key, What: rec.Source + " at " + b.Commit, Layers: layers, Used: b.Used})
		}
	}
	return all, nil
}

// Remove removes a base unless it is in use or its source is being worked on. The last base of a source takes the
// source's objects with it.
func (s *Store) Remove(ctx context.Context, key string) (bool, error) {
	name, baseKey, _ := strings.Cut(key, "/")
	home := filepath.Join(s.opt.Dir, reposDir, filepath.Base(name))
	limited, cancel := context.WithTimeout(ctx, evictWait)
	defer cancel()
	lock, err := statedir.Lock(limited, filepath.Join(home, lockFile))
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = lock.Close() }()
	rec, err := s.readRecord(home, source{label: name})
	if err != nil || rec.find(baseKey) == nil {
		return err == nil, err
	}
	own := rec.find(baseKey).layers()
	rec.drop(baseKey)
	if len(rec.Bases) == 0 {
		rec.forgetObjects()
	}
	if used, err := s.removeOwn(own, rec.layers()); used || err != nil {
		return false, err
	}
	if err := s.writeRecord(home, rec); err != nil {
		return false, err
	}
	s.collect(home, rec)
	return true, nil
}

// removeOwn removes the layers of a base that nothing else needs, the top one first, which tells whether the base is
// in use. A base that has lost some of its layers is made again when it is asked for.
func (s *Store) removeOwn(layers []string, needed map[string]bool) (used bool, err error) {
	for _, id := range slices.Backward(layers) {
		if needed[id] {
			continue
		}
		removed, err := s.uses.RemoveUnused(id, func() error { return s.opt.Cache.Remove(id) })
		if err != nil || !removed {
			return !removed, err
		}
	}
	return false, nil
}
