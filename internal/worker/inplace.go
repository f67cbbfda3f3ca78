package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/statedir"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// marker is kept while a plan of strategy none changes an original in place, so that a
// worker that finds it after a crash brings the original back before anything else.
// Its JSON form is stored in the state directory, where no step can reach it.
type marker struct {
	Plan string `json:"plan"`
	Path string `json:"path"`
	// Layers are the directories of the base, bottom first; Index is the stat index's file.
	Layers []markedLayer `json:"layers"`
	Index  string        `json:"index"`
}

type markedLayer struct {
	ID  string `json:"id"`
	Dir string `json:"dir"`
}

func (w *Worker) markerPath(planID string) string {
	return filepath.Join(w.cfg.StateDir, "inplace", planID+".json")
}

// mark writes the marker of a plan whose target is about to be changed in place.
func (w *Worker) mark(planID string, t *target) error {
	path := w.markerPath(planID)
	m := marker{Plan: planID, Path: t.path, Index: path + ".index"}
	for _, l := range t.chain {
		m.Layers = append(m.Layers, markedLayer{l.ID, l.Dir})
	}
	if err := statedir.WriteFile(m.Index, t.index.Encode); err != nil {
		return fmt.Errorf("worker: mark %s as changed in place: %w", t.path, err)
	}
	if err := statedir.WriteRecord(path, m); err != nil {
		return fmt.Errorf("worker: mark %s as changed in place: %w", t.path, err)
	}
	return nil
}

// unmark forgets the marker once the plan is final: its changes stand, or were undone.
func (w *Worker) unmark(planID string) error {
	path := w.markerPath(planID)
	return errors.Join(removeIfThere(path), removeIfThere(path+".index"))
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("worker: remove marker: %w", err)
	}
	return nil
}

// recoverInPlace brings back every original that a killed worker of this state directory
// left half changed.
func (w *Worker) recoverInPlace(ctx context.Context) error {
	found, err := filepath.Glob(filepath.Join(w.cfg.StateDir, "inplace", "*.json"))
	if err != nil {
		return fmt.Errorf("worker: look for markers: %w", err)
	}
	for _, path := range found {
		if err := w.recoverMarked(ctx, path); err != nil {
			return err
		}
	}
	return nil
}

// recoverMarked rolls the original of one marker back, unless its plan had ended well.
func (w *Worker) recoverMarked(ctx context.Context, path string) error {
	var m marker
	err := statedir.ReadRecord(path, &m)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("worker: read marker %s: %w", path, err)
	}
	unlock, err := lockPath(ctx, m.Path, true)
	if err != nil {
		return err
	}
	defer unlock()
	last, err := w.fleet.Log.Last(ctx, m.Plan)
	if err != nil && !errors.Is(err, events.ErrNotFound) {
		return err
	}
	if err != nil || !last.Event.Data.Final {
		if err := w.restoreMarked(ctx, m); err != nil {
			return err
		}
		w.log.Warn().Str("plan", m.Plan).Str("path", m.Path).Msg("rolled back a path that a killed worker left changed in place")
	}
	return errors.Join(removeIfThere(path), removeIfThere(m.Index))
}

func (w *Worker) restoreMarked(ctx context.Context, m marker) error {
	f, err := os.Open(m.Index)
	if err != nil {
		return fmt.Errorf("worker: roll back %s: %w", m.Path, err)
	}
	defer f.Close()
	index, err := layer.DecodeIndex(f)
	if err != nil {
		return fmt.Errorf("worker: roll back %s: %w", m.Path, err)
	}
	var chain layer.Chain
	for _, l := range m.Layers {
		chain = append(chain, layer.Layer{ID: l.ID, Dir: l.Dir})
	}
	if _, err := w.cache.Restore(ctx, m.Path, index, chain); err != nil {
		return fmt.Errorf("worker: roll back %s: %w", m.Path, err)
	}
	return nil
}

// lockPath locks a directory against other workers of this host: exclusively to change it
// in place, shared to copy it. The lock ends with the process that holds it.
func lockPath(ctx context.Context, path string, exclusive bool) (unlock func(), err error) {
	how := unix.LOCK_SH
	if exclusive {
		how = unix.LOCK_EX
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("worker: lock %s: %w", path, err)
	}
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("worker: lock %s: %w", path, err)
		}
		if err := sleep(ctx, lockPoll); err != nil {
			f.Close()
			return nil, err
		}
	}
}
