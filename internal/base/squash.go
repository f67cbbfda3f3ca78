package base

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/statedir"
)

const (
	// maxLayers is the length of chain beyond which it is made short, beside the plans.
	maxLayers = 8
	// mostLayers is the length beyond which a plan waits for that: far below what an overlay can have (500).
	mostLayers = 64
	// squashesQueued bounds how many paths wait to be made short; one that is dropped asks again with its next change.
	squashesQueued = 64
)

// Run makes long chains short, beside whatever else the store does, until ctx ends.
func (s *Store) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case path := <-s.long:
			if err := s.squash(ctx, path); err != nil && ctx.Err() == nil {
				s.opt.Log.Warn().Err(err).Str("path", path).Msg("squash the layers of a base")
			}
		}
	}
}

// wantSquash asks Run to make the chain of a path short.
func (s *Store) wantSquash(path string) {
	select {
	case s.long <- path:
	default:
	}
}

// squash makes one layer of those that the image of a path has now. Nobody waits for it: the path's lock is only held to
// begin and to end, and layers that were added meanwhile stay on top. The old layers go when nobody uses them; a
// checkpoint that names them finds them in the object store.
func (s *Store) squash(ctx context.Context, path string) error {
	home := s.home(path)
	chain, release, err := s.longChain(ctx, home, path)
	if err != nil || chain == nil {
		return err
	}
	merged, err := s.merge(ctx, chain)
	release() // else they would be in use when they are replaced
	if err != nil {
		return err
	}
	used, err := s.replace(ctx, path, chain, merged)
	if err == nil {
		err = s.hook("replaced")
	}
	if !used {
		err = errors.Join(err, s.opt.Cache.Remove(merged.ID))
	}
	return err
}

// longChain gives the chain of a path, retained, or nil if it is short.
func (s *Store) longChain(ctx context.Context, home, path string) (layer.Chain, func(), error) {
	lock, err := statedir.Lock(ctx, filepath.Join(home, lockFile))
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = lock.Close() }()
	_, img, err := s.load(home, path)
	if err != nil || len(img.chain) <= maxLayers {
		return nil, nil, err
	}
	release, err := s.Retain(img.chain)
	return img.chain, release, err
}

// replace puts merged in the place of the layers it was made of, and tells whether the image has it now.
func (s *Store) replace(ctx context.Context, path string, old layer.Chain, merged layer.Layer) (bool, error) {
	if err := s.hook("merged"); err != nil {
		return false, err
	}
	home := s.home(path)
	lock, err := statedir.Lock(ctx, filepath.Join(home, lockFile))
	if err != nil {
		return false, err
	}
	defer func() { _ = lock.Close() }()
	rec, img, err := s.load(home, path)
	if err != nil {
		return false, err
	}
	if len(img.chain) < len(old) || !slices.Equal(ids(img.chain[:len(old)]), ids(old)) {
		return false, nil // evicted or made anew meanwhile
	}
	img.chain = append(layer.Chain{merged}, img.chain[len(old):]...)
	img.index = img.index.Moved(ids(old), merged.ID)
	if err := s.hook("replace"); err != nil {
		return false, err
	}
	return true, s.save(home, rec, img)
}

// merge makes one layer that shows what a chain shows.
func (s *Store) merge(ctx context.Context, chain layer.Chain) (layer.Layer, error) {
	if err := s.hook("merge"); err != nil {
		return layer.Layer{}, err
	}
	tree := layer.NewTree(chain)
	return s.opt.Cache.Build(func(b *layer.Builder) error {
		return tree.Walk(func(e layer.Entry) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			if e.Type != layer.File || e.HardLink != "" {
				return b.Put(e, nil)
			}
			content, err := tree.Open(e.Path)
			if err != nil {
				return err
			}
			return errors.Join(b.Put(e, content), content.Close())
		})
	})
}
