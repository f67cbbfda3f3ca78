package applier

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/fault"
	"github.com/warmfleet/warmfleet/internal/layer"
)

const (
	lockName = "lock"
	// ignoreName has git pass over the directory, which is there for a moment after an apply was recorded.
	ignoreName = ".gitignore"
	// A waiter asks for the lock this often: waiting in the kernel could not be cancelled.
	lockPoll = 20 * time.Millisecond
)

// phase is how far a session got.
type phase int

const (
	phaseOpen      phase = iota // nothing of this session is on disk but the lock
	phasePending                // a crash left a journal that Recover must settle
	phaseStaged                 // everything is staged, nothing in the original changed
	phaseCommitted              // the original is changed, the stage still holds what it replaced
	phaseClosed
)

// Session is the exclusive right to apply to one original, from Open to Close. It is not safe for concurrent use.
type Session struct {
	tree    *tree // of the original
	jdir    *os.File
	lock    *os.File
	log     zerolog.Logger
	hook    func(string) error
	phase   phase
	journal *journal
	state   journalState
	lost    []layer.Lost
	extra   ExtraFunc
}

// Open takes the lock of the original at root, which must be a real path (no link in it), waiting for another holder
// until ctx ends. A journal of an apply that had not begun is discarded; of one that had, it is Pending.
func Open(ctx context.Context, root string, o Options) (*Session, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, root, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, fmt.Errorf("applier: open root %q: %w", root, err)
	}
	dir := os.NewFile(uintptr(fd), root)
	t, err := newTree(dir)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	s := &Session{tree: t, log: o.Log, hook: o.Hook, extra: o.Extra}
	if s.hook == nil {
		s.hook = fault.Hook("apply")
	}
	if err := s.acquire(ctx); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	fault.At("apply.locked")
	if err := s.settle(); err != nil {
		s.phase = phasePending // what is there stays
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// acquire locks the lock file that the path names once the lock is held: a holder that ends deletes it.
func (s *Session) acquire(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("applier: lock %q: %w", s.tree.dir.Name(), err)
		}
		jdir, lock, err := s.openLock()
		if errors.Is(err, unix.ENOENT) { // the holder removed the directory in between
			continue
		}
		if err != nil {
			return err
		}
		s.jdir, s.lock = jdir, lock
		current, err := s.await(ctx)
		if current && err == nil {
			hide(jdir)
			return nil
		}
		lock.Close()
		jdir.Close()
		if err != nil {
			return err
		}
	}
}

func (s *Session) openLock() (jdir, lock *os.File, err error) {
	err = unix.Mkdirat(int(s.tree.dir.Fd()), layer.JournalDir, workingMode)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, nil, fmt.Errorf("applier: create %q in %q: %w", layer.JournalDir, s.tree.dir.Name(), err)
	}
	jdir, err = s.tree.open(layer.JournalDir, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, errParentReplaced) {
		return nil, nil, fmt.Errorf("applier: open %q: %w", layer.JournalDir, ErrForeign)
	}
	if err != nil {
		return nil, nil, err
	}
	st, err := statOf(jdir)
	if err == nil && (st.UID != os.Geteuid() || st.Mode&0o077 != 0) {
		// Whoever else could write in it could make us do what its journal says.
		err = ErrForeign
	}
	if err != nil {
		jdir.Close()
		return nil, nil, fmt.Errorf("applier: open %q: %w", layer.JournalDir, err)
	}
	fd, err := openat(jdir, lockName, unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		jdir.Close()
		return nil, nil, fmt.Errorf("applier: create lock: %w", err)
	}
	return jdir, fd, nil
}

