package worker

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// openedCaches are one init's views of the worker's caches. What it changes goes into dir,
// which nobody else sees and which is removed with the init: no plan can leave anything
// in a cache for another.
type openedCaches struct {
	dir  string // "" without caches
	list []isolate.Cache
}

func (w *Worker) openCaches(ctx context.Context) (openedCaches, error) {
	if len(w.cfg.Caches) == 0 || !w.report.Rung.Mounts() {
		return openedCaches{}, nil
	}
	o := openedCaches{dir: filepath.Join(w.cfg.StateDir, "caches", events.NewID())}
	for _, name := range slices.Sorted(maps.Keys(w.cfg.Caches)) {
		c, err := w.openCache(ctx, name, filepath.Join(o.dir, name))
		if err != nil {
			o.close()
			layer.RemoveTree(o.dir)
			return openedCaches{}, fmt.Errorf("worker: open cache %q of %s: %w", name, w.cfg.Caches[name], err)
		}
		o.list = append(o.list, c)
	}
	return o, nil
}

// cacheNotes say that there are no caches where nothing can be mounted.
func (w *Worker) cacheNotes() []string {
	if len(w.cfg.Caches) == 0 || w.report.Rung.Mounts() {
		return nil
	}
	return []string{fmt.Sprintf("cache: isolation %s has no caches: every plan starts with empty ones of its own in HOME", w.report.Rung)}
}

func (w *Worker) openCache(ctx context.Context, name, dir string) (isolate.Cache, error) {
	c := isolate.Cache{Name: name, Upper: filepath.Join(dir, "upper")}
	work := filepath.Join(dir, "work")
	for _, d := range []string{c.Upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return c, err
		}
		if owner := w.report.Rung.Owner(); owner != os.Getuid() {
			if err := os.Chown(d, owner, owner); err != nil {
				return c, err
			}
		}
	}
	var err error
	c.Mount, err = w.mounter.Overlay(ctx, isolate.Overlay{
		Lowers: []string{w.cfg.Caches[name]}, Upper: c.Upper, Work: work, Volatile: true, Live: true,
	})
	return c, err
}

// close gives up the descriptors; mounts that an init has stay.
func (o openedCaches) close() {
	for _, c := range o.list {
		c.Mount.Close()
	}
}

// removeWith removes what was written when an init, nil if there is none, is gone.
func (o openedCaches) removeWith(i *isolate.Init) {
	if o.dir == "" {
		return
	}
	if i == nil {
		layer.RemoveTree(o.dir)
		return
	}
	go func() {
		<-i.Done()
		layer.RemoveTree(o.dir)
	}()
}

// tryShown starts an init once where directories of the host are shown, so that what can't be is told at the start.
func (w *Worker) tryShown(ctx context.Context) error {
	if len(w.cfg.Expose) == 0 && len(w.cfg.Caches) == 0 || w.holds("none") != nil {
		return nil
	}
	i, err := w.startInit(ctx, "none", false)
	if err != nil {
		return fmt.Errorf("worker: show directories of --expose and --cache: %w", err)
	}
	return i.Close()
}
