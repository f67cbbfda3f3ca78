package limit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

const (
	cpuPeriod = 100000 // microseconds, the kernel's default
	cpuLeast  = 1000   // the kernel takes no less
)

// split is the hierarchies of version 1, one of each controller.
type split struct {
	tree  tree
	homes map[string]home
	why   map[string]string
}

func openSplit() hierarchy {
	s := &split{tree: kernel{}, homes: map[string]home{}, why: map[string]string{}}
	for _, controller := range controllers() {
		own, err := ownGroup(controller)
		if err == nil {
			sweep(s.tree, own)
			var h home
			if h, err = settle(s.tree, own); err == nil {
				s.homes[controller] = h
			}
		}
		if err == nil {
			err = s.try(controller)
		}
		if err != nil {
			s.why[controller] = err.Error()
		}
	}
	return s
}

func (s *split) has(controller string) (why string, ok bool) {
	why, missing := s.why[controller]
	return why, !missing
}

// try makes a group, sets limits and puts a thread of this process into it for a moment.
func (s *split) try(controller string) error {
	h := s.homes[controller]
	delete(s.homes, controller)
	one := &split{tree: s.tree, homes: map[string]home{controller: h}}
	made, err := one.group("try")
	if err == nil {
		err = made.Set(isolate.Limits{Memory: 64 << 20, CPUs: 1, PIDs: 64})
		if err == nil {
			err = enterOnce(made.Doors(), filepath.Join(filepath.Dir(h.dir), "tasks"))
		}
		err = errors.Join(err, made.Close())
	}
	if err != nil {
		return errors.Join(err, one.close())
	}
	s.homes[controller] = h
	return nil
}

// enterOnce goes through doors with one thread, and back to where it was.
func enterOnce(doors []*os.File, back string) error {
	runtime.LockOSThread()
	for _, door := range doors {
		if _, err := door.WriteString("0"); err != nil {
			runtime.UnlockOSThread()
			return fmt.Errorf("limit: enter a group: %w", err)
		}
	}
	// A thread that can't come back stays locked, and ends with its goroutine.
	if err := os.WriteFile(back, []byte("0"), 0); err != nil {
		return fmt.Errorf("limit: leave a group: %w", err)
	}
	runtime.UnlockOSThread()
	return nil
}

func (s *split) close() error {
	var errs []error
	for _, h := range s.homes {
		errs = append(errs, remove(s.tree, h.dir), h.lock.Close())
	}
	return errors.Join(errs...)
}

// ownGroup is the directory of this process's group of a controller of version 1.
func ownGroup(controller string) (string, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	return findGroup(controller, string(own), string(mounts))
}

// findGroup reads /proc/self/cgroup and /proc/self/mountinfo.
func findGroup(controller, own, mounts string) (string, error) {
	group := groupOf(own, func(named string) bool { return slices.Contains(strings.Split(named, ","), controller) })
	if group == "" {
		return "", errNoController(controller)
	}
	dir := mountedAt(mounts, group, func(kind []string) bool {
		return kind[0] == "cgroup" && slices.Contains(strings.Split(kind[2], ","), controller)
	})
	if dir == "" {
		return "", fmt.Errorf("control groups of version 1 for %s are not mounted", controller)
	}
	return dir, nil
}

// groupOf finds the group of the hierarchy whose controllers are wanted, "" if there is none.
func groupOf(own string, wanted func(controllers string) bool) string {
	for line := range strings.SplitSeq(own, "\n") {
		fields := strings.SplitN(line, ":", 3)
		if len(fields) == 3 && wanted(fields[1]) {
			return fields[2]
		}
	}
	return ""
}

// mountedAt is where a group is seen, "" if nowhere. In a container the mount may show only
// a part of the hierarchy, and the group be named from the host's root. wanted sees type, source and options.
func mountedAt(mounts, group string, wanted func(kind []string) bool) string {
	for line := range strings.SplitSeq(mounts, "\n") {
		before, after, ok := strings.Cut(line, " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(kind) < 3 || !wanted(kind) {
			continue
		}
		below, inside := strings.CutPrefix(group, strings.TrimSuffix(fields[3], "/"))
		if !inside {
			below = ""
		}
		return filepath.Join(fields[4], below)
	}
	return ""
}

