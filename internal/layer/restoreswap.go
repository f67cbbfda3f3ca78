package layer

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/fault"
)

// swapped is one change of the tree, with what it takes to take it back.
type swapped struct {
	path Path
	// slot is where in the stage the new path came from, and what it replaced lies.
	slot string
	how  change
	// old is what a reshaped path looked like.
	old *scanned
	// mode, if not -1, is that of a directory which had to be opened up to be moved.
	mode int64
}

type change int

const (
	taken     change = iota // moved into the stage
	placed                  // moved out of it, where nothing was
	exchanged               // with what was there
	reshaped                // given other metadata
)

// swap makes the tree that of the chain. Everything it needs lies in the stage, and what it takes away goes there, so that
// every change can be taken back; when one fails, all are.
func (r *restorer) swap() error {
	fault.At("restore.staged")
	for _, step := range []func() error{r.takeExtras, r.place, r.finishDirs} {
		err := step()
		if err == nil {
			continue
		}
		if undo := r.takeBack(); undo != nil {
			return fmt.Errorf("%w; and it could not be taken back, so that the directory is half restored: repeat it: %w", err, undo)
		}
		return err
	}
	fault.At("restore.placed")
	return nil
}

// touch notes that p and the directory it is in no longer are as they were scanned.
func (r *restorer) touch(p Path) {
	r.touched[p] = true
	dir, _ := split(p)
	r.dirty[dir] = true
}

func (r *restorer) takeExtras() error {
	if len(r.extra) > 0 {
		if err := r.openStage(); err != nil {
			return err
		}
	}
	for i, p := range r.extra {
		if fault.Off("layer.exact-mirror") {
			break
		}
		fault.At("restore.remove")
		err := r.hook("take " + string(p))
		if err == nil {
			err = r.take(p, "old-"+strconv.Itoa(i))
		}
		if err != nil {
			return fmt.Errorf("remove %q: %w", p, err)
		}
	}
	return nil
}

