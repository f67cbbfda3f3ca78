package inside

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// pauseLimit bounds the wait until everything has stopped. What has not by then sleeps in the kernel, where no signal
// reaches it: it runs none of its own code before it has stopped.
const pauseLimit = time.Second

// pause stops everything that was detached; no command runs, and none is started before resume.
func (s *server) pause() error {
	if s.paused != nil {
		return fmt.Errorf("what runs is stopped already")
	}
	s.files.wait()
	s.paused = map[int]bool{}
	for pid := range s.others() {
		if stopped(pid) {
			s.paused[pid] = true // by somebody else, who continues it
		}
	}
	wait := time.Millisecond
	for end := time.Now().Add(pauseLimit); ; wait *= 2 {
		if !s.spec.Bare {
			unix.Kill(-1, unix.SIGSTOP)
		}
		all := true
		for pid := range s.others() {
			if stopped(pid) {
				continue
			}
			all = false
			if s.spec.Bare {
				unix.Kill(pid, unix.SIGSTOP)
			}
		}
		if all || time.Now().After(end) {
			return nil
		}
		time.Sleep(wait)
	}
}

// resume ends pause.
func (s *server) resume() error {
	if s.paused == nil {
		return fmt.Errorf("what runs is not stopped")
	}
	for pid := range s.others() {
		if !s.paused[pid] {
			unix.Kill(pid, unix.SIGCONT)
		}
	}
	s.paused = nil
	return nil
}

// others are all processes of the sandbox but this one.
func (s *server) others() map[int]bool {
	found := map[int]bool{}
	pids, _ := outsiders(nil)
	for _, pid := range pids {
		found[pid] = true
	}
	return found
}

// stopped tells whether no thread of a process runs.
func stopped(pid int) bool {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return true // it has ended
	}
	for _, t := range tasks {
		if _, err := strconv.Atoi(t.Name()); err != nil {
			continue
		}
		stat, err := os.ReadFile(dir + "/" + t.Name() + "/stat")
		if err != nil {
			continue
		}
		state := strings.TrimSpace(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if state != "" && !strings.ContainsRune("TtZXx", rune(state[0])) {
			return false
		}
	}
	return true
}
