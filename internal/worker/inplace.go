package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/fault"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/statedir"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

// marker is kept while a plan of strategy none changes an original in place, so that a
// worker that finds it after a crash brings the original back before anything else.
// Its JSON form is stored in the state directory, where no step can reach it.
type marker struct {
	Plan string `json:"plan"`
	Path string `json:"path"`
	// Keep: when the plan fails its changes stay.
	Keep bool `json:"keep,omitempty"`
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

// signName is the attribute of an original's root that names its marker, so that every
// worker of the host finds it. A step cannot touch a trusted attribute; that of an ordinary
// user is one that no layer keeps.
func signName() string {
	if os.Geteuid() == 0 {
		return "trusted.warmfleet.inplace"
	}
	return layer.InPlaceXattr
}

// mark writes the marker of a plan whose target is about to be changed in place.
func (w *Worker) mark(ctx context.Context, j *job, t *target) error {
	path := w.markerPath(j.id)
	m := marker{Plan: j.id, Path: t.path, Keep: j.plan.OnFailure == plan.Keep, Index: path + ".index"}
	for _, l := range t.chain {
		m.Layers = append(m.Layers, markedLayer{l.ID, l.Dir})
	}
	// The base is all there is to roll back from, so here it has to survive the machine.
	err := w.cache.Persist(ctx, t.chain)
	if err == nil {
		err = statedir.WriteFile(m.Index, t.index.Encode)
	}
	fault.At("worker.index-kept")
	if err == nil {
		err = errors.Join(fault.Err("worker.mark"), statedir.WriteRecord(path, m))
	}
	fault.At("worker.marker-kept")
	if err == nil {
		err = unix.Lsetxattr(t.path, signName(), []byte(path), 0)
	}
	if errors.Is(err, unix.ENOTSUP) {
		w.log.Warn().Str("path", t.path).Msg("no extended attributes: after a crash only this worker can roll the path back")
		err = nil
	}
	if err != nil { // nothing was changed, so nobody has to roll anything back
		err = errors.Join(err, unsign(t.path), removeIfThere(path), removeIfThere(m.Index))
		return fmt.Errorf("worker: mark %s as changed in place: %w", t.path, err)
	}
	return nil
}

// takeOver settles what an apply left in an original that a plan is about to change in place. From then on whatever
// lies in the journal's directory is a step's doing.
func (w *Worker) takeOver(ctx context.Context, j *job, path string) error {
	if _, err := os.Lstat(filepath.Join(path, layer.JournalDir)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	info, err := w.repos.Locate(ctx, path)
	if err != nil {
		return err
	}
	s, _, err := w.openOriginal(ctx, &target{path: path, info: info})
	if err != nil {
		return err
	}
	_, err = w.recoverApply(ctx, j, s)
	return errors.Join(err, s.Close())
}

// unmark forgets a marker once the plan is final: its changes stand, or were undone. A journal in the original is a
// step's forgery by then, which the next apply must not believe.
func unmark(markerPath, path string) error {
	err := openedUp(path, func() error {
		if err := removeJournal(path); err != nil {
			return fmt.Errorf("worker: remove what a step left for the next apply: %w", err)
		}
		return unsign(path)
	})
	if err != nil {
		return err
	}
	fault.At("worker.unsigned")
	return errors.Join(removeIfThere(markerPath), removeIfThere(markerPath+".index"))
}

// removeJournal removes the journal's directory and leaves no trace of that in the times of the original's root: a
// rollback that was killed while it staged has put it there.
func removeJournal(path string) error {
	journal := filepath.Join(path, layer.JournalDir)
	var root unix.Stat_t
	if err := unix.Stat(path, &root); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if _, err := os.Lstat(journal); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := layer.RemoveTree(journal); err != nil {
		return err
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, root.Mtim}
	return unix.UtimesNanoAt(unix.AT_FDCWD, path, times, 0)
}

// openedUp changes an original whose root may be closed even to its owner: by its steps, or long before.
func openedUp(path string, change func() error) error {
	err := change()
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fmt.Errorf("worker: open up %s: %w", path, err)
	}
	if err := unix.Chmod(path, st.Mode&0o7777|0o700); err != nil {
		return fmt.Errorf("worker: open up %s: %w", path, err)
	}
	return errors.Join(change(), unix.Chmod(path, st.Mode&0o7777))
}

func unsign(path string) error {
	err := unix.Lremovexattr(path, signName())
	if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("worker: unmark %s: %w", path, err)
	}
	return nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("worker: remove marker: %w", err)
	}
	return nil
}

