package layer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sys/unix"
)

// stageContents writes every new file beside the tree, finished, before the tree is touched.
func (r *restorer) stageContents(ctx context.Context) error {
	for i, w := range r.wanted {
		if w.do == alias || w.do == build && w.Type == File {
			if err := r.openStage(); err != nil {
				return err
			}
		}
		if w.do != build || w.Type != File {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		w.staged = strconv.Itoa(i)
		if err := r.stageFile(w); err != nil {
			return fmt.Errorf("stage %q: %w", w.Path, err)
		}
	}
	return nil
}

// openStage makes a directory of its own in the journal directory; the apply's files there are left alone.
func (r *restorer) openStage() error {
	if r.stage != nil {
		return nil
	}
	r.dirty["."] = true
	if err := unix.Mkdirat(r.root.fd, JournalDir, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make stage: %w", err)
	}
	journal, err := r.root.sub(JournalDir, needWrite)
	if err != nil {
		return fmt.Errorf("open stage: %w", err)
	}
	defer journal.close()
	r.stageAt = "restore-" + ulid.Make().String()
	if err := unix.Mkdirat(journal.fd, r.stageAt, 0o700); err != nil {
		return fmt.Errorf("make stage: %w", err)
	}
	r.stage, err = journal.sub(r.stageAt, needWrite)
	return err
}

// undoStage removes a stage that was never used, with its trace in the root's times.
func (r *restorer) undoStage() error {
	if r.stage == nil {
		return nil
	}
	err := r.unstage()
	if r.scan != nil && !r.placing {
		err = errors.Join(err, r.root.setMTime(".", time.Unix(0, r.scan.found[0].stamp.mtime)))
	}
	return err
}

// unstage removes the stage, and the journal directory if nothing else is in it.
func (r *restorer) unstage() error {
	if r.stage == nil {
		return nil
	}
	err := r.stage.close()
	r.stage = nil
	journal, openErr := r.root.sub(JournalDir, needWrite)
	if openErr != nil {
		return errors.Join(err, openErr)
	}
	err = errors.Join(err, journal.remove(r.stageAt), journal.close())
	if e := unix.Unlinkat(r.root.fd, JournalDir, unix.AT_REMOVEDIR); e != nil && !errors.Is(e, unix.ENOTEMPTY) && !errors.Is(e, unix.EEXIST) {
		err = errors.Join(err, e)
	}
	return err
}

func (r *restorer) stageFile(w *wanted) error {
	src, err := openFile(w.dir, w.Path)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := r.stage.create(w.staged, w.Entry)
	if err != nil {
		return err
	}
	if err := errors.Join(copyContent(dst, src, w.Size), dst.Close()); err != nil {
		return err
	}
	return r.shape(r.stage, w.staged, w.Entry)
}

func (r *restorer) shape(f *folder, name string, e Entry) error {
	lost, err := f.shape(name, e, noOverlay, r.ownerOf(e))
	r.lost = append(r.lost, lost...)
	if os.Geteuid() != 0 && (e.UID != Self || e.GID != Self) {
		r.lost = append(r.lost, Lost{e.Path, fmt.Sprintf("owner %d:%d", e.UID, e.GID)})
	}
	return err
}

func (r *restorer) ownerOf(e Entry) ids {
	if os.Geteuid() != 0 {
		return ids{-1, -1}
	}
	own := ids{r.self.SelfUID, r.self.SelfGID}
	if r.job.owner != nil {
		return own
	}
	if e.UID != Self {
		own.uid = e.UID
	}
	if e.GID != Self {
		own.gid = e.GID
	}
	return own
}

// touch notes that p and the directory it is in no longer are as they were scanned.
func (r *restorer) touch(p Path) {
	r.touched[p] = true
	dir, _ := split(p)
	r.dirty[dir] = true
}

func (r *restorer) removeExtras() error {
	r.placing = true
	for _, p := range r.extra {
		if err := r.removePath(p); err != nil {
			return fmt.Errorf("remove %q: %w", p, err)
		}
	}
	return nil
}

func (r *restorer) removePath(p Path) error {
	f, name, err := openIn(r.root, p, needWrite)
	if gone(err) {
		return nil // it went with its directory
	}
	if err != nil {
		return err
	}
	r.touch(p)
	return errors.Join(f.remove(name), f.close())
}

// place puts everything but directories' metadata where it belongs, parents first.
func (r *restorer) place() error {
	for _, w := range r.wanted {
		if err := r.placeOne(w); err != nil {
			return fmt.Errorf("write %q: %w", w.Path, err)
		}
	}
	return nil
}

func (r *restorer) placeOne(w *wanted) error {
	if w.do == keep {
		return nil
	}
	if w.Type == Dir && w.do == shape {
		r.dirty[w.Path] = true
		return nil
	}
	f, name, err := openIn(r.root, w.Path, needWrite)
	if err != nil {
		return err
	}
	defer f.close()
	if w.do == shape {
		r.touched[w.Path] = true
		return r.shape(f, name, w.Entry)
	}
	r.touch(w.Path)
	if w.have != nil && (w.Type == Dir || w.have.Type == Dir || w.Type != File) {
		if err := f.remove(name); err != nil {
			return err
		}
	}
	switch {
	case w.do == alias:
		return r.placeAlias(f, name, w)
	case w.Type == File:
		return unix.Renameat(r.stage.fd, w.staged, f.fd, name)
	}
	return r.placeOther(f, name, w)
}

// placeAlias links through the stage: a rename replaces what is there in one step, a link cannot.
func (r *restorer) placeAlias(f *folder, name string, w *wanted) error {
	const tmp = "alias"
	from, fromName, err := openIn(r.root, w.HardLink, needRead)
	if err != nil {
		return err
	}
	defer from.close()
	if err := unix.Linkat(from.fd, fromName, r.stage.fd, tmp, 0); err != nil {
		return err
	}
	if err := unix.Renameat(r.stage.fd, tmp, f.fd, name); err != nil {
		return err
	}
	r.touched[w.HardLink] = true
	return r.stage.remove(tmp) // still there if it was linked already
}

func (r *restorer) placeOther(f *folder, name string, w *wanted) error {
	_, err := f.create(name, w.Entry)
	if errors.Is(err, unix.EPERM) && (w.Type == Char || w.Type == Block) {
		r.lost = append(r.lost, Lost{w.Path, "device"})
		return nil
	}
	if err != nil {
		return err
	}
	if w.Type == Dir {
		r.dirty[w.Path] = true
		return nil
	}
	return r.shape(f, name, w.Entry)
}

// finishDirs gives directories their metadata, children before parents.
func (r *restorer) finishDirs() error {
	for _, w := range slices.Backward(r.wanted) {
		if w.Type != Dir || !r.dirty[w.Path] {
			continue
		}
		f, name, err := openIn(r.root, w.Path, needRead)
		if err == nil {
			err = errors.Join(r.shape(f, name, w.Entry), f.close())
		}
		if err != nil {
			return fmt.Errorf("finish %q: %w", w.Path, err)
		}
		if w.Path == "." {
			r.root.restore = -1 // it has the mode that it is to have
		}
		r.touched[w.Path] = true
	}
	return nil
}

func (r *restorer) sync() error {
	if len(r.touched) == 0 {
		return nil
	}
	return unix.Syncfs(r.root.fd)
}

// index describes the directory as it is now.
func (r *restorer) index() (*Index, error) {
	x := &Index{SelfUID: r.self.SelfUID, SelfGID: r.self.SelfGID, lost: r.lost}
	for _, w := range r.wanted {
		if w.do == keep && w.have.known() && !r.touched[w.Path] && w.have.layer == w.layer {
			x.entries = append(x.entries, w.have.indexed)
			continue
		}
		now := &indexed{Entry: w.Entry, layer: w.layer}
		st, err := r.statNow(w)
		if errors.Is(err, fs.ErrNotExist) {
			continue // listed as lost
		}
		if err != nil {
			return nil, fmt.Errorf("stat %q: %w", w.Path, err)
		}
		now.stamp = st
		now.racy = st.ctime >= r.start.UnixNano()
		x.entries = append(x.entries, now)
	}
	for _, lost := range r.scan.lost {
		if !r.touched[lost.Path] {
			x.lost = append(x.lost, lost)
		}
	}
	return x, nil
}

func (r *restorer) statNow(w *wanted) (stamp, error) {
	if !r.touched[w.Path] && w.have != nil {
		return w.have.stamp, nil
	}
	f, name, err := openIn(r.root, w.Path, needRead)
	if err != nil {
		return stamp{}, err
	}
	st, err := f.stat(name)
	return stampOf(st), errors.Join(err, f.close())
}
