package natsboot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockFile lies in the state directory. Its content only helps messages; the truth is in
// open file description locks on its bytes, which the kernel drops with their holder:
const (
	lockFile = "lock"

	byteHolder = 0 // held by the one process whose server serves the directory
	byteReady  = 1 // held by the same process once nats.env is its own
	byteJoined = 2 // shared by those who joined; held alone by a holder that ends
)

// pollLock is how often a change of another process's locks is looked for.
const pollLock = 20 * time.Millisecond

// ErrHeld says that another process holds the state directory and could not be joined.
var ErrHeld = errors.New("state directory is in use")

// Lock is the right to run the server of a state directory. It ends with Close, or with
// the process.
type Lock struct {
	dir string
	f   *os.File
}

// Joined is the use of a server that another process runs. The holder stays until Close.
type Joined struct {
	Env Env
	PID int // of the holder, 0 when unknown
	f   *os.File
}

// lockInfo is the content of the lock file.
type lockInfo struct {
	PID int `json:"pid"`
}

// Acquire returns either the lock of dir, or, when another process holds it, the
// connection to that process's server, once it is ready. A lock whose holder was killed is
// free at once. When ctx ends first, the error is an ErrHeld that names the holder.
func Acquire(ctx context.Context, dir string) (*Lock, *Joined, error) {
	poll := time.NewTicker(pollLock)
	defer poll.Stop()
	for {
		lock, err := tryLock(dir)
		if err != nil || lock != nil {
			return lock, nil, err
		}
		joined, err := tryJoin(dir)
		if err != nil || joined != nil {
			return nil, joined, err
		}
		select {
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("natsboot: join %q: %w by process %d, which is not ready: %w", dir, ErrHeld, holderPID(dir), ctx.Err())
		case <-poll.C:
		}
	}
}

// Dir returns the state directory.
func (l *Lock) Dir() string { return l.dir }

// Drain returns once no process is joined; from then on none can join. When ctx ends
// first, everything stays as it was.
func (l *Lock) Drain(ctx context.Context) error {
	poll := time.NewTicker(pollLock)
	defer poll.Stop()
	for {
		ok, err := setLock(l.f, unix.F_WRLCK, byteJoined)
		if err != nil {
			return fmt.Errorf("natsboot: drain %q: %w", l.dir, err)
		}
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("natsboot: drain %q: %w", l.dir, ctx.Err())
		case <-poll.C:
		}
	}
}

// Close gives the directory up. The server must have stopped.
func (l *Lock) Close() error { return l.f.Close() }

// ready tells others that nats.env is this holder's.
func (l *Lock) ready() error {
	_, err := setLock(l.f, unix.F_WRLCK, byteReady)
	return err
}

// notReady keeps others from joining a server that stops.
func (l *Lock) notReady() error {
	_, err := setLock(l.f, unix.F_UNLCK, byteReady)
	return err
}

// Close ends the use of the other process's server.
func (j *Joined) Close() error { return j.f.Close() }

// tryLock returns nil without an error when another process has the lock.
func tryLock(dir string) (*Lock, error) {
	f, err := openLock(dir)
	if err != nil {
		return nil, err
	}
	ok, err := setLock(f, unix.F_WRLCK, byteHolder)
	if err != nil || !ok {
		return nil, errors.Join(lockError(dir, err), f.Close())
	}
	content, err := json.Marshal(lockInfo{PID: os.Getpid()})
	if err == nil {
		err = errors.Join(f.Truncate(0), writeAt(f, content))
	}
	if err != nil {
		return nil, errors.Join(lockError(dir, err), f.Close())
	}
	return &Lock{dir: dir, f: f}, nil
}

// tryJoin returns nil without an error while no holder is ready.
func tryJoin(dir string) (*Joined, error) {
	f, err := openLock(dir)
	if err != nil {
		return nil, err
	}
	// Joined first, looked second: a holder that ends needs this byte for itself.
	ok, err := setLock(f, unix.F_RDLCK, byteJoined)
	if err == nil && ok {
		ok, err = isLocked(f, byteReady)
	}
	if err != nil || !ok {
		return nil, errors.Join(lockError(dir, err), f.Close())
	}
	env, err := ReadEnv(dir)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Joined{Env: env, PID: holderPID(dir), f: f}, nil
}

func openLock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	return f, lockError(dir, err)
}

func lockError(dir string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("natsboot: lock %q: %w", dir, storageError(err))
}

func writeAt(f *os.File, b []byte) error {
	_, err := f.WriteAt(b, 0)
	return err
}

func holderPID(dir string) int {
	var info lockInfo
	b, err := os.ReadFile(filepath.Join(dir, lockFile))
	if err != nil || json.Unmarshal(b, &info) != nil {
		return 0
	}
	return info.PID
}

// setLock changes the lock on one byte, and returns false when another has it.
func setLock(f *os.File, typ int16, at int64) (bool, error) {
	lk := unix.Flock_t{Type: typ, Start: at, Len: 1}
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lk)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return false, nil
	}
	return err == nil, err
}

// isLocked reports whether another open file holds a lock on one byte.
func isLocked(f *os.File, at int64) (bool, error) {
	lk := unix.Flock_t{Type: unix.F_WRLCK, Start: at, Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lk); err != nil {
		return false, err
	}
	return lk.Type != unix.F_UNLCK, nil
}
