package layer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// captureTries is how often a file that is being written, or a tree that loses paths, is read again.
const captureTries = 3

// Capture makes a layer of what differs in the directory dir from old; with a nil old, of everything. It
// reads only what may have changed, never changes dir for longer than it takes to open an unreadable file of
// the caller's own, and leaves out the journal directory. A changed time of change alone is no difference.
//
// It returns the layer, the index for the next capture, and whether there is a layer at all. Self becomes the
// owner of dir, or stays what it is in old. Sockets, and what the caller may not read, are listed in the
// layer's and the index's Lost. A file that changes during each of three reads is an error that names it.
func (c *Cache) Capture(ctx context.Context, dir string, old *Index) (Layer, *Index, bool, error) {
	return c.capture(ctx, captureJob{dir: dir, old: old})
}

// CaptureAgain is Capture for what can be captured again: the layer survives the death of any
// process, but not that of the machine, and costs no wait for the disk. Persist makes up for it.
func (c *Cache) CaptureAgain(ctx context.Context, dir string, old *Index) (Layer, *Index, bool, error) {
	return c.capture(ctx, captureJob{dir: dir, old: old, keep: untilReboot})
}

type captureJob struct {
	dir string
	old *Index
	// quiet: nothing writes in dir meanwhile, or has a mapping of a file in it.
	quiet bool
	keep  durability
}

func (c *Cache) capture(ctx context.Context, job captureJob) (Layer, *Index, bool, error) {
	root, err := openFolder(job.dir, needRead)
	if err != nil {
		return Layer{}, nil, false, fmt.Errorf("layer: capture %q: %w", job.dir, err)
	}
	defer root.close()
	for try := 1; ; try++ {
		l, x, changed, err := c.captureOnce(ctx, root, job)
		if errors.Is(err, fs.ErrNotExist) && try < captureTries && ctx.Err() == nil {
			continue // a path went away between being seen and being read
		}
		if err != nil {
			return Layer{}, nil, false, fmt.Errorf("layer: capture %q: %w", job.dir, err)
		}
		return l, x, changed, nil
	}
}

func (c *Cache) captureOnce(ctx context.Context, root *folder, job captureJob) (Layer, *Index, bool, error) {
	base := job.old
	if base == nil {
		st, err := root.stat(".")
		if err != nil {
			return Layer{}, nil, false, err
		}
		base = &Index{SelfUID: int(st.Uid), SelfGID: int(st.Gid)}
	}
	s, err := scanDir(ctx, root, base)
	if err != nil {
		return Layer{}, nil, false, err
	}
	s.quiet = job.quiet
	if err := s.writeOut(); err != nil {
		return Layer{}, nil, false, err
	}
	changed, err := c.judge(s)
	if err != nil {
		return Layer{}, nil, false, err
	}
	if !changed {
		return Layer{}, s.newIndex(), false, nil
	}
	l, err := c.writeScan(s, job)
	return l, s.newIndex(), true, err
}

// judge decides which found paths differ from the index. Whoever has not changed keeps the layer that its
// content is in.
func (c *Cache) judge(s *scan) (bool, error) {
	changed := len(s.deleted) > 0
	var groups map[Path]bool // groups of hard links with a changed member, by first path
	for _, f := range s.found {
		if f.known() {
			continue
		}
		err := s.loadXattrs(f)
		if err == nil {
			f.changed, err = c.differs(s, f)
		}
		if errors.Is(err, fs.ErrNotExist) && f.Type == File {
			f.changed, err = true, nil // it went away; reading it will tell
		}
		if err != nil {
			return false, fmt.Errorf("read %q: %w", f.Path, err)
		}
		if !f.changed {
			f.layer = f.old.layer
			continue
		}
		changed = true
		if groups == nil {
			groups = map[Path]bool{}
		}
		groups[firstOf(f.Entry)] = true
	}
	for _, f := range s.found {
		if groups[firstOf(f.Entry)] && !f.changed {
			f.changed = true
			if f.known() {
				again := *f.indexed // the index is shared, its entry will name another layer
				f.indexed = &again
			}
		}
	}
	return changed, nil
}

// firstOf names an entry's hard-link group.
func firstOf(e Entry) Path {
	if e.HardLink != "" {
		return e.HardLink
	}
	return e.Path
}

func (c *Cache) differs(s *scan, f *scanned) (bool, error) {
	if f.old == nil || !sameEntry(f.Entry, f.old.Entry) {
		return true, nil
	}
	if f.Type != File {
		return false, nil
	}
	return c.contentDiffers(s, f)
}