// take moves a path with all below it into the stage.
func (r *restorer) take(p Path, slot string) error {
	f, name, err := openIn(r.root, p, needWrite)
	if gone(err) {
		return nil // it went with its directory
	}
	if err != nil {
		return err
	}
	defer f.close()
	mode, err := movable(f, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err == nil {
		err = unix.Renameat2(f.fd, name, r.stage.fd, slot, unix.RENAME_NOREPLACE)
	}
	if err != nil {
		return errors.Join(err, closeUp(f, name, mode))
	}
	r.touch(p)
	r.done = append(r.done, swapped{path: p, slot: slot, how: taken, mode: mode})
	return nil
}

// movable opens up an ordinary user's own directory that lacks write permission: moving it changes its "..". It gives the mode
// it had, -1 if nothing had to be done.
func movable(f *folder, name string) (int64, error) {
	st, err := f.stat(name)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR || os.Geteuid() == 0 || st.Mode&needWrite == needWrite || int(st.Uid) != os.Geteuid() {
		return -1, err
	}
	mode := st.Mode & 0o7777
	return int64(mode), f.chmod(name, mode|needWrite)
}

func closeUp(f *folder, name string, mode int64) error {
	if mode < 0 {
		return nil
	}
	return f.chmod(name, uint32(mode))
}

// place puts everything where it belongs, parents first, and gives what stays its metadata.
func (r *restorer) place() error {
	for _, w := range r.wanted {
		if w.do == keep || w.do == shape && w.Type == Dir {
			r.dirty[w.Path] = r.dirty[w.Path] || w.do == shape
			continue
		}
		err := r.hook("place " + string(w.Path))
		if err == nil {
			err = r.placeOne(w)
		}
		if err != nil {
			return fmt.Errorf("write %q: %w", w.Path, err)
		}
	}
	return nil
}

func (r *restorer) placeOne(w *wanted) error {
	fault.At("restore.place")
	if w.do == shape {
		return r.reshape(w)
	}
	if w.slot == "" {
		if w.have == nil {
			return nil
		}
		return r.take(w.Path, "lost-"+strconv.Itoa(len(r.done)))
	}
	f, name, err := openIn(r.root, w.Path, needWrite)
	if err != nil {
		return err
	}
	defer f.close()
	r.touch(w.Path)
	if w.Type == Dir {
		r.dirty[w.Path] = true
	}
	if w.have == nil {
		err := unix.Renameat2(r.stage.fd, w.slot, f.fd, name, unix.RENAME_NOREPLACE)
		if err == nil {
			r.done = append(r.done, swapped{path: w.Path, slot: w.slot, how: placed})
		}
		return err
	}
	mode, err := movable(f, name)
	if err == nil {
		err = unix.Renameat2(r.stage.fd, w.slot, f.fd, name, unix.RENAME_EXCHANGE)
	}
	if err != nil {
		return errors.Join(err, closeUp(f, name, mode))
	}
	r.done = append(r.done, swapped{path: w.Path, slot: w.slot, how: exchanged, mode: mode})
	return nil
}

// reshape gives a path that stays the metadata it is to have.
func (r *restorer) reshape(w *wanted) error {
	f, name, err := openIn(r.root, w.Path, needRead)
	if err != nil {
		return err
	}
	defer f.close()
	if w.have != nil {
		r.done = append(r.done, swapped{path: w.Path, how: reshaped, old: w.have})
	}
	r.touched[w.Path] = true
	return r.shape(f, name, w.Entry)
}

// finishDirs gives directories their metadata, children before parents, all but the root: the stage is still in that.
func (r *restorer) finishDirs() error {
	for _, w := range slices.Backward(r.wanted) {
		if w.Type != Dir || !r.dirty[w.Path] || w.Path == "." {
			continue
		}
		fault.At("restore.dir")
		err := r.hook("finish " + string(w.Path))
		if err == nil {
			err = r.reshape(w)
		}
		if err != nil {
			return fmt.Errorf("finish %q: %w", w.Path, err)
		}
	}
	return nil
}

// finishRoot gives the root its metadata, once nothing of the restore is in it any more.
func (r *restorer) finishRoot() error {
	if !r.dirty["."] {
		return nil
	}
	if err := r.reshape(r.wanted[0]); err != nil {
		return fmt.Errorf("finish root: %w", err)
	}
	r.root.restore = -1 // it has the mode that it is to have
	return nil
}

// takeBack undoes every change of the tree, the last one first. What was lost in making it is no loss then.
func (r *restorer) takeBack() error {
	for _, d := range slices.Backward(r.done) {
		if err := r.undo(d); err != nil {
			return fmt.Errorf("put %q back: %w", d.path, err)
		}
	}
	r.done = nil
	for _, s := range slices.Backward(r.scan.found) {
		if s.Type != Dir || !r.dirty[s.Path] || s.Path == "." {
			continue
		}
		f, name, err := openIn(r.root, s.Path, needRead)
		if err == nil {
			err = errors.Join(f.setMTime(name, time.Unix(0, s.stamp.mtime)), f.close())
		}
		if err != nil {
			return fmt.Errorf("put the time of %q back: %w", s.Path, err)
		}
	}
	return nil
}

func (r *restorer) undo(d swapped) error {
	need := uint32(needWrite)
	if d.how == reshaped {
		need = needRead
	}
	f, name, err := openIn(r.root, d.path, need)
	if err != nil {
		return err
	}
	defer f.close()
	switch d.how {
	case taken:
		err = unix.Renameat2(r.stage.fd, d.slot, f.fd, name, unix.RENAME_NOREPLACE)
	case exchanged:
		err = unix.Renameat2(r.stage.fd, d.slot, f.fd, name, unix.RENAME_EXCHANGE)
	case placed:
		return unix.Renameat2(f.fd, name, r.stage.fd, d.slot, unix.RENAME_NOREPLACE)
	case reshaped:
		_, err := f.shape(name, d.old.Entry, noOverlay, r.onDisk(d.old))
		return err
	}
	if err != nil {
		return err
	}
	return closeUp(f, name, d.mode)
}

// onDisk is the owner that a path had.
func (r *restorer) onDisk(s *scanned) ids {
	if os.Geteuid() != 0 {
		return ids{-1, -1}
	}
	return ids{int(s.stamp.uid), int(s.stamp.gid)}
}
