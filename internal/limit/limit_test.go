package limit

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

func TestFindGroup(t *testing.T) {
	const mounts = "30 20 0:1 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
		"31 20 0:2 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n" +
		"32 20 0:3 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
	for _, c := range []struct{ name, controller, own, want string }{
		{"Root", "cpu", "3:cpu,cpuacct:/\n", "/sys/fs/cgroup/cpu,cpuacct"},
		{"Below", "cpu", "3:cpu,cpuacct:/a/b\n", "/sys/fs/cgroup/cpu,cpuacct/a/b"},
		{"Container", "memory", "4:memory:/docker/x\n", "/sys/fs/cgroup/memory"},
		{"ContainerNamespace", "memory", "4:memory:/\n", "/sys/fs/cgroup/memory"},
		{"NotMounted", "pids", "5:pids:/\n", ""},
		{"NoGroup", "cpu", "0::/x\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := findGroup(c.controller, c.own, mounts)
			if got != c.want || (err != nil) != (c.want == "") {
				t.Errorf("findGroup = %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

// A group whose process is alive is locked; that of a dead one goes, with all below it.
func TestSweep(t *testing.T) {
	own := t.TempDir()
	dead, alive, other := filepath.Join(own, prefix+"dead"), filepath.Join(own, prefix+"alive"), filepath.Join(own, "else")
	for _, dir := range []string{dead, alive, other} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	lock, err := os.Open(alive)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	sweep(kernel{}, own)
	for dir, want := range map[string]bool{dead: false, alive: true, other: true} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", dir, err == nil, want)
		}
	}
}

// Open tries what it offers: a group that is made can be entered, and nothing is left of it.
func TestGroups_New(t *testing.T) {
	g := Open(Auto)
	if g.made == nil {
		t.Skipf("no control groups can be made here: %v", g.why)
	}
	made, err := g.New()
	if err != nil {
		t.Fatal(err)
	}
	if err := made.Set(isolate.Limits{Memory: 64 << 20, CPUs: 1, PIDs: 20}); err != nil {
		t.Error(err)
	}
	in := startInit(t, made)
	if out := sh(t, in, isolate.Command{}, "echo in"); out != "in\n" {
		t.Errorf("in the group: %q", out)
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob("/sys/fs/cgroup/*/" + prefix + "*/1"); len(left) > 0 {
		t.Logf("groups of others: %v", left)
	}
}

func TestOpen_None(t *testing.T) {
	g := Open(None)
	if made, err := g.New(); made != nil || err != nil || g.Version() != None || len(g.Bounded()) > 0 {
		t.Errorf("New = %v, %v, version %s, bounds %v; want nothing", made, err, g.Version(), g.Bounded())
	}
	for _, c := range []struct {
		rung      isolate.Rung
		pids      isolate.State
		processes bool
	}{{isolate.RungUser, isolate.Enforced, true}, {isolate.RungRoot, isolate.Enforced, true}, {isolate.RungBubblewrap, isolate.Enforced, true}, {isolate.RungLandlock, isolate.BestEffort, false}, {isolate.RungBare, isolate.BestEffort, false}} {
		r := isolate.Report{Rung: c.rung, Guarantees: map[string]isolate.Guarantee{}}
		g.Describe(&r)
		if r.Guarantees[isolate.Pids].State != c.pids || r.ProcessLimit != c.processes {
			t.Errorf("%s: pids %+v, by the kernel %v, want %s, %v", c.rung, r.Guarantees[isolate.Pids], r.ProcessLimit, c.pids, c.processes)
		}
		for name, want := range map[string]isolate.State{isolate.Memory: isolate.BestEffort, isolate.CPU: isolate.Absent, isolate.Disk: isolate.BestEffort} {
			if got := r.Guarantees[name]; got.State != want || got.Why == "" || got.Fix == "" {
				t.Errorf("%s: %+v, want %s with why and fix", name, got, want)
			}
		}
	}
}

func TestParseVersion(t *testing.T) {
	for name, want := range map[string]Version{"": Auto, "auto": Auto, "v1": V1, "v2": V2, "none": None} {
		if got, err := ParseVersion(name); got != want || err != nil {
			t.Errorf("ParseVersion(%q) = %s, %v, want %s", name, got, err, want)
		}
	}
	if _, err := ParseVersion("3"); err == nil {
		t.Error("version 3 was taken")
	}
}

func TestAtLeast(t *testing.T) {
	for release, want := range map[string]bool{"5.14.0-70.el9": true, "5.13.19": false, "6.1.0-18-amd64": true, "4.18.0": false, "odd": false} {
		if got := atLeast(release, 5, 14); got != want {
			t.Errorf("atLeast(%q, 5, 14) = %v", release, got)
		}
	}
}
