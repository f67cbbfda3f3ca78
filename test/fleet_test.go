package test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// takeOver is how soon after the end of its worker a plan is claimed by another.
const takeOver = 7 * time.Second

func TestFleet_FiftyPlansEachOnce(t *testing.T) {
	t.Parallel()
	c := startCluster(t, ordinary(t))
	c.worker(t, "wa")
	c.worker(t, "wb")
	var files []string
	for i := range 5 {
		files = append(files, c.plan(t, "apply: never\n"+resource(c.tree(t, fmt.Sprint("d", i), "echo x >f")), "echo y >g"))
	}
	ids := make([]string, 50)
	together(len(ids), func(i int) { ids[i] = c.submit(t, files[i%len(files)]) })
	for _, id := range ids {
		c.ended(t, id, events.StateExecuted)
		c.once(t, id, 1)
	}
	c.queueEmpties(t)
}

func TestFleet_KilledWorker(t *testing.T) {
	t.Parallel()
	c := startCluster(t, ordinary(t))
	o := newOutlet(t, c.place)
	wa := c.worker(t, "wa", "--expose", o.dir)
	dir := c.tree(t, "d", "echo x >f")
	word := fmt.Sprintf("601.%d", time.Now().UnixNano()%1e9)
	id := c.submit(t, c.planOf(t, "apply: auto\n"+resource(dir),
		`{id: first, checkpoint: true, run: "echo one >one"}`,
		"{id: second, run: "+quoted("[ $(cat one) = one ]; sleep "+word+" & p=$!; "+o.gate()+"kill $p; echo two >two")+"}"))
	c.until(t, id, "portable checkpoint", all(isType(events.TypeCheckpointed), ofStep("first")))
	c.until(t, id, "second step", all(isType(events.TypeStepStarted), ofStep("second")))
	c.worker(t, "wb", "--expose", o.dir)
	killed := time.Now()
	wa.kill(t)
	e := c.until(t, id, "the other's claim", all(isType(events.TypeClaimed), func(e events.Event) bool { return e.Data.Worker == "wb" }))
	if took := e.Time.Sub(killed); took > takeOver {
		t.Errorf("taken over after %s, want at most %s", took, takeOver)
	}
	if e.Data.Source != events.SourceCheckpoint {
		t.Errorf("the other started from %q, want the checkpoint", e.Data.Source)
	}
	o.open(t)
	c.ended(t, id, events.StateApplied)
	c.once(t, id, 2)
	if n := c.count(t, id, isType(events.TypeStepStarted), ofStep("first")); n != 1 {
		t.Errorf("the first step ran %d times", n)
	}
	if got := c.sh(t, dir, "cat f one two"); got != "x\none\ntwo\n" {
		t.Errorf("the original: %q", got)
	}
	eventually(t, "the killed worker's step to end", func() bool { return running(word) == 0 })
}

// A worker killed in an in-place plan leaves an original half changed; the next worker of that
// host brings it back before the plan runs again.
func TestFleet_KilledWorkerInPlace(t *testing.T) {
	t.Parallel()
	c := startCluster(t, ordinary(t))
	o := newOutlet(t, c.place)
	wa := c.worker(t, "wa", "--expose", o.dir)
	dir := c.tree(t, "d", "echo x >f; echo y >g")
	file := c.plan(t, "strategy: none\napply: auto\n"+resource(dir),
		"[ ! -e new ]; [ $(cat f) = x ]; echo half >f; rm g; echo new >new; "+o.gate()+"echo whole >f")
	id := c.submit(t, file)
	eventually(t, "the original to be half changed", func() bool { return exists(dir+"/new") && !exists(dir+"/g") })
	wa.kill(t)
	o.open(t)
	c.worker(t, "wa", "--expose", o.dir)
	c.ended(t, id, events.StateApplied)
	if got := c.sh(t, dir, "cat f new; ls"); got != "whole\nnew\nf\nnew\n" {
		t.Errorf("the original: %q", got)
	}
}

// A worker that is told to stop and whose step takes too long hands the plan over.
func TestFleet_DrainHandsOver(t *testing.T) {
	t.Parallel()
	c := startCluster(t, ordinary(t))
	o := newOutlet(t, c.place)
	wa := c.worker(t, "wa", "--expose", o.dir, "--drain-timeout", "500ms")
	dir := c.tree(t, "d", "echo x >f")
	id := c.submit(t, c.plan(t, "apply: auto\n"+resource(dir), o.gate()+"echo y >f"))
	c.until(t, id, "step", isType(events.TypeStepStarted))
	c.worker(t, "wb", "--expose", o.dir)
	wa.signal(t, syscall.SIGTERM)
	if code := wa.exit(t, patience); code != 0 {
		t.Errorf("the stopped worker's exit code is %d", code)
	}
	c.until(t, id, "the other's step", all(isType(events.TypeStepStarted), byWorker("wb")))
	if n := c.count(t, id, isType(events.TypeInterrupted)); n != 1 {
		t.Errorf("%d interrupted events, want 1\n%s", n, c.story(t, id))
	}
	o.open(t)
	c.ended(t, id, events.StateApplied)
	c.once(t, id, 2)
}

