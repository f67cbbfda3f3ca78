package limit

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// prefix begins the name of every directory made here.
	prefix = "warmfleet-"
	// leaf is the group below such a directory that this process itself is in, where it must be in none with others below.
	leaf = "worker"
	// busyWait bounds how long a group stays busy after its last process is dead: it is
	// counted out a moment later.
	busyWait = time.Second
)

// tree is a mounted hierarchy of control groups: directories that have files of their own.
type tree interface {
	Mkdir(dir string) error
	Remove(dir string) error
	ReadFile(name string) ([]byte, error)
	WriteFile(name, value string) error
}

// kernel is the real one.
type kernel struct{}

func (kernel) Mkdir(dir string) error               { return os.Mkdir(dir, 0o755) }
func (kernel) Remove(dir string) error              { return os.Remove(dir) }
func (kernel) ReadFile(name string) ([]byte, error) { return os.ReadFile(name) }
func (kernel) WriteFile(name, value string) error   { return os.WriteFile(name, []byte(value), 0) }

// home is the locked directory of this process below its own group.
type home struct {
	dir  string
	lock *os.File
}

// settle makes and locks a directory; a sweeper may be faster between the two.
func settle(t tree, own string) (home, error) {
	for range 10 {
		dir := filepath.Join(own, prefix+strings.ToLower(rand.Text()[:10]))
		if err := t.Mkdir(dir); err != nil {
			return home{}, err
		}
		lock, err := os.Open(dir)
		if err == nil {
			if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
				if _, err = os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil {
					return home{dir, lock}, nil
				}
			}
			lock.Close()
		}
		t.Remove(dir)
	}
	return home{}, fmt.Errorf("limit: make a group in %s: others remove it", own)
}

// sweep removes the groups of dead processes: those whose lock is free.
func sweep(t tree, own string) {
	left, err := filepath.Glob(filepath.Join(own, prefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range left {
		lock, err := os.Open(dir)
		if err != nil {
			continue
		}
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			remove(t, dir) // what still runs in it keeps it for the next sweep
		}
		lock.Close()
	}
}

// remove removes a group and those below it.
func remove(t tree, dir string) error {
	below, err := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs"))
	if err != nil {
		return err
	}
	for _, procs := range below {
		t.Remove(filepath.Dir(procs))
	}
	return t.Remove(dir)
}

// removeIdle removes a group whose processes are dead, as soon as they are counted out.
func removeIdle(t tree, dir string) error {
	for end := time.Now().Add(busyWait); ; time.Sleep(time.Millisecond) {
		err := t.Remove(dir)
		if err == nil || errors.Is(err, os.ErrNotExist) || time.Now().After(end) {
			return err
		}
	}
}
