// Package base keeps base images of paths: for each directory that plans work on, a chain of layers
// that shows it as it is now. The first image of a path reads everything, each later one walks the
// directory by stat and adds one layer with what changed.
//
// It knows layers, files and how long to keep them. It must not know plans, sandboxes, git or NATS.
package base

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/statedir"
)

var (
	// ErrPath reports a path that is not the real path of a directory.
	ErrPath = errors.New("not the real path of a directory")
	// ErrStateInside reports a path that contains data of the worker: its image would contain itself.
	ErrStateInside = errors.New("the worker's own data lies inside the path")
	// ErrUnreadable reports files of a path that this worker may not read.
	ErrUnreadable = errors.New("files cannot be read by the worker's user")
)

const (
	// retainTries bounds how often an image that was evicted between making and retaining is made again.
	retainTries = 3
	// named is how many paths an error or note names before it counts.
	named = 3
	// evictWait bounds the wait for the lock of an image that may be evicted.
	evictWait = 100 * time.Millisecond
)

// Options say where a Store keeps its things.
type Options struct {
	// Dir is the store's own directory; several processes may share it.
	Dir   string
	Cache *layer.Cache
	Log   zerolog.Logger
	// Own are the other directories of the worker, the cache's first of all, which no image may contain.
	Own []string
	// Hook is called with the name of each step that removes or replaces something, right before it is made; an
	// error from it is that step's failure. It exists so that tests can fail or kill every step. Nil is none.
	Hook func(point string) error
}

// Base is the image of a path at a moment. It is kept until Release.
type Base struct {
	Chain layer.Chain
	// Index is what the path looked like, to compare it with later.
	Index *layer.Index
	// Root is the path's own entry.
	Root layer.Entry
	// Changed tells that the path differed from its last image, or had none.
	Changed bool
	// Notes say in words what of the path is not in the image.
	Notes   []string
	release func()
}

// Release tells that the base is no longer in use. It may be called more than once.
func (b Base) Release() {
	if b.release != nil {
		b.release()
	}
}

// Store makes and keeps images. It survives a kill at any moment: what it stores names only whole
// layers, and an image whose layers or index are gone is made anew. Safe for concurrent use.
type Store struct {
	opt    Options
	uses   *statedir.Uses
	shared statedir.Group[image]
	memory memory
	long   chan string // paths whose chains are long
}

// Open opens or makes the store in o.Dir.
func Open(o Options) (*Store, error) {
	if err := os.MkdirAll(filepath.Join(o.Dir, imagesDir), 0o700); err != nil {
		return nil, fmt.Errorf("base: open store: %w", err)
	}
	uses, err := statedir.OpenUses(filepath.Join(o.Dir, "uses"))
	if err != nil {
		return nil, err
	}
	return &Store{opt: o, uses: uses, long: make(chan string, squashesQueued)}, nil
}

func (s *Store) hook(point string) error {
	if s.opt.Hook == nil {
		return nil
	}
	return s.opt.Hook(point)
}

// FromPath gives the image of a directory as it is at some moment after the call. Callers that ask for
// the same path at the same time share a walk. The path is only read; it must be a real path.
// Errors: ErrPath, ErrStateInside, ErrUnreadable; a file that is being written all the time is named.
func (s *Store) FromPath(ctx context.Context, path string) (Base, error) {
	if err := s.check(path); err != nil {
		return Base{}, fmt.Errorf("base: image of %q: %w", path, err)
	}
	for try := 1; ; try++ {
		b, err := s.fromPath(ctx, path)
		if errors.Is(err, layer.ErrNotFound) && try < retainTries {
			continue
		}
		if err != nil {
			return Base{}, fmt.Errorf("base: image of %q: %w", path, err)
		}
		return b, nil
	}
}

func (s *Store) fromPath(ctx context.Context, path string) (Base, error) {
	img, err := s.shared.Do(ctx, path, func(ctx context.Context) (image, error) { return s.refresh(ctx, path) })
	if err != nil {
		return Base{}, err
	}
	release, err := s.Retain(img.chain)
	if err != nil {
		return Base{}, err
	}
	root, err := layer.NewTree(img.chain).Lookup(".")
	if err != nil {
		release()
		return Base{}, err
	}
	return Base{
		Chain: img.chain, Index: img.index, Root: root, Changed: img.changed, Notes: notes(img.index.Lost()), release: release,
	}, nil
}

// Retain keeps the layers of a chain until release, beyond the life of the Base it came from. It fails
// with layer.ErrNotFound if one is gone.
func (s *Store) Retain(chain layer.Chain) (release func(), err error) {
	release, err = s.uses.Retain(ids(chain))
	if err != nil {
		return nil, err
	}
	for _, l := range chain {
		if _, err := s.opt.Cache.Get(l.ID); err != nil {
			release()
			return nil, err
		}
	}
	return release, nil
}

// check refuses paths that were resolved differently, or that hold data of ours.
func (s *Store) check(path string) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	st, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !filepath.IsAbs(path) || real != path || !st.IsDir() {
		return ErrPath
	}
	for _, own := range append([]string{s.opt.Dir}, s.opt.Own...) {
		dir, err := filepath.Abs(own)
		if err != nil {
			return err
		}
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			dir = real
		}
		if rel, err := filepath.Rel(path, dir); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
			return fmt.Errorf("%w: %q", ErrStateInside, dir)
		}
	}
	return nil
}

// unreadable is how a capture begins the description of what it may not read.
const unreadable = "unreadable"

// readable turns what a capture may not read into one error: an image without it would make a plan
// believe that it is not there.
func readable(lost []layer.Lost) error {
	var paths []string
	for _, l := range lost {
		if strings.HasPrefix(l.What, unreadable) {
			paths = append(paths, fmt.Sprintf("%q", l.Path))
		}
	}
	if len(paths) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrUnreadable, first(paths))
}

func notes(lost []layer.Lost) []string {
	if len(lost) == 0 {
		return nil
	}
	paths := make([]string, len(lost))
	for i, l := range lost {
		paths[i] = fmt.Sprintf("%q (%s)", l.Path, l.What)
	}
	return []string{"left out: " + first(paths)}
}

// first names the first ones and counts all.
func first(paths []string) string {
	if len(paths) <= named {
		return strings.Join(paths, ", ")
	}
	return fmt.Sprintf("%s and more, %d in all", strings.Join(paths[:named], ", "), len(paths))
}

func ids(chain layer.Chain) []string {
	ids := make([]string, len(chain))
	for i, l := range chain {
		ids[i] = l.ID
	}
	return ids
}