func TestRun_TwoAtOnceOnOneStateDirectory(t *testing.T) {
	t.Parallel()
	p := newPlace(t, ordinary(t))
	results := make([]result, 3)
	for i := range results {
		p.tree(t, fmt.Sprint("d", i), "echo x >f")
	}
	file := p.plan(t, "apply: auto", "sleep 0.3; echo y >f")
	together(len(results), func(i int) {
		results[i] = p.warmfleet(t, "run", file, "--path", p.path("work", fmt.Sprint("d", i)), "-o", "json")
	})
	for i, r := range results {
		if v := r.exits(t, 0).view(t); v.State != events.StateApplied {
			t.Errorf("run %d: state %s", i, v.State)
		}
		if got := read(t, p.path("work", fmt.Sprint("d", i), "f")); got != "y\n" {
			t.Errorf("run %d: f is %q", i, got)
		}
	}
	if got := strings.Count(p.do(t, "warmfleet", "plan", "ls", "-o", "json"), `"state": "applied"`); got != len(results) {
		t.Errorf("plan ls shows %d applied plans, want %d", got, len(results))
	}
}

func TestRun_CtrlC(t *testing.T) {
	for _, strategy := range strategies {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, ordinary(t))
			dir := p.tree(t, "d", gitScript)
			before := snapshot(t, dir)
			word := fmt.Sprintf("602.%d", time.Now().UnixNano()%1e9)
			file := p.plan(t, "strategy: "+strategy+"\napply: auto", "echo started; rm -r src; echo new >new; sleep "+word)
			run := p.start(t, "run", "warmfleet", "run", file, "--path", dir)
			run.prints(t, "started")
			eventually(t, "the step to be in its sleep", func() bool { return running(word) == 1 })
			run.signal(t, syscall.SIGINT)
			if code := run.exit(t, patience); code != 130 {
				t.Errorf("got exit code %d, want 130", code)
			}
			if n := running(word); n != 0 {
				t.Errorf("%d processes are left", n)
			}
			unchanged(t, dir, before)
			if got := p.do(t, "warmfleet", "plan", "ls", "-o", "json"); !strings.Contains(got, `"state": "cancelled"`) {
				t.Errorf("plan ls: %s", got)
			}
		})
	}
}

func TestRun_PlainSurroundings(t *testing.T) {
	t.Parallel()
	p := newPlace(t, ordinary(t))
	dir := p.tree(t, "a path with spaces & 'quotes'", "echo x >f")
	file := p.plan(t, "apply: auto", "echo y >f; pwd")
	t.Run("Spaces", func(t *testing.T) {
		p.warmfleet(t, "run", file, "--path", dir).exits(t, 0)
		if got := read(t, dir, "f"); got != "y\n" {
			t.Errorf("f: %q", got)
		}
	})
	t.Run("ReadOnlyDirectory", func(t *testing.T) {
		must(t, os.Mkdir(p.path("sealed"), 0o555))
		p.own(t, p.path("sealed"))
		q := *p
		q.cwd = p.path("sealed")
		q.warmfleet(t, "run", file, "--path", dir).exits(t, 0)
	})
	t.Run("NoHome", func(t *testing.T) {
		q := p.without("HOME").without("XDG_CONFIG_HOME").without("USER")
		q.warmfleet(t, "run", file, "--path", dir).exits(t, 0)
	})
	t.Run("NoHomeNoState", func(t *testing.T) {
		if os.Getuid() != 0 {
			t.Skip("an ordinary user's own home would be used")
		}
		q := p.without("HOME").without("XDG_CONFIG_HOME").without("XDG_STATE_HOME")
		r := q.warmfleet(t, "run", file, "--path", dir).exits(t, 2) // nobody has no home
		if !strings.Contains(r.stderr, "--state-dir") {
			t.Errorf("stderr %q does not name --state-dir", r.stderr)
		}
		q.warmfleet(t, "run", file, "--path", dir, "--state-dir", p.path("given")).exits(t, 0)
	})
	t.Run("MinimalPath", func(t *testing.T) {
		p.without("PATH").with("PATH=/usr/bin:/bin").run(t, bin(t)+"/warmfleet", "run", file, "--path", dir).exits(t, 0)
	})
}

// noNamespaces runs a program where an ordinary user can make no user namespace.
const noNamespaces = `echo 0 >/proc/sys/user/max_user_namespaces; exec "$@"`

func TestRun_MissingGuarantees(t *testing.T) {
	t.Parallel()
	p := newPlace(t, ordinary(t))
	if r := p.run(t, "unshare", "-Ur", "sh", "-c", noNamespaces, "sh", "true"); r.code != 0 {
		t.Skipf("namespaces cannot be forbidden here: %s", r.stderr)
	}
	dir := p.tree(t, "d", sampleScript)
	want := p.tree(t, "want", sampleScript+"echo y >new; rm src/a.txt")
	file := p.plan(t, "apply: auto", "echo y >new; rm src/a.txt")
	before := snapshot(t, dir)
	within := func(args ...string) result {
		return p.run(t, "unshare", append([]string{"-Ur", "sh", "-c", noNamespaces, "sh", bin(t) + "/warmfleet"}, args...)...)
	}
	r := within("run", file, "--path", dir)
	r.exits(t, 10)
	for _, name := range []string{"writes", "hidden_files", "tree_kill", "--isolation preferred"} {
		if !strings.Contains(r.stderr, name) {
			t.Errorf("stderr does not name %s:\n%s", name, r.stderr)
		}
	}
	unchanged(t, dir, before)
	doctor := within("doctor", "-o", "json").exits(t, 10)
	if !strings.Contains(doctor.stdout, `"absent"`) || !strings.Contains(doctor.stdout, "sysctl user.max_user_namespaces") {
		t.Errorf("doctor: %s", doctor.stdout)
	}
	v := within("run", file, "--path", dir, "--isolation", "preferred", "-o", "json").exits(t, 0).view(t)
	if v.State != events.StateApplied || deref(v.Isolation) == "" {
		t.Errorf("state %s, isolation %q", v.State, deref(v.Isolation))
	}
	sameTree(t, dir, want)
}
