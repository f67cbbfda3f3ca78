package limit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

// unified is the hierarchy of version 2.
type unified struct {
	tree tree
	home home
	why  map[string]string
}

func openUnified() hierarchy {
	own, err := ownUnified()
	if err != nil {
		return lacksAll(err)
	}
	return newUnified(kernel{}, own, os.Getpid())
}

// ownUnified is the directory of this process's group of version 2.
func ownUnified() (string, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	return findUnified(string(own), string(mounts))
}

// findUnified reads /proc/self/cgroup and /proc/self/mountinfo.
func findUnified(own, mounts string) (string, error) {
	group := groupOf(own, func(named string) bool { return named == "" })
	if group == "" {
		return "", errors.New("the kernel has no control groups of version 2")
	}
	dir := mountedAt(mounts, group, func(kind []string) bool { return kind[0] == "cgroup2" })
	if dir == "" {
		return "", errors.New("control groups of version 2 are not mounted")
	}
	return dir, nil
}

// newUnified makes the home of a process's groups below its own, with all controllers that
// limits need and the kernel has there.
//
// A group other than the topmost either holds processes or gives controllers to those below
// it. So where this process is in its own group it moves down to a leaf; where others are in
// it too there can be no limits, for they are not ours to move.
func newUnified(t tree, own string, pid int) hierarchy {
	if filepath.Base(own) == leaf && strings.HasPrefix(filepath.Base(filepath.Dir(own)), prefix) {
		own = filepath.Dir(filepath.Dir(own)) // another worker of this process moved it
	}
	available, err := t.ReadFile(filepath.Join(own, "cgroup.controllers"))
	if err != nil {
		return lacksAll(err)
	}
	u := &unified{tree: t, why: map[string]string{}}
	var wanted []string
	for _, c := range controllers() {
		if slices.Contains(strings.Fields(string(available)), c) {
			wanted = append(wanted, c)
		} else {
			u.why[c] = "control groups of version 2 have no " + c + " in " + own
		}
	}
	if len(wanted) == 0 {
		return u
	}
	sweep(t, own)
	if u.home, err = settle(t, own); err != nil {
		return lacksAll(err)
	}
	for _, c := range wanted {
		if err := u.give(own, c, pid); err != nil {
			u.why[c] = err.Error()
		}
	}
	if len(u.why) == len(controllers()) {
		u.moveBack(own, pid)
		return lacksAll(errors.Join(errors.New(u.why[wanted[0]]), u.close()))
	}
	return u
}

func lacksAll(err error) *unified {
	u := &unified{why: map[string]string{}}
	for _, c := range controllers() {
		u.why[c] = err.Error()
	}
	return u
}

// give makes a controller one of the groups to come.
func (u *unified) give(own, controller string, pid int) error {
	err := u.enable(own, controller)
	if errors.Is(err, unix.EBUSY) {
		if err := u.moveDown(pid); err != nil {
			return err
		}
		err = u.enable(own, controller)
	}
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("limit: give controllers to groups below %s: %w", own, errOthers)
	}
	if err == nil {
		err = u.enable(u.home.dir, controller)
	}
	if err != nil {
		return fmt.Errorf("limit: give %s to groups below %s: %w", controller, own, err)
	}
	return nil
}

func (u *unified) enable(dir, controller string) error {
	name := filepath.Join(dir, "cgroup.subtree_control")
	given, err := u.tree.ReadFile(name)
	if err != nil || slices.Contains(strings.Fields(string(given)), controller) {
		return err
	}
	return u.tree.WriteFile(name, "+"+controller)
}

// moveDown puts this process into a leaf below its home, which must not give controllers yet.
func (u *unified) moveDown(pid int) error {
	dir := filepath.Join(u.home.dir, leaf)
	if err := u.tree.Mkdir(dir); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("limit: make a group for this process: %w", err)
	}
	if err := u.tree.WriteFile(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
		return fmt.Errorf("limit: move this process into a group of its own: %w", err)
	}
	return nil
}

