package inside

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// reaper starts what commands are made of, and reaches every process that came of them,
// but for the trees of the detached processes that are given as spared.
type reaper interface {
	// fork calls start with signals as a command should find them.
	fork(start func() (int, error)) (int, error)
	signal(sig syscall.Signal, spared map[int]bool)
	// killAll returns when nothing is left but what is spared. ended is told of every child that was reaped.
	killAll(spared func() map[int]bool, ended func(pid int))
	// count is how many processes and threads it reaches.
	count() int
}

// namespaceReaper relies on the process namespace: everything in it but process 1 belongs
// to commands, and one kill(-1) reaches it all, atomically with respect to forks.
type namespaceReaper struct{}

func (namespaceReaper) fork(start func() (int, error)) (int, error) { return withLibrarySignals(start) }

// signal stops everything for a moment before it kills around spared trees: what is stopped
// does not fork while /proc is walked.
func (namespaceReaper) signal(sig syscall.Signal, spared map[int]bool) {
	if len(spared) == 0 {
		unix.Kill(-1, sig)
		return
	}
	if sig == unix.SIGKILL {
		unix.Kill(-1, unix.SIGSTOP)
		defer unix.Kill(-1, unix.SIGCONT)
	}
	others, _ := outsiders(spared)
	for _, pid := range others {
		unix.Kill(pid, sig)
	}
}

func (namespaceReaper) count() int { return tasksOf(func(pid int) bool { return pid != os.Getpid() }) }

func (r namespaceReaper) killAll(spared func() map[int]bool, ended func(pid int)) {
	for reapEnded(ended) {
		keep := spared()
		if len(keep) == 0 {
			r.signal(unix.SIGKILL, nil)
			if pid, err := syscall.Wait4(-1, nil, 0, nil); err == nil {
				ended(pid)
			}
			continue
		}
		if others, sure := outsiders(keep); sure && len(others) == 0 {
			return
		}
		r.signal(unix.SIGKILL, keep)
		time.Sleep(time.Millisecond)
	}
}

// reapEnded reaps children that have ended and says whether any child is left. Whatever
// commands started descends from a child of this process, so none means nothing is left.
func reapEnded(ended func(pid int)) bool {
	for {
		pid, err := syscall.Wait4(-1, nil, unix.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return false
		case pid == 0:
			return true
		default:
			ended(pid)
		}
	}
}

// treeReaper has no namespace: it walks /proc for descendants, which is best effort
// against something that forks faster than it is walked. Orphans stay descendants
// because this process is their subreaper.
type treeReaper struct{}

func (treeReaper) fork(start func() (int, error)) (int, error) { return start() }

func (treeReaper) signal(sig syscall.Signal, spared map[int]bool) {
	others, _ := outsiders(spared)
	for _, pid := range others {
		unix.Kill(pid, sig)
	}
}

func (treeReaper) count() int {
	others, _ := outsiders(nil)
	return tasksOf(func(pid int) bool { return slices.Contains(others, pid) })
}

func (r treeReaper) killAll(spared func() map[int]bool, ended func(pid int)) {
	for reapEnded(ended) {
		keep := spared()
		if others, _ := outsiders(keep); len(keep) > 0 && len(others) == 0 {
			return
		}
		r.signal(unix.SIGKILL, keep)
		time.Sleep(time.Millisecond)
	}
}

// outerReaper is a treeReaper of commands that each have a program around them, whose end would kill the command: what
// is not to kill reaches only what is below it.
type outerReaper struct{ treeReaper }

func (r outerReaper) signal(sig syscall.Signal, spared map[int]bool) {
	if sig == unix.SIGKILL {
		r.treeReaper.signal(sig, spared)
		return
	}
	others, _ := outsiders(spared)
	for _, pid := range others {
		if parent, ok := ParentOf(pid); ok && parent != os.Getpid() {
			unix.Kill(pid, sig)
		}
	}
}

// tasksOf counts the threads of the processes that can be seen and are wanted.
func tasksOf(wanted func(pid int) bool) int {
	tasks := 0
	for pid := range parentsOfAll() {
		if !wanted(pid) {
			continue
		}
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err == nil {
			tasks += len(threads)
		}
	}
	return tasks
}

// outsiders lists the processes below this one that are in no spared tree, parents first:
// killed in this order, none gets to act on the end of a child. A spared process adopts
// the orphans of its tree, so a chain of parents tells which is which; sure is false when
// one was broken, by a process that ended while the list was read.
func outsiders(spared map[int]bool) (pids []int, sure bool) {
	parents, self := parentsOfAll(), os.Getpid()
	depths := map[int]int{}
	sure = true
	for pid := range parents {
		at, ok := pid, true
		for ok && at != self && !spared[at] && at > 1 {
			at, ok = parents[at]
			depths[pid]++
		}
		switch {
		case !ok:
			sure = false
		case at == self && pid != self:
			pids = append(pids, pid)
		}
	}
	slices.SortFunc(pids, func(a, b int) int { return depths[a] - depths[b] })
	return pids, sure
}

// parentsOfAll maps each process that can be seen to its parent.
func parentsOfAll() map[int]int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	parents := map[int]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if parent, ok := ParentOf(pid); ok {
			parents[pid] = parent
		}
	}
	return parents
}

// Descendants lists the processes below pid.
func Descendants(pid int) []int {
	children := map[int][]int{}
	for child, parent := range parentsOfAll() {
		children[parent] = append(children[parent], child)
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
