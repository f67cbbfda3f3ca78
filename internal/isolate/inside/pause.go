package inside

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// pauseLimit bounds the wait until everything has stopped. What has not by then sleeps in the kernel, where no signal
	// reaches it: it runs none of its own code before it has stopped.
	pauseLimit = time.Second
	// movingLimit bounds the wait for a command that starts or is cleared away.
	movingLimit = 5 * time.Second
)

// pause stops everything that runs; before resume no command is started or cleared away.
func (s *server) pause() error {
	if s.paused != nil {
		return fmt.Errorf("what runs is stopped already")
	}
	s.files.wait()
	for end := time.Now().Add(movingLimit); !s.commands.moving.TryLock(); {
		if time.Now().After(end) {
			return fmt.Errorf("a command is still starting or ending after %s", movingLimit)
		}
		time.Sleep(time.Millisecond)
	}
	s.paused = map[int]bool{}
	for pid := range s.others() {
		if stopped(pid) {
			s.paused[pid] = true // by somebody else, who continues it
		}
	}
	wait := time.Millisecond
	for end := time.Now().Add(pauseLimit); ; wait *= 2 {
		if !s.spec.Hosted {
			unix.Kill(-1, unix.SIGSTOP)
		}
		all := true
		for pid := range s.others() {
			if stopped(pid) {
				continue
			}
			all = false
			if s.spec.Hosted {
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
	s.commands.moving.Unlock()
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