// moveBack undoes moveDown where nothing came of it.
func (u *unified) moveBack(own string, pid int) {
	if _, err := u.tree.ReadFile(filepath.Join(u.home.dir, leaf, "cgroup.procs")); err == nil {
		u.tree.WriteFile(filepath.Join(own, "cgroup.procs"), strconv.Itoa(pid))
	}
}

func (u *unified) has(controller string) (why string, ok bool) {
	why, missing := u.why[controller]
	return why, !missing
}

// close removes the groups. The leaf stays while this process is in it, for the next one to sweep.
func (u *unified) close() error {
	if u.home.dir == "" {
		return nil
	}
	err := remove(u.tree, u.home.dir)
	if errors.Is(err, unix.EBUSY) {
		if _, moved := u.tree.ReadFile(filepath.Join(u.home.dir, leaf, "cgroup.procs")); moved == nil {
			err = nil
		}
	}
	return errors.Join(err, u.home.lock.Close())
}

func (u *unified) group(name string) (isolate.Group, error) {
	g := &group2{tree: u.tree, dir: filepath.Join(u.home.dir, name), bounds: map[string]bool{}}
	for _, c := range controllers() {
		_, g.bounds[c] = u.has(c)
	}
	if err := u.tree.Mkdir(g.dir); err != nil {
		return nil, fmt.Errorf("limit: make a group: %w", err)
	}
	door, err := os.OpenFile(filepath.Join(g.dir, "cgroup.procs"), os.O_WRONLY, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("limit: make a group: %w", err), g.Close())
	}
	g.door = door
	return g, nil
}

// group2 is one sandbox's group of version 2.
type group2 struct {
	tree   tree
	dir    string
	bounds map[string]bool // controller -> whether the group has it
	door   *os.File
}

// Doors is one file. Who may move a process is decided by who opened it, from Linux 5.16 on.
func (g *group2) Doors() []*os.File { return []*os.File{g.door} }

// Whole is true: of version 2, threads of a process can't be in different groups of memory.
func (g *group2) Whole() bool { return true }

func (g *group2) Set(l isolate.Limits) error {
	memory, swap, quota, pids := "max", "max", "max", "max"
	if l.Memory > 0 {
		memory, swap = strconv.FormatInt(l.Memory, 10), "0"
	}
	if l.CPUs > 0 {
		quota = strconv.Itoa(max(int(l.CPUs*cpuPeriod), cpuLeast))
	}
	if l.PIDs > 0 {
		pids = strconv.Itoa(l.PIDs)
	}
	if g.bounds["memory"] {
		if _, err := g.tree.ReadFile(filepath.Join(g.dir, "memory.swap.max")); errors.Is(err, os.ErrNotExist) {
			swap = "" // the kernel does not count swap, or there is none
		}
	}
	return errors.Join(
		g.write("memory", "memory.oom.group", "1"), // one process killed for memory ends the step whole
		g.write("memory", "memory.swap.max", swap),
		g.write("memory", "memory.max", memory),
		g.write("cpu", "cpu.max", quota+" "+strconv.Itoa(cpuPeriod)),
		g.write("pids", "pids.max", pids),
	)
}

func (g *group2) write(controller, name, value string) error {
	if !g.bounds[controller] || value == "" {
		return nil
	}
	if err := g.tree.WriteFile(filepath.Join(g.dir, name), value); err != nil {
		return fmt.Errorf("limit: set %s: %w", name, err)
	}
	return nil
}

func (g *group2) Exhausted() (isolate.Exhausted, error) {
	var e isolate.Exhausted
	var errs []error
	for _, c := range []struct {
		controller, file, name string
		to                     *uint64
	}{
		{"memory", "memory.events", "oom_kill", &e.Memory},
		{"pids", "pids.events", "max", &e.PIDs},
		{"cpu", "cpu.stat", "nr_throttled", &e.Throttled},
	} {
		if g.bounds[c.controller] {
			errs = append(errs, count(g.tree, filepath.Join(g.dir, c.file), c.name, c.to))
		}
	}
	return e, errors.Join(errs...)
}

func (g *group2) Close() error {
	if g.door != nil {
		g.door.Close()
	}
	return removeIdle(g.tree, g.dir)
}
