package plans

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

func TestRun_TwoAtOnceOnOneStateDirectory(t *testing.T) {
	t.Parallel()
	p := fleettest.NewPlace(t, fleettest.Ordinary(t))
	results := make([]fleettest.Result, 3)
	for i := range results {
		p.Tree(t, fmt.Sprint("d", i), "echo x >f")
	}
	file := p.Plan(t, "apply: auto", "sleep 0.3; echo y >f")
	fleettest.Together(len(results), func(i int) {
		results[i] = p.Warmfleet(t, "run", file, "--path", p.Path("work", fmt.Sprint("d", i)), "-o", "json")
	})
	for i, r := range results {
		if v := r.Exits(t, 0).View(t); v.State != events.StateApplied {
			t.Errorf("run %d: state %s", i, v.State)
		}
		if got := fleettest.Read(t, p.Path("work", fmt.Sprint("d", i), "f")); got != "y\n" {
			t.Errorf("run %d: f is %q", i, got)
		}
	}
	if got := strings.Count(p.Do(t, "warmfleet", "plan", "ls", "-o", "json"), `"state": "applied"`); got != len(results) {
		t.Errorf("plan ls shows %d applied plans, want %d", got, len(results))
	}
}

func TestRun_CtrlC(t *testing.T) {
	t.Parallel()
	for _, strategy := range fleettest.Strategies() {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			p := fleettest.NewPlace(t, fleettest.Ordinary(t))
			dir := p.Tree(t, "d", fleettest.GitScript)
			before := fleettest.Snapshot(t, dir)
			word := fmt.Sprintf("602.%d", time.Now().UnixNano()%1e9)
			file := p.Plan(t, "strategy: "+strategy+"\napply: auto", "echo started; rm -r src; echo new >new; sleep "+word)
			run := p.Start(t, "run", "warmfleet", "run", file, "--path", dir)
			run.Prints(t, "started")
			fleettest.Eventually(t, "the step to be in its sleep", func() bool { return fleettest.Running(word) == 1 })
			run.Signal(t, syscall.SIGINT)
			if code := run.Exit(t, fleettest.Patience); code != 130 {
				t.Errorf("got exit code %d, want 130", code)
			}
			if n := fleettest.Running(word); n != 0 {
				t.Errorf("%d processes are left", n)
			}
			fleettest.Unchanged(t, dir, before)
			if got := p.Do(t, "warmfleet", "plan", "ls", "-o", "json"); !strings.Contains(got, `"state": "cancelled"`) {
				t.Errorf("plan ls: %s", got)
			}
		})
	}
}

func TestRun_PlainSurroundings(t *testing.T) {
	t.Parallel()
	p := fleettest.NewPlace(t, fleettest.Ordinary(t))
	dir := p.Tree(t, "a path with spaces & 'quotes'", "echo x >f")
	file := p.Plan(t, "apply: auto", "echo y >f; pwd")
	t.Run("Spaces", func(t *testing.T) {
		p.Warmfleet(t, "run", file, "--path", dir).Exits(t, 0)
		if got := fleettest.Read(t, dir, "f"); got != "y\n" {
			t.Errorf("f: %q", got)
		}
	})
	t.Run("ReadOnlyDirectory", func(t *testing.T) {
		fleettest.Must(t, os.Mkdir(p.Path("sealed"), 0o555))
		p.Own(t, p.Path("sealed"))
		q := *p
		q.Cwd = p.Path("sealed")
		q.Warmfleet(t, "run", file, "--path", dir).Exits(t, 0)
	})
	t.Run("NoHome", func(t *testing.T) {
		q := p.Without("HOME").Without("XDG_CONFIG_HOME").Without("USER")
		q.Warmfleet(t, "run", file, "--path", dir).Exits(t, 0)
	})
	t.Run("NoHomeNoState", func(t *testing.T) {
		if os.Getuid() != 0 {
			t.Skip("an ordinary user's own home would be used")
		}
		q := p.Without("HOME").Without("XDG_CONFIG_HOME").Without("XDG_STATE_HOME")
		r := q.Warmfleet(t, "run", file, "--path", dir).Exits(t, 2) // nobody has no home
		if !strings.Contains(r.Stderr, "--state-dir") {
			t.Errorf("stderr %q does not name --state-dir", r.Stderr)
		}
		q.Warmfleet(t, "run", file, "--path", dir, "--state-dir", p.Path("given")).Exits(t, 0)
	})
	t.Run("MinimalPath", func(t *testing.T) {
		p.Without("PATH").With("PATH=/usr/bin:/bin").Run(t, fleettest.Bin(t)+"/warmfleet", "run", file, "--path", dir).Exits(t, 0)
	})
}

// noNamespaces runs a program where an ordinary user can make no user namespace.
const noNamespaces = `echo 0 >/proc/sys/user/max_user_namespaces; exec "$@"`

func TestRun_MissingGuarantees(t *testing.T) {
	t.Parallel()
	p := fleettest.NewPlace(t, fleettest.Ordinary(t))
	if r := p.Run(t, "unshare", "-Ur", "sh", "-c", noNamespaces, "sh", "true"); r.Code != 0 {
		t.Skipf("namespaces cannot be forbidden here: %s", r.Stderr)
	}
	dir := p.Tree(t, "d", fleettest.SampleScript)
	want := p.Tree(t, "want", fleettest.SampleScript+"echo y >new; rm src/a.txt")
	file := p.Plan(t, "apply: auto", "echo y >new; rm src/a.txt")
	before := fleettest.Snapshot(t, dir)
	within := func(args ...string) fleettest.Result {
		return p.Run(t, "unshare", append([]string{"-Ur", "sh", "-c", noNamespaces, "sh", fleettest.Bin(t) + "/warmfleet"}, args...)...)
	}
	r := within("run", file, "--path", dir)
	r.Exits(t, 10)
	for _, name := range []string{"writes", "hidden_files", "tree_kill", "--isolation preferred"} {
		if !strings.Contains(r.Stderr, name) {
			t.Errorf("stderr does not name %s:\n%s", name, r.Stderr)
		}
	}
	fleettest.Unchanged(t, dir, before)
	doctor := within("doctor", "-o", "json").Exits(t, 10)
	if !strings.Contains(doctor.Stdout, `"absent"`) || !strings.Contains(doctor.Stdout, "sysctl user.max_user_namespaces") {
		t.Errorf("doctor: %s", doctor.Stdout)
	}
	v := within("run", file, "--path", dir, "--isolation", "preferred", "-o", "json").Exits(t, 0).View(t)
	if v.State != events.StateApplied || fleettest.Deref(v.Isolation) == "" {
		t.Errorf("state %s, isolation %q", v.State, fleettest.Deref(v.Isolation))
	}
	fleettest.SameTree(t, dir, want)
}
