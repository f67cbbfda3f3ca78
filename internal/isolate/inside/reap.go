package inside

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// reaper starts what commands are made of, and reaches every process that came of them.
type reaper interface {
	// fork calls start with signals as a command should find them.
	fork(start func() (int, error)) (int, error)
	signal(syscall.Signal)
	// killAll returns when no child is left.
	killAll()
}

// namespaceReaper relies on the process namespace: everything in it but process 1 belongs
// to commands, and one kill(-1) reaches it all, atomically with respect to forks.
type namespaceReaper struct{}

func (namespaceReaper) fork(start func() (int, error)) (int, error) { return withLibrarySignals(start) }

func (namespaceReaper) signal(sig syscall.Signal) { unix.Kill(-1, sig) }

func (r namespaceReaper) killAll() {
	for reapEnded() {
		r.signal(unix.SIGKILL)
		syscall.Wait4(-1, nil, 0, nil)
	}
}

// reapEnded reaps children that have ended and says whether any child is left. Whatever
// commands started descends from a child of this process, so none means nothing is left.
func reapEnded() bool {
	for {
		pid, err := syscall.Wait4(-1, nil, unix.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return false
		case pid == 0:
			return true
		}
	}
}

// treeReaper has no namespace: it walks /proc for descendants, which is best effort
// against something that forks faster than it is walked. Orphans stay descendants
// because this process is their subreaper.
type treeReaper struct{}

func (treeReaper) fork(start func() (int, error)) (int, error) { return start() }

func (treeReaper) signal(sig syscall.Signal) {
	for _, pid := range Descendants(os.Getpid()) {
		unix.Kill(pid, sig)
	}
}

func (r treeReaper) killAll() {
	for reapEnded() {
		r.signal(unix.SIGKILL)
		time.Sleep(time.Millisecond)
	}
}

// Descendants lists the processes below pid.
func Descendants(pid int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if parent, ok := ParentOf(child); ok {
			children[parent] = append(children[parent], child)
		}
	}
	var out []int
	for queue := children[pid]; len(queue) > 0; {
		next := queue[0]
		out = append(out, next)
		queue = append(queue[1:], children[next]...)
	}
	return out
}

// ParentOf reads the fourth field of /proc/PID/stat; the second is in parentheses and may hold anything.
func ParentOf(pid int) (int, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	_, rest, ok := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 2 {
		return 0, false
	}
	parent, err := strconv.Atoi(fields[1])
	return parent, err == nil
}
