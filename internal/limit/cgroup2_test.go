package limit

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/warmfleet/warmfleet/internal/isolate"
)

func TestFindUnified(t *testing.T) {
	const hybrid = "31 20 0:2 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n32 20 0:3 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
	const only = "30 20 0:3 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
	for _, c := range []struct{ name, own, mounts, want string }{
		{"Unit", "0::/system.slice/w.service\n", only, "/sys/fs/cgroup/system.slice/w.service"},
		{"Hybrid", "4:memory:/x\n0::/\n", hybrid, "/sys/fs/cgroup/unified"},
		{"Namespace", "0::/\n", only, "/sys/fs/cgroup"},
		{"OnlyVersionOne", "4:memory:/x\n", hybrid, ""},
		{"NotMounted", "0::/x\n", "31 20 0:2 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := findUnified(c.own, c.mounts)
			if got != c.want || (err != nil) != (c.want == "") {
				t.Errorf("findUnified = %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

// state is what files of a directory hold.
func state(t *testing.T, dir string, names ...string) map[string]string {
	t.Helper()
	got := map[string]string{}
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		got[name] = strings.Join(strings.Fields(string(content)), " ")
	}
	return got
}

// A process that is alone in its group moves down, so that groups beside it have controllers.
func TestUnified_MovesItselfDown(t *testing.T) {
	const pid = 4711
	f, own := newFake(t, "cpuset cpu io memory pids", pid)
	u := newUnified(f, own, pid).(*unified)
	if len(u.why) > 0 {
		t.Fatalf("lacks %v", u.why)
	}
	if got := state(t, filepath.Join(u.home.dir, leaf), "cgroup.procs")["cgroup.procs"]; got != strconv.Itoa(pid) {
		t.Errorf("in the leaf: %q, want the process", got)
	}
	want := map[string]string{"cgroup.procs": "", "cgroup.subtree_control": "memory cpu pids"}
	for _, dir := range []string{own, u.home.dir} {
		if diff := cmp.Diff(state(t, dir, "cgroup.procs", "cgroup.subtree_control"), want); diff != "" {
			t.Errorf("%s (-got +want):\n%s", dir, diff)
		}
	}
	t.Run("SecondWorker", func(t *testing.T) {
		second := newUnified(f, filepath.Join(u.home.dir, leaf), pid).(*unified)
		if len(second.why) > 0 || filepath.Dir(second.home.dir) != own {
			t.Errorf("home %s, lacks %v, want a home beside the first", second.home.dir, second.why)
		}
		if err := second.close(); err != nil {
			t.Error(err)
		}
	})
	if err := u.close(); err != nil {
		t.Error(err)
	}
	t.Run("Swept", func(t *testing.T) {
		if err := f.WriteFile(filepath.Join(u.home.dir, leaf, "cgroup.procs"), "1"); err != nil {
			t.Fatal(err)
		}
		sweep(f, own)
		if _, err := os.Stat(u.home.dir); err != nil {
			t.Errorf("swept while a process was in it: %v", err)
		}
		if err := os.WriteFile(filepath.Join(u.home.dir, leaf, "cgroup.procs"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		sweep(f, own)
		if _, err := os.Stat(u.home.dir); err == nil {
			t.Error("the home of a dead process was left")
		}
	})
}

// Processes of others are not moved, and nothing is left of the attempt.
func TestUnified_OthersInTheGroup(t *testing.T) {
	f, own := newFake(t, "cpu memory pids", 4711, 4712)
	h := newUnified(f, own, 4711)
	for _, c := range controllers() {
		if why, ok := h.has(c); ok || !strings.Contains(why, errOthers.Error()) {
			t.Errorf("%s: bounded %v, %q, want that others are in the way", c, ok, why)
		}
	}
	want := map[string]string{"cgroup.procs": "4712 4711", "cgroup.subtree_control": ""}
	if diff := cmp.Diff(state(t, own, "cgroup.procs", "cgroup.subtree_control"), want); diff != "" {
		t.Errorf("own group (-got +want):\n%s", diff)
	}
	if left, _ := filepath.Glob(filepath.Join(own, prefix+"*")); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

func TestUnified_LacksControllers(t *testing.T) {
	t.Run("All", func(t *testing.T) {
		f, own := newFake(t, "hugetlb", 1)
		h := newUnified(f, own, 1)
		if _, ok := h.has("memory"); ok {
			t.Error("memory is bounded without its controller")
		}
		if left, _ := filepath.Glob(filepath.Join(own, prefix+"*")); len(left) > 0 {
			t.Errorf("left %v", left)
		}
	})
	t.Run("Cpu", func(t *testing.T) {
		f, own := newFake(t, "memory pids", 1)
		u := newUnified(f, own, 1).(*unified)
		g, err := u.group("1")
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Set(isolate.Limits{Memory: 1 << 20, CPUs: 1, PIDs: 3}); err != nil {
			t.Errorf("limits without the controller of one: %v", err)
		}
		if _, err := g.Exhausted(); err != nil {
			t.Error(err)
		}
		if err := errors.Join(g.Close(), u.close()); err != nil {
			t.Error(err)
		}
	})
}

func TestGroup2_Set(t *testing.T) {
	f, own := newFake(t, "cpu memory pids", 1)
	f.top = own // here processes are no hindrance
	u := newUnified(f, own, 1).(*unified)
	made, err := u.group("1")
	if err != nil {
		t.Fatal(err)
	}
	g := made.(*group2)
	names := []string{"memory.max", "memory.swap.max", "memory.oom.group", "cpu.max", "pids.max"}
	for _, c := range []struct {
		name   string
		limits isolate.Limits
		want   []string
	}{
		{"All", isolate.Limits{Memory: 64 << 20, CPUs: 1.5, PIDs: 32}, []string{"67108864", "0", "1", "150000 100000", "32"}},
		{"Least", isolate.Limits{CPUs: 0.001}, []string{"max", "max", "1", "1000 100000", "max"}},
		{"None", isolate.Limits{}, []string{"max", "max", "1", "max 100000", "max"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := g.Set(c.limits); err != nil {
				t.Fatal(err)
			}
			want := map[string]string{}
			for i, name := range names {
				want[name] = c.want[i]
			}
			if diff := cmp.Diff(state(t, g.dir, names...), want); diff != "" {
				t.Errorf("-got +want:\n%s", diff)
			}
		})
	}
	t.Run("SwapIsNotCounted", func(t *testing.T) {
		if err := os.Remove(filepath.Join(g.dir, "memory.swap.max")); err != nil {
			t.Fatal(err)
		}
		if err := g.Set(isolate.Limits{Memory: 1 << 20}); err != nil {
			t.Error(err)
		}
	})
	for name, content := range map[string]string{"memory.events": "oom 9\noom_kill 2\noom_group_kill 1\n", "pids.events": "max 5\n", "cpu.stat": "nr_periods 8\nnr_throttled 3\nthrottled_usec 4\n"} {
		if err := os.WriteFile(filepath.Join(g.dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := g.Exhausted()
	if want := (isolate.Exhausted{Memory: 2, PIDs: 5, Throttled: 3}); got != want || err != nil {
		t.Errorf("Exhausted = %+v, %v, want %+v", got, err, want)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if err := u.close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(u.home.dir); err == nil {
		t.Error("the home was left")
	}
}

// On a real hierarchy of version 2, whatever its controllers: a command is in its group from
// its first instruction on, all that it starts is, and init is not.
func TestGroup2_RealCommandEnters(t *testing.T) {
	own, err := ownUnified()
	if err != nil {
		t.Skipf("no control groups of version 2: %v", err)
	}
	home, err := settle(kernel{}, own)
	if err != nil {
		t.Skipf("no control group of version 2 can be made here: %v", err)
	}
	u := &unified{tree: kernel{}, home: home, why: map[string]string{"memory": "", "cpu": "", "pids": ""}}
	t.Cleanup(func() {
		if err := u.close(); err != nil {
			t.Error(err)
		}
	})
	g, err := u.group("1")
	if err != nil {
		t.Fatal(err)
	}
	in := startInit(t, g)
	const look = "grep ^0:: /proc/self/cgroup; (setsid grep ^0:: /proc/self/cgroup)"
	out := sh(t, in, isolate.Command{}, look)
	lines := strings.Fields(out)
	if len(lines) != 2 || !strings.HasSuffix(lines[0], filepath.Base(home.dir)+"/1") || lines[0] != lines[1] {
		t.Errorf("commands are in %q, want both in %s/1", lines, filepath.Base(home.dir))
	}
	if out := sh(t, in, isolate.Command{Secrets: map[string][]byte{"S": []byte("s")}}, look); strings.Join(strings.Fields(out), " ") != strings.Join(lines, " ") {
		t.Errorf("with secrets: %q, want %q", out, lines)
	}
	of, err := os.ReadFile("/proc/" + strconv.Itoa(in.Pid()) + "/cgroup")
	if err != nil || strings.Contains(string(of), filepath.Base(home.dir)) {
		t.Errorf("init is in %q, %v, want it outside", of, err)
	}
	res, err := in.Exec(t.Context(), isolate.Command{Argv: []string{"/no/such"}})
	if err != nil || res.Cause != isolate.CauseStart || res.StartError != `start "/no/such": no such program` {
		t.Errorf("no program: %+v, %v, want it told as ever", res, err)
	}
}
