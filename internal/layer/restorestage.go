package layer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/fault"
)

// stagePrefix begins the name of a restore's stage in the journal directory.
const stagePrefix = "restore-"

// stageAll makes everything new beside the tree, finished, before the tree is touched.
func (r *restorer) stageAll(ctx context.Context) error {
	for i, w := range r.wanted {
		if w.do < build {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.openStage(); err != nil {
			return err
		}
		w.slot = strconv.Itoa(i)
		err := r.hook("stage " + string(w.Path))
		if err == nil {
			err = r.stageOne(w)
		}
		if err != nil {
			return fmt.Errorf("stage %q: %w", w.Path, err)
		}
	}
	return nil
}

// stageOne makes one path in the stage. A directory gets its metadata when all is in it.
func (r *restorer) stageOne(w *wanted) error {
	switch {
	case w.do == alias:
		return r.stageAlias(w)
	case w.Type == File:
		return r.stageFile(w)
	}
	_, err := r.stage.create(w.slot, w.Entry)
	if errors.Is(err, unix.EPERM) && (w.Type == Char || w.Type == Block) {
		r.lose(w)
		return nil
	}
	if err != nil || w.Type == Dir {
		return err
	}
	return r.shape(r.stage, w.slot, w.Entry)
}

// lose gives up a device that cannot be made here; nothing takes its place.
func (r *restorer) lose(w *wanted) {
	w.slot = ""
	r.lost = append(r.lost, Lost{w.Path, lostDevice})
}

func (r *restorer) stageFile(w *wanted) error {
	src, err := openFile(w.dir, w.Path)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := r.stage.create(w.slot, w.Entry)
	if err != nil {
		return err
	}
	if err := errors.Join(fault.Err("restore.stage"), copyContent(dst, src, w.Size), dst.Close()); err != nil {
		return err
	}
	return r.shape(r.stage, w.slot, w.Entry)
}

// stageAlias links to the first path of the group, where that is staged, else where it stays.
func (r *restorer) stageAlias(w *wanted) error {
	if first := w.first; first.do >= build {
		if first.slot == "" {
			r.lose(w)
			return nil
		}
		return unix.Linkat(r.stage.fd, first.slot, r.stage.fd, w.slot, 0)
	}
	from, name, err := openIn(r.root, w.HardLink, needRead)
	if err != nil {
		return err
	}
	r.touched[w.HardLink] = true
	return errors.Join(unix.Linkat(from.fd, name, r.stage.fd, w.slot, 0), from.close())
}

// openStage makes a directory of its own in the journal directory; the apply's files there are left alone.
func (r *restorer) openStage() error {
	if r.stage != nil {
		return nil
	}
	r.dirty["."] = true
	journal, err := r.openJournal()
	if err != nil {
		return fmt.Errorf("make stage: %w", err)
	}
	defer journal.close()
	r.stageAt = stagePrefix + ulid.Make().String()
	if err := unix.Mkdirat(journal.fd, r.stageAt, 0o700); err != nil {
		return fmt.Errorf("make stage: %w", err)
	}
	if r.stage, err = journal.sub(r.stageAt, needWrite); err != nil {
		return fmt.Errorf("open stage: %w", err)
	}
	// A default list of the root would be inherited by everything that is staged.
	err = unix.Lremovexattr(r.stage.attrPath("."), "system.posix_acl_default")
	if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("make stage: %w", err)
	}
	return nil
}

// openJournal opens or makes the journal directory. Anything else of that name is no part of the tree and in the way.
func (r *restorer) openJournal() (*folder, error) {
	for {
		f, err := r.root.sub(JournalDir, needWrite)
		switch {
		case errors.Is(err, unix.ENOENT):
			err = unix.Mkdirat(r.root.fd, JournalDir, 0o700)
		case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
			err = unix.Unlinkat(r.root.fd, JournalDir, 0)
		case err == nil:
			return f, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// unstage removes the stage, those that killed restores left, and the journal directory if nothing else is in it.
func (r *restorer) unstage() error {
	if r.stage != nil {
		if err := r.stage.close(); err != nil {
			return err
		}
		r.stage = nil
	}
	journal, err := r.root.sub(JournalDir, needWrite)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	names, err := journal.names()
	for _, name := range names {
		if strings.HasPrefix(name, stagePrefix) {
			r.dirty["."] = true
			err = errors.Join(err, journal.remove(name))
		}
	}
	err = errors.Join(err, journal.close())
	if !r.dirty["."] {
		return err // it was not this restore's, nor is there anything of another
	}
	e := unix.Unlinkat(r.root.fd, JournalDir, unix.AT_REMOVEDIR)
	if e != nil && !errors.Is(e, unix.ENOTEMPTY) && !errors.Is(e, unix.EEXIST) {
		err = errors.Join(err, e)
	}
	return err
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
