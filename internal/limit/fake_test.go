package limit

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// fakeTree is a hierarchy of version 2 in a directory of files, with the rules of the kernel
// that matter here (Documentation/admin-guide/cgroup-v2.rst): a group has the controllers that
// the one above gives, a group below the top that gives some has no processes, one that
// has processes or groups below can't be removed.
type fakeTree struct {
	top string // where the rule of no processes does not hold, as in the real topmost group; "" for a container's

	mu sync.Mutex
}

// newFake makes a hierarchy whose own directory has controllers and processes.
func newFake(t *testing.T, controllers string, processes ...int) (*fakeTree, string) {
	t.Helper()
	own := filepath.Join(t.TempDir(), "unit.service")
	f := &fakeTree{}
	if err := os.Mkdir(own, 0o700); err != nil {
		t.Fatal(err)
	}
	f.fill(own, controllers)
	for _, pid := range processes {
		f.put(own, pid)
	}
	return f, own
}

func (f *fakeTree) fill(dir, controllers string) {
	files := map[string]string{"cgroup.controllers": controllers, "cgroup.subtree_control": "", "cgroup.procs": "", "cpu.stat": "usage_usec 1\n"}
	for _, c := range strings.Fields(controllers) {
		switch c {
		case "memory":
			files["memory.max"], files["memory.swap.max"], files["memory.oom.group"] = "max", "max", "0"
			files["memory.events"] = "low 0\nhigh 0\nmax 7\noom 1\noom_kill 0\noom_group_kill 0\n"
		case "cpu":
			files["cpu.max"], files["cpu.stat"] = "max 100000", "usage_usec 1\nnr_periods 3\nnr_throttled 0\n"
		case "pids":
			files["pids.max"], files["pids.events"] = "max", "max 0\n"
		}
	}
	for name, content := range files {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600)
		}
	}
	os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte(controllers), 0o600)
}

func (f *fakeTree) read(dir, name string) []string {
	content, _ := os.ReadFile(filepath.Join(dir, name))
	return strings.Fields(string(content))
}

func (f *fakeTree) put(dir string, pid int) {
	pids := append(f.read(dir, "cgroup.procs"), strconv.Itoa(pid))
	os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strings.Join(pids, "\n")), 0o600)
}

func (f *fakeTree) Mkdir(dir string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	f.fill(dir, strings.Join(f.read(filepath.Dir(dir), "cgroup.subtree_control"), " "))
	return nil
}

func (f *fakeTree) Remove(dir string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.IsDir() }) || len(f.read(dir, "cgroup.procs")) > 0 {
		return &fs.PathError{Op: "rmdir", Path: dir, Err: unix.EBUSY}
	}
	return os.RemoveAll(dir)
}

func (f *fakeTree) ReadFile(name string) ([]byte, error) { return os.ReadFile(name) }

func (f *fakeTree) WriteFile(name, value string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, err := filepath.Dir(name), error(nil)
	switch filepath.Base(name) {
	case "cgroup.subtree_control":
		err = f.give(dir, strings.TrimPrefix(value, "+"))
	case "cgroup.procs":
		err = f.move(dir, value)
	default:
		if _, err = os.Stat(name); err == nil {
			err = os.WriteFile(name, []byte(value), 0o600)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		err = &fs.PathError{Op: "write", Path: name, Err: err}
	}
	return err
}

func (f *fakeTree) give(dir, controller string) error {
	switch {
	case !slices.Contains(f.read(dir, "cgroup.controllers"), controller):
		return unix.ENOENT
	case dir != f.top && len(f.read(dir, "cgroup.procs")) > 0:
		return unix.EBUSY
	}
	given := strings.Join(append(f.read(dir, "cgroup.subtree_control"), controller), " ")
	os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(given), 0o600)
	below, _ := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs"))
	for _, procs := range below {
		f.fill(filepath.Dir(procs), given)
	}
	return nil
}

func (f *fakeTree) move(dir, pid string) error {
	if dir != f.top && len(f.read(dir, "cgroup.subtree_control")) > 0 {
		return unix.EBUSY
	}
	all := filepath.Dir(dir)
	for range 3 { // wherever it is: own directory, home or leaf
		filepath.WalkDir(all, func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.Name() == "cgroup.procs" {
				pids := slices.DeleteFunc(f.read(filepath.Dir(name), "cgroup.procs"), func(p string) bool { return p == pid })
				os.WriteFile(name, []byte(strings.Join(pids, "\n")), 0o600)
			}
			return nil
		})
		all = filepath.Dir(all)
	}
	number, _ := strconv.Atoi(pid)
	f.put(dir, number)
	return nil
}
