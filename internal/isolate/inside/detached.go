package inside

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

const (
	selfExe = "/proc/self/exe"
	// ModeDetached is the second argument of a process that supervises a detached program.
	ModeDetached = "detached"
	// MaxDetached is how many detached processes, with what they started, run in one sandbox at a time.
	MaxDetached = 16
	statusFD    = 3
)

// program is what is executed, with all of its descriptors.
type program struct {
	path  string
	argv  []string
	env   []string
	files []uintptr
}

// kept are the supervisors of detached processes, each with the directory of its secrets ("" where there is none).
type kept struct {
	mu    sync.Mutex
	trees map[int]string
}

func (k *kept) spared() map[int]bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	pids := make(map[int]bool, len(k.trees))
	for pid := range maps.Keys(k.trees) {
		pids[pid] = true
	}
	return pids
}

func (k *kept) add(pid int, secrets string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.trees[pid] = secrets
}

// ended must be told of every process that was reaped, before its number can be another's.
func (k *kept) ended(pid int) {
	k.mu.Lock()
	secrets := k.trees[pid]
	delete(k.trees, pid)
	k.mu.Unlock()
	if secrets != "" {
		os.RemoveAll(secrets)
	}
}

// detached is how many detached processes run.
func (c *commands) detached() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queued) == 0 { // else whoever waits for a command reaps
		reapEnded(c.kept.ended)
	}
	return c.kept.count()
}

// count is how many run.
func (k *kept) count() int {
	for pid := range k.spared() {
		if got, err := syscall.Wait4(pid, nil, unix.WNOHANG, nil); got == pid || err == syscall.ECHILD {
			k.ended(pid)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.trees)
}

// detach starts a command under a supervisor and leaves it to itself.
func (c *commands) detach(j command) wire.Exited {
	pid, err := c.supervise(j)
	if err != nil {
		c.reap.killAll(c.kept.spared, c.kept.ended)
		if dir := j.exec.SecretsDir; dir != "" {
			os.RemoveAll(dir)
		}
		return wire.Exited{Start: err.Error()}
	}
	return wire.Exited{PID: uint64(pid)}
}

// ownSelf makes sure that self is there.
func (c *commands) ownSelf() (err error) {
	if c.self == "" {
		c.self, err = sealedCopy()
	}
	return err
}

func (c *commands) supervise(j command) (int, error) {
	if c.kept.count() >= MaxDetached {
		return 0, fmt.Errorf("%d detached processes run already: end one first", MaxDetached)
	}
	if err := c.ownSelf(); err != nil {
		return 0, err
	}
	log, err := os.OpenFile(j.exec.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return 0, fmt.Errorf("open the file for its output: %w", err)
	}
	defer log.Close()
	status, child, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer status.Close()
	if err := c.enclose(&j); err != nil {
		child.Close()
		return 0, err
	}
	defer j.place.close()
	pid, err := c.start(j, c.into.program(again{c.self, ModeDetached}, j.exec, []uintptr{0, log.Fd(), log.Fd()}, child))
	child.Close()
	j.place.started()
	if err != nil {
		return 0, err
	}
	status.SetReadDeadline(time.Now().Add(launchLimit))
	said, err := io.ReadAll(io.LimitReader(status, 4096))
	if err == nil && string(said) != supervised {
		err = errors.New("its supervisor died")
		if len(said) > 0 {
			err = errors.New(string(said))
		}
	}
	if err == nil {
		err = j.place.awaitStart()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pid = 0
	if err == nil && c.abort {
		err = errAborted
	}
	if err != nil {
		return 0, err // what there is of it is killed as a command's
	}
	c.kept.add(pid, j.exec.SecretsDir)
	return pid, nil
}

// supervised is what a supervisor says when its program runs.
const supervised = "running"

// Supervise is the supervisor of a detached program, given as its path and its arguments behind what bounds both: it
// adopts the orphans of its tree, so that they are told from what other commands leave
// behind, and ends after the last of them. It says on descriptor 3 how the start went.
func Supervise(args []string) int {
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // its program is the init's
	unix.CloseOnExec(statusFD)
	status := os.NewFile(statusFD, "status")
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintf(status, "become subreaper: %v", err)
		return 1
	}
	args, err := bounded(args)
	if err != nil {
		fmt.Fprint(status, err)
		return 1
	}
	_, err = syscall.ForkExec(args[0], args[1:], &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		fmt.Fprint(status, startError(args[0], err))
		return 1
	}
	CloseInherited(statusFD) // of a fence, and in the hands of what was started
	io.WriteString(status, supervised)
	status.Close()
	for {
		if _, err := syscall.Wait4(-1, nil, 0, nil); err != nil && err != syscall.EINTR {
			return 0
		}
	}
}
