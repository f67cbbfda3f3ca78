package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// Reader restores stored checkpoints in a process that has no worker, to look at them. Close it.
type Reader struct {
	*checkpoint.Manager
	cache *layer.Cache
	had   []string // layers that stay
	ends  []func() error
}

// Reader opens a reader with a cache in a temporary directory, so that every layer is fetched.
func (f *Fleet) Reader(log zerolog.Logger) (*Reader, error) {
	dir, err := os.MkdirTemp("", "warmfleet-read-")
	if err != nil {
		return nil, fmt.Errorf("fleet: read checkpoints: %w", err)
	}
	remove := func() error { return layer.RemoveTree(dir) }
	// Root may mark deletions on any file system, others where users have attributes.
	r, err := f.openReader(dir, layer.Options{Owner: os.Getuid(), Trusted: os.Geteuid() == 0, Log: log})
	if err != nil {
		return nil, errors.Join(err, remove())
	}
	r.ends = append(r.ends, remove)
	return r, nil
}

// Reader opens a reader on the cache of the next worker of this state directory, which may have the layers already.
func (l *Local) Reader(ctx context.Context) (*Reader, error) {
	dir, lock, err := workerDir(l.dir)
	if err != nil {
		return nil, err
	}
	r, err := l.readWorker(ctx, dir)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	r.ends = append(r.ends, lock.Close)
	return r, nil
}

func (l *Local) readWorker(ctx context.Context, dir string) (*Reader, error) {
	report, err := isolate.Probe(ctx, dir)
	if err != nil {
		return nil, err
	}
	owner := report.Rung.Owner() // as the worker has it
	o := layer.Options{Owner: owner, Trusted: owner == isolate.HostID, Log: l.log}
	return l.Fleet.openReader(dir, o)
}

func (f *Fleet) openReader(dir string, o layer.Options) (*Reader, error) {
	cache, err := layer.OpenCache(filepath.Join(dir, "layers"), o)
	if err != nil {
		return nil, err
	}
	had, err := cache.Layers()
	if err != nil {
		return nil, errors.Join(err, cache.Close())
	}
	m := checkpoint.New(checkpoint.Config{
		Cache: cache, Store: f.Store, Records: f.Checkpoints, Scratch: dir, Worker: "reader", Log: o.Log, NewID: events.NewID,
	})
	return &Reader{Manager: m, cache: cache, had: had, ends: []func() error{cache.Close}}, nil
}

// Close removes what was fetched.
func (r *Reader) Close() error {
	have, err := r.cache.Layers()
	for _, id := range have {
		if !slices.Contains(r.had, id) {
			err = errors.Join(err, r.cache.Remove(id))
		}
	}
	for _, end := range r.ends {
		err = errors.Join(err, end())
	}
	return err
}