// hide has git take no notice of the journal's directory. Without room for the file the apply itself will say so.
func hide(jdir *os.File) {
	f, err := openat(jdir, ignoreName, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = f.WriteString("*\n")
}

// await waits for the lock, and says whether the locked file still is the one that the path names.
func (s *Session) await(ctx context.Context) (bool, error) {
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	for {
		err := unix.FcntlFlock(s.lock.Fd(), unix.F_OFD_SETLK, &whole)
		if err == nil || fault.Off("applier.lock") {
			break
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EINTR) {
			return false, fmt.Errorf("applier: lock %q: %w", s.tree.dir.Name(), err)
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("applier: lock %q: held by another apply: %w", s.tree.dir.Name(), ctx.Err())
		case <-tick.C:
		}
	}
	held, err := statOf(s.lock)
	if err != nil {
		return false, fmt.Errorf("applier: stat lock: %w", err)
	}
	named, err := s.tree.inode(layer.JournalDir + "/" + lockName)
	if err != nil {
		return false, err
	}
	return named == held.Ino, nil
}

// OpenOriginal reads a regular file of the original, never by way of a link. Before Commit it is what Preview.Replaced lists.
func (s *Session) OpenOriginal(p layer.Path) (io.ReadCloser, error) {
	return s.tree.reader(p)
}

// Original describes a path of the original as it is now, with the digest of a regular file; nil when nothing is there, or when
// a directory on the way is none.
func (s *Session) Original(p layer.Path) (*layer.Entry, error) {
	st, err := s.tree.state(p)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errParentReplaced) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	e := st.entry(p)
	return &e, nil
}

// Names lists a directory of the original, in no order.
func (s *Session) Names(p layer.Path) ([]string, error) { return s.tree.names(p) }

// Lost is what Stage could not keep, such as an owner that an ordinary user cannot give. It is not stored.
func (s *Session) Lost() []layer.Lost { return s.lost }

// Finish forgets a committed apply: what it replaced, its journal, and the lock with its directory. Call it once
// `applied` is recorded; until then a crash leaves the journal, which says that the change is made.
// Only Close may follow.
func (s *Session) Finish(ctx context.Context) error {
	if s.phase != phaseCommitted {
		return fmt.Errorf("applier: finish: %w", ErrOrder)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("applier: finish: %w", err)
	}
	if err := s.hook("finish stage"); err != nil {
		return err
	}
	if err := s.forgetExtras(); err != nil {
		return err
	}
	if err := s.removeStage(s.journal.stage()); err != nil {
		return err
	}
	if err := s.hook("finish journal"); err != nil {
		return err
	}
	if err := s.forget(); err != nil {
		return err
	}
	s.phase = phaseOpen
	if err := s.hook("finish lock"); err != nil {
		return err
	}
	return s.Close()
}

// Close gives up the lock. What is staged and not committed is discarded; a committed apply that was not finished
// keeps its journal for the next Open. A second call does nothing.
func (s *Session) Close() error {
	var err error
	switch s.phase {
	case phaseClosed:
		return nil
	case phaseStaged:
		err = s.discard()
	case phasePending, phaseCommitted:
		return s.shut()
	}
	if err == nil {
		err = s.leave()
	}
	return errors.Join(err, s.shut())
}

// leave removes the lock, and its directory when nothing else is in it.
func (s *Session) leave() error {
	if err := unix.Unlinkat(int(s.jdir.Fd()), ignoreName, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("applier: remove %q: %w", ignoreName, err)
	}
	if err := unix.Unlinkat(int(s.jdir.Fd()), lockName, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("applier: remove lock: %w", err)
	}
	fault.At("apply.unlocked")
	err := unix.Unlinkat(int(s.tree.dir.Fd()), layer.JournalDir, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.EACCES) { // the plan closed the root
		err = s.removeFromClosed()
	}
	if err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("applier: remove %q: %w", layer.JournalDir, err)
	}
	return nil
}

// removeFromClosed removes the journal's directory from a root that its owner may not write, and closes that again.
func (s *Session) removeFromClosed() error {
	root := int(s.tree.dir.Fd())
	st, err := statOf(s.tree.dir)
	if err != nil {
		return err
	}
	if err := unix.Fchmod(root, st.Mode|ownerWriteEx); err != nil {
		return err
	}
	return errors.Join(unix.Unlinkat(root, layer.JournalDir, unix.AT_REMOVEDIR), unix.Fchmod(root, st.Mode))
}

func (s *Session) shut() error {
	s.phase = phaseClosed
	return errors.Join(s.lock.Close(), s.jdir.Close(), s.tree.dir.Close())
}