// group is one sandbox's directory of each controller. It implements isolate.Group.
type group struct {
	tree  tree
	dirs  map[string]string
	doors []*os.File
}

func (s *split) group(name string) (isolate.Group, error) {
	made := &group{tree: s.tree, dirs: map[string]string{}}
	for controller, h := range s.homes {
		dir := filepath.Join(h.dir, name)
		err := s.tree.Mkdir(dir)
		if err == nil {
			made.dirs[controller] = dir
			var door *os.File
			if door, err = os.OpenFile(filepath.Join(dir, "tasks"), os.O_WRONLY, 0); err == nil {
				made.doors = append(made.doors, door)
			}
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("limit: make a group: %w", err), made.Close())
		}
	}
	return made, nil
}

func (g *group) Doors() []*os.File { return g.doors }

// Whole is false: a thread enters alone.
func (g *group) Whole() bool { return false }

func (g *group) Set(l isolate.Limits) error {
	quota, pids := "-1", "max"
	if l.CPUs > 0 {
		quota = strconv.Itoa(max(int(l.CPUs*cpuPeriod), cpuLeast))
	}
	if l.PIDs > 0 {
		pids = strconv.Itoa(l.PIDs + 1) // the init's own thread is in it
	}
	return errors.Join(g.setMemory(l.Memory), g.write("cpu", "cpu.cfs_quota_us", quota), g.write("pids", "pids.max", pids))
}

// setMemory keeps the limit with swap, where the kernel counts swap, at or above the one
// without at every moment.
func (g *group) setMemory(bytes int64) error {
	const plain, swap = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
	order := []string{plain, swap}
	if _, err := g.tree.ReadFile(filepath.Join(g.dirs["memory"], swap)); err != nil {
		order = order[:1]
	} else if g.write("memory", swap, "-1") == nil && bytes <= 0 {
		bytes = -1
	}
	if bytes <= 0 {
		bytes = -1
	}
	for _, name := range order {
		if err := g.write("memory", name, strconv.FormatInt(bytes, 10)); err != nil {
			return err
		}
	}
	return nil
}

func (g *group) write(controller, name, value string) error {
	dir, ok := g.dirs[controller]
	if !ok {
		return nil
	}
	if err := g.tree.WriteFile(filepath.Join(dir, name), value); err != nil {
		return fmt.Errorf("limit: set %s: %w", name, err)
	}
	return nil
}

func (g *group) Exhausted() (isolate.Exhausted, error) {
	var e isolate.Exhausted
	return e, errors.Join(
		g.count("memory", "memory.oom_control", "oom_kill", &e.Memory),
		g.count("pids", "pids.events", "max", &e.PIDs),
		g.count("cpu", "cpu.stat", "nr_throttled", &e.Throttled),
	)
}

func (g *group) count(controller, file, name string, to *uint64) error {
	dir, ok := g.dirs[controller]
	if !ok {
		return nil
	}
	return count(g.tree, filepath.Join(dir, file), name, to)
}

// count reads a number from a file of counters.
func count(t tree, file, name string, to *uint64) error {
	content, err := t.ReadFile(file)
	*to = field(content, name)
	return err
}

// field reads one of the lines "name number".
func field(content []byte, name string) uint64 {
	for lines := bufio.NewScanner(bytes.NewReader(content)); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			n, _ := strconv.ParseUint(text, 10, 64)
			return n
		}
	}
	return 0
}

func (g *group) Close() error {
	var errs []error
	for _, door := range g.doors {
		door.Close()
	}
	for _, dir := range g.dirs {
		errs = append(errs, removeIdle(g.tree, dir))
	}
	return errors.Join(errs...)
}
