package statedir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// Uses marks things (by id) as in use by this process. Marks are shared locks on files, so other
// processes see them and a killed process leaves none. Safe for concurrent use.
type Uses struct {
	dir  string
	mu   sync.Mutex
	held map[string]*use
}

type use struct {
	n    int
	file *os.File
}

// OpenUses keeps the marks in dir, which every process that shares the things must use.
func OpenUses(dir string) (*Uses, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("statedir: open uses: %w", err)
	}
	return &Uses{dir: dir, held: map[string]*use{}}, nil
}

// Retain marks all ids, or none and an error. The function it returns takes the marks back, once.
// An id that is being removed at this moment fails.
func (u *Uses) Retain(ids []string) (release func(), err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i, id := range ids {
		if err := u.retain(id); err != nil {
			u.release(ids[:i])
			return nil, fmt.Errorf("statedir: retain %q: %w", id, err)
		}
	}
	var once sync.Once
	return func() {
		once.Do(func() {
			u.mu.Lock()
			defer u.mu.Unlock()
			u.release(ids)
		})
	}, nil
}

func (u *Uses) retain(id string) error {
	if h := u.held[id]; h != nil {
		h.n++
		return nil
	}
	f, err := tryLock(u.path(id), unix.LOCK_SH)
	if err != nil {
		return err
	}
	u.held[id] = &use{n: 1, file: f}
	return nil
}

func (u *Uses) release(ids []string) {
	for _, id := range ids {
		h := u.held[id]
		if h.n--; h.n == 0 {
			delete(u.held, id)
			_ = h.file.Close()
		}
	}
}

// RemoveUnused calls remove unless id is in use, by this process or another, and keeps new users
// out while it runs. It reports whether remove was called and succeeded.
func (u *Uses) RemoveUnused(id string, remove func() error) (bool, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.held[id] != nil {
		return false, nil
	}
	f, err := tryLock(u.path(id), unix.LOCK_EX)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("statedir: remove %q: %w", id, err)
	}
	defer func() { _ = f.Close() }()
	if err := remove(); err != nil {
		return false, err
	}
	if err := os.Remove(u.path(id)); err != nil {
		return false, fmt.Errorf("statedir: remove mark of %q: %w", id, err)
	}
	return true, nil
}

func (u *Uses) path(id string) string { return filepath.Join(u.dir, id) }
