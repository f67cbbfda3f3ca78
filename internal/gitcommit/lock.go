package gitcommit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// indexName and lockName are git's own (git's lockfile.h): who makes index.lock may replace the index.
	indexName = "index"
	lockName  = "index.lock"
	// slotName holds the index that goes in, and then the one that came out.
	slotName = "index.warmfleet"
	slotTmp  = slotName + ".tmp"
	lockTmp  = lockName + ".warmfleet"
	// mark begins an index.lock of ours, so that one that a kill left is told from git's.
	mark = "warmfleet apply\n"

	lockWait = 3 * time.Second // how long a running git is waited for
	lockPoll = 50 * time.Millisecond
)

// IndexLock is git's lock of a work tree's index: while it is held, no git commits, checks out or stages there. Whoever takes it holds the
// applier's lock of the same work tree; so one of ours that is found there was left by a kill.
type IndexLock struct {
	repo *Repository
	dir  *os.File // the git directory
	held bool
}

// Lock takes the index lock, waiting a short while for a running git. One that a kill left of ours is taken over.
func (r *Repository) Lock(ctx context.Context) (*IndexLock, error) {
	dir, err := r.openDir()
	if err != nil {
		return nil, err
	}
	l := &IndexLock{repo: r, dir: dir}
	if err := l.take(ctx); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return l, nil
}

func (r *Repository) openDir() (*os.File, error) {
	fd, err := unix.Open(r.info.GitDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("gitcommit: open %q: %w", r.info.GitDir, err)
	}
	return os.NewFile(uintptr(fd), r.info.GitDir), nil
}

func (l *IndexLock) take(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		err := l.try()
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return refuse(CodeLocked, l.repo.info.Path, "another git is working there, or one that was killed left %s/%s: "+
				"wait for it or remove that file, then run the plan again", l.dir.Name(), lockName)
		}
	}
}

// try makes the lock file as git does, but with our mark in it from the first moment on: hence the link.
func (l *IndexLock) try() error {
	if ours, err := l.marked(); err != nil || ours {
		l.held = ours
		return err
	}
	if err := l.write(lockTmp, 0o600, func(w io.Writer) error {
		_, err := io.WriteString(w, mark)
		return err
	}); err != nil {
		return err
	}
	fd := int(l.dir.Fd())
	err := unix.Linkat(fd, lockTmp, fd, lockName, 0)
	if err != nil {
		err = &fs.PathError{Op: "lock", Path: l.dir.Name() + "/" + lockName, Err: err}
	}
	if rmErr := removeAt(l.dir, lockTmp); err == nil {
		err = rmErr
	}
	l.held = err == nil
	return err
}

// marked tells whether the index is locked by us.
func (l *IndexLock) marked() (bool, error) {
	f, err := openAt(l.dir, lockName, unix.O_RDONLY|unix.O_NONBLOCK)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, int64(len(mark))+1))
	if err != nil {
		return false, nil // a directory or device: not ours
	}
	return string(b) == mark, nil
}

// Release gives the index back to git, and removes a new index that was not put in, or the old one. A second call does nothing.
func (l *IndexLock) Release() error {
	if l.dir == nil {
		return nil
	}
	var err error
	if l.held {
		var ours bool // a sweep may have removed it, and git have made its own since
		if ours, err = l.marked(); ours {
			err = errors.Join(removeAt(l.dir, slotName), removeAt(l.dir, lockName))
		}
	}
	err = errors.Join(err, l.dir.Close())
	l.dir = nil
	return err
}

// Abandon forgets the lock and leaves it: the change it protects is not finished.
func (l *IndexLock) Abandon() error {
	l.held = false
	return l.Release()
}

// Sweep removes what a killed apply left in the git directory before it changed anything: an index lock of ours and an index that
// was never put in. Its caller holds the applier's lock of the work tree, and no journal is pending there.
func (r *Repository) Sweep() error {
	dir, err := r.openDir()
	if err != nil {
		return err
	}
	defer dir.Close()
	l := &IndexLock{repo: r, dir: dir}
	for _, name := range []string{slotName, slotTmp, lockTmp} {
		err = errors.Join(err, removeAt(dir, name))
	}
	ours, lookErr := l.marked()
	if ours {
		err = errors.Join(err, removeAt(dir, lockName))
	}
	return errors.Join(err, lookErr)
}

// write makes a file of the repository's owner, on disk when it returns.
func (l *IndexLock) write(name string, mode uint32, content func(io.Writer) error) error {
	if err := removeAt(l.dir, name); err != nil {
		return err
	}
	f, err := openAt(l.dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return l.readOnly(err)
	}
	err = content(f)
	if as := l.repo.as; err == nil && as != nil {
		err = f.Chown(int(as.UID), int(as.GID))
	}
	if err == nil {
		err = unix.Fchmod(int(f.Fd()), mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(fmt.Errorf("gitcommit: write %q: %w", name, err), removeAt(l.dir, name))
	}
	return nil
}

func (l *IndexLock) readOnly(err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		return refuse(CodeWrite, l.repo.info.GitDir, "%v: the worker has to be allowed to write there", err)
	}
	return err
}

func openAt(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: strings.TrimSuffix(dir.Name(), "/") + "/" + name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// removeAt unlinks a name; an absent one is success.
func removeAt(dir *os.File, name string) error {
	if err := unix.Unlinkat(int(dir.Fd()), name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "remove", Path: dir.Name() + "/" + name, Err: err}
	}
	return nil
}