// sign returns the marker that the root of path names, "" for none.
func sign(path string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Lgetxattr(path, signName(), buf)
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("worker: look for a marker of %s: %w", path, err)
	}
	found := string(buf[:n])
	if !filepath.IsAbs(found) || events.Within(path, found) {
		return "", fmt.Errorf("worker: %s names the marker %q, which is not one of a worker", path, found)
	}
	return found, nil
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

// recoverMarked rolls the original of one marker back, under the path's lock.
func (w *Worker) recoverMarked(ctx context.Context, path string) error {
	var m marker
	if err := statedir.ReadRecord(path, &m); err != nil {
		return fmt.Errorf("worker: read marker %s: %w", path, err)
	}
	var unlock func()
	err := openedUp(m.Path, func() (err error) {
		unlock, err = flock(ctx, m.Path, true)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		w.log.Warn().Str("plan", m.Plan).Str("path", m.Path).Msg("a path that was left changed in place is gone")
		return unmark(path, m.Path)
	}
	if err != nil {
		return err
	}
	defer unlock()
	return w.recoverLocked(ctx, path, m.Path)
}

// undoInPlace rolls back what a lost worker left of a plan of strategy none, and names what
// was rolled back: "" for plans of other strategies, or when the original is gone.
func (w *Worker) undoInPlace(ctx context.Context, p *plan.Plan) (rolledBack string, err error) {
	if p.Strategy != plan.InPlace || p.Resource == nil || p.Resource.Path == "" {
		return "", nil
	}
	path, err := filepath.EvalSymlinks(p.Resource.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("worker: roll back %s: %w", p.Resource.Path, err)
	}
	unlock, err := w.lockPath(ctx, path, true)
	if err != nil {
		return "", err
	}
	unlock()
	return "original", nil
}

// stands tells whether what a plan changed in place is to stay: it ended so, or was rolled
// back already.
func (m marker) stands(f events.Fold) bool {
	return f.Final() && (f.State == events.StateApplied || f.State == events.StateFailed && m.Keep || f.RolledBack != "")
}

// recoverLocked rolls an original back whose lock is held, unless its plan had ended well.
func (w *Worker) recoverLocked(ctx context.Context, markerPath, path string) error {
	var m marker
	err := statedir.ReadRecord(markerPath, &m)
	if errors.Is(err, fs.ErrNotExist) {
		return unmark(markerPath, path)
	}
	if err != nil {
		return fmt.Errorf("worker: %s was left changed in place, and its marker %s cannot be read: start the worker that wrote it: %w", path, markerPath, err)
	}
	if m.Path != path { // a copy of the original, attributes and all, or it was moved: nobody worked here
		w.log.Warn().Str("path", path).Str("marker", markerPath).Msg("took away the mark of another path")
		return unsign(path)
	}
	last, err := w.fleet.Log.Last(ctx, m.Plan)
	if err != nil && !errors.Is(err, events.ErrNotFound) {
		return err
	}
	if f := last.Event.Data.Plan; (err != nil || f == nil || !m.stands(*f)) && !fault.Off("worker.in-place-marker") {
		if err := w.restoreMarked(ctx, m); err != nil {
			return err
		}
		w.log.Warn().Str("plan", m.Plan).Str("path", m.Path).Msg("rolled back a path that a lost worker left changed in place")
	}
	return unmark(markerPath, m.Path)
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

// lockPath locks an original against other workers of this host: exclusively to change it,
// shared to copy it. What a lost worker left changed in place is rolled back first. The
// lock ends with the process that holds it.
func (w *Worker) lockPath(ctx context.Context, path string, exclusive bool) (unlock func(), err error) {
	for {
		unlock, err := flock(ctx, path, exclusive)
		if err != nil {
			return nil, err
		}
		found, err := sign(path)
		if err == nil && found == "" {
			return unlock, nil
		}
		unlock()
		if err != nil {
			return nil, err
		}
		if unlock, err = flock(ctx, path, true); err != nil {
			return nil, err
		}
		err = w.recoverLocked(ctx, found, path)
		unlock()
		if err != nil {
			return nil, err
		}
	}
}

func flock(ctx context.Context, path string, exclusive bool) (unlock func(), err error) {
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
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
			err = sleep(ctx, lockPoll)
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("worker: lock %s: %w", path, err)
		}
	}
}