// contentDiffers compares a file of the directory with the one that the index names. A layer that is no longer
// there counts as a difference.
func (c *Cache) contentDiffers(s *scan, f *scanned) (bool, error) {
	kept, err := openFile(c.treeOf(f.old.layer), f.Path)
	if gone(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer kept.Close()
	now, err := openBelow(s.root, f.Path)
	if err != nil {
		return false, err
	}
	defer now.Close()
	settled, err := s.settled(now)
	if err != nil {
		return false, err
	}
	f.racy = f.racy || !settled
	same, err := sameContent(kept, now)
	return !same, err
}

func (c *Cache) treeOf(id string) string { return filepath.Join(c.dir, id, treeDir) }

// writeScan makes the layer of what is new, changed and deleted.
func (c *Cache) writeScan(s *scan, job captureJob) (Layer, error) {
	stage, err := c.Stage()
	if err != nil {
		return Layer{}, err
	}
	w, err := newWriter(stage.Dir(), c.opt)
	if err != nil {
		return Layer{}, errors.Join(err, stage.Discard())
	}
	cw := captureWriter{writer: w, scan: s, layer: stage.id, whole: job.old == nil}
	if err := cw.run(); err != nil {
		return Layer{}, errors.Join(err, w.abort(), stage.Discard())
	}
	if err := w.finish(); err != nil {
		return Layer{}, errors.Join(err, stage.Discard())
	}
	meta := w.meta()
	meta.Lost = append(meta.Lost, s.lost...)
	meta.SelfUID, meta.SelfGID = &s.index.SelfUID, &s.index.SelfGID
	return stage.commitOr(meta, job.keep)
}

// captureWriter copies the changed paths of a scan into a layer.
type captureWriter struct {
	*writer
	scan   *scan
	layer  string
	whole  bool          // there is nothing below the layer
	needed map[Path]bool // directories that lead to something
}

func (w *captureWriter) run() error {
	w.needed = map[Path]bool{".": true}
	for _, f := range w.scan.found {
		if f.changed {
			w.need(f.Path)
		}
	}
	for _, old := range w.scan.deleted {
		w.need(old.Path)
	}
	dirs := map[Path]bool{}
	deleted := w.scan.deleted
	for _, f := range w.scan.found {
		for len(deleted) > 0 && comparePaths(deleted[0].Path, f.Path) < 0 {
			if err := w.delete(deleted[0].Path, dirs); err != nil {
				return err
			}
			deleted = deleted[1:]
		}
		if err := w.add(f); err != nil {
			return err
		}
		dirs[f.Path] = f.Type == Dir
	}
	for _, old := range deleted {
		if err := w.delete(old.Path, dirs); err != nil {
			return err
		}
	}
	return nil
}

// need marks the directories above p.
func (w *captureWriter) need(p Path) {
	for p != "." {
		p, _ = split(p)
		if w.needed[p] {
			return
		}
		w.needed[p] = true
	}
}

// delete marks p deleted, if the directory it was in is still one.
func (w *captureWriter) delete(p Path, dirs map[Path]bool) error {
	if dir, _ := split(p); !dirs[dir] {
		return nil
	}
	return w.whiteout(p)
}

func (w *captureWriter) add(f *scanned) error {
	if !f.changed && !(f.Type == Dir && w.needed[f.Path]) {
		return nil
	}
	if f.changed {
		f.layer = w.layer
		if err := w.lose(f); err != nil {
			return fmt.Errorf("read %q: %w", f.Path, err)
		}
	}
	if f.Type == File && f.HardLink == "" {
		return w.addFile(f)
	}
	if err := w.put(f.Entry, nil); err != nil {
		return err
	}
	if f.Type == Dir && !w.whole && (f.old == nil || f.old.Type != Dir) {
		return w.opaque(f.Path)
	}
	return nil
}

// lose lists what the path has that the layer does not keep.
func (w *captureWriter) lose(f *scanned) error {
	if !f.Type.hasXattrs() {
		return nil
	}
	dir, name, err := openIn(w.scan.root, f.Path, needRead)
	if err != nil {
		return err
	}
	defer dir.close()
	what, err := dir.unkept(name)
	if errors.Is(err, unix.ENOENT) {
		return nil // it went away since it was seen; reading it will tell
	}
	for _, s := range what {
		w.lost = append(w.lost, Lost{f.Path, s})
	}
	return err
}

// addFile copies a regular file that stands still while it is read.
func (w *captureWriter) addFile(f *scanned) error {
	dir, name, err := openIn(w.scan.root, f.Path, needRead)
	if err != nil {
		return err
	}
	defer dir.close()
	for try := 1; ; try++ {
		err := w.copyFile(dir, name, f)
		switch {
		case errors.Is(err, fs.ErrNotExist) && !w.isFirst(f.Path):
			return w.leaveOut(f)
		case errors.Is(err, errChanged) && try < captureTries && w.scan.ctx.Err() == nil:
			if err := w.undo(f.Path); err != nil {
				return err
			}
		case err != nil:
			return fmt.Errorf("read %q: %w", f.Path, err)
		default:
			return nil
		}
	}
}

// isFirst tells whether p has names that are linked to it.
func (w *captureWriter) isFirst(p Path) bool {
	return slices.ContainsFunc(w.scan.found, func(f *scanned) bool { return f.HardLink == p })
}

// leaveOut drops a file that went away between being seen and having been read.
func (w *captureWriter) leaveOut(f *scanned) error {
	if err := w.undo(f.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f.vanished = true
	if f.old == nil {
		return nil
	}
	return w.whiteout(f.Path)
}

// undo removes a file that was put.
func (w *captureWriter) undo(p Path) error {
	f, name, err := w.in(p)
	if err != nil {
		return err
	}
	return f.remove(name)
}

// copyFile puts one reading of the file and records the stat it was read under.
func (w *captureWriter) copyFile(dir *folder, name string, f *scanned) error {
	src, err := dir.open(name)
	if err != nil {
		return err
	}
	defer src.Close()
	before, err := statFile(src)
	if err != nil {
		return err
	}
	e, err := dir.describe(f.Path, name, before)
	if err != nil {
		return err
	}
	e.UID, e.GID, e.Xattrs, e.HardLink = f.UID, f.GID, f.Xattrs, ""
	settled, err := w.scan.settled(src)
	if err != nil {
		return err
	}
	read := w.put(e, src)
	if read != nil && !errors.Is(read, errChanged) {
		return read
	}
	after, err := statFile(src)
	switch {
	case err != nil:
		return err
	case after.Nlink == 0:
		return fs.ErrNotExist // unlinked while it was read: it is gone, not changed
	case read != nil || stampOf(before) != stampOf(after):
		return errChanged
	}
	if now := stampOf(after); now != f.stamp {
		f.stamp, f.racy = now, true
	}
	f.racy = f.racy || !settled
	e.HardLink = f.HardLink
	f.Entry = e
	return nil
}

func statFile(f *os.File) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	return st, err
}
