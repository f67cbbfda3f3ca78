package statedir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockPoll bounds how long a free lock may go unnoticed; flock(2) itself can't be cancelled.
const lockPoll = 20 * time.Millisecond

// Lock takes the exclusive lock on the file at path, made if absent, and waits for other holders
// until ctx ends. The lock belongs to the returned file: closing it, or the death of the process,
// frees it. It excludes other processes and other callers in this one.
func Lock(ctx context.Context, path string) (*os.File, error) {
	for wait := time.Millisecond; ; wait = min(2*wait, lockPoll) {
		f, err := tryLock(path, unix.LOCK_EX)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("statedir: lock %q: %w", path, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("statedir: lock %q: %w", path, ctx.Err())
		case <-time.After(wait):
		}
	}
}

// tryLock opens and locks path, or fails with EWOULDBLOCK. A lock on a file that was unlinked
// meanwhile locks nothing, so the name is checked again afterwards.
func tryLock(path string, how int) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err != nil {
			_ = f.Close()
			return nil, err
		}
		mine, err := f.Stat()
		if err != nil {
			_ = f.Close()
			return nil, err
		}
		if named, err := os.Lstat(path); err == nil && os.SameFile(mine, named) {
			return f, nil
		}
		_ = f.Close()
	}
}
