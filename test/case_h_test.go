package test

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// outlet is a named pipe that steps see through --expose: what is written to it was done
// outside of every sandbox, and cannot be rolled back.
type outlet struct {
	dir, file string
	mu        sync.Mutex
	lines     []string
}

func newOutlet(t *testing.T, p *place) *outlet {
	t.Helper()
	o := &outlet{dir: p.path("outside")}
	o.file = filepath.Join(o.dir, "pipe")
	must(t, os.Mkdir(o.dir, 0o755))
	must(t, syscall.Mkfifo(o.file, 0o666))
	must(t, os.Chmod(o.file, 0o666))
	f, err := os.OpenFile(o.file, os.O_RDWR, 0)
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s := bufio.NewScanner(f); s.Scan(); {
			o.mu.Lock()
			o.lines = append(o.lines, s.Text())
			o.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		f.Close()
		<-done
	})
	return o
}

func (o *outlet) got() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(o.lines, " ")
}

// open makes the file that steps wait for with gate.
func (o *outlet) open(t *testing.T) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(o.dir, "gate"), nil, 0o644))
}

// gate is shell that waits for open.
func (o *outlet) gate() string { return "until [ -e " + o.dir + "/gate ]; do sleep 0.05; done; " }

// longerThanLease is well beyond the 5 s after which a silent worker's command comes again.
const longerThanLease = "sleep 12; "

func TestCase_H1(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"LongStep": oneLineOfALongStep, "GentleStop": oneLineWithAGentleStop, "LostAck": oneLineWithALostAck, "SameID": sameIDRunsOnce,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

func oneLineOfALongStep(t *testing.T) {
	c := startCluster(t, ordinary(t))
	o := newOutlet(t, c.place)
	for _, w := range []string{"wa", "wb", "wc"} {
		c.worker(t, w, "--expose", o.dir)
	}
	dir := c.tree(t, "d", "echo x >f")
	id := c.submit(t, c.plan(t, "apply: auto\n"+resource(dir), "echo line >"+o.file+"; "+longerThanLease+"echo y >f"))
	c.ended(t, id, events.StateApplied)
	c.once(t, id, 1)
	c.queueEmpties(t)
	if got := o.got(); got != "line" {
		t.Errorf("outside: %q, want one line", got)
	}
	if n := c.count(t, id, isType(events.TypeStepStarted)); n != 1 {
		t.Errorf("the step was started %d times", n)
	}
}

// oneLineWithAGentleStop stops the holder during its first step: the step ends there, the next
// runs elsewhere.
func oneLineWithAGentleStop(t *testing.T) {
	c := startCluster(t, ordinary(t))
	o := newOutlet(t, c.place)
	wa := c.worker(t, "wa", "--expose", o.dir)
	dir := c.tree(t, "d", "echo x >f")
	id := c.submit(t, c.plan(t, "apply: auto\n"+resource(dir), "echo first >"+o.file+"; "+longerThanLease+"echo y >f", "grep -q y f; echo second >"+o.file))
	c.until(t, id, "first step", isType(events.TypeStepStarted))
	c.worker(t, "wb", "--expose", o.dir)
	wa.signal(t, syscall.SIGTERM)
	if code := wa.exit(t, patience); code != 0 {
		t.Errorf("the stopped worker's exit code is %d", code)
	}
	c.ended(t, id, events.StateApplied)
	c.once(t, id, 2)
	c.queueEmpties(t)
	if got := o.got(); got != "first second" {
		t.Errorf("outside: %q, want each line once", got)
	}
	if n := c.count(t, id, byWorker("wb"), isType(events.TypeStepStarted), ofStep("step-2")); n != 1 {
		t.Errorf("the second step ran %d times on the other worker\n%s", n, c.story(t, id))
	}
	if got := read(t, dir, "f"); got != "y\n" {
		t.Errorf("f: %q", got)
	}
}

func oneLineWithALostAck(t *testing.T) {
	c := startCluster(t, ordinary(t))
	o := newOutlet(t, c.place)
	dropped := make(chan struct{}, 100)
	var once sync.Once
	via := natsProxy(t, c.NATS(), func(subject string, payload []byte) bool {
		drop := false
		if strings.HasPrefix(subject, "$JS.ACK.FLEET_COMMANDS.") && string(payload) == "+ACK" {
			once.Do(func() {
				drop = true
				dropped <- struct{}{}
			})
		}
		return drop
	})
	direct := c.place
	c.place = c.with("NATS_URL=" + via)
	c.worker(t, "wa", "--expose", o.dir)
	c.place = direct
	dir := c.tree(t, "d", "echo x >f")
	id := c.submit(t, c.plan(t, "apply: auto\n"+resource(dir), "echo line >"+o.file+"; echo y >f"))
	c.ended(t, id, events.StateApplied)
	select {
	case <-dropped:
	case <-time.After(patience):
		t.Fatal("no acknowledgement passed the proxy")
	}
	c.queueEmpties(t)
	c.once(t, id, 1)
	if got := o.got(); got != "line" {
		t.Errorf("outside: %q, want one line", got)
	}
	next := c.submit(t, c.plan(t, "apply: never\n"+resource(dir), "true"))
	c.ended(t, next, events.StateExecuted)
}

func sameIDRunsOnce(t *testing.T) {
	c := startCluster(t, ordinary(t))
	c.worker(t, "wa")
	dir := c.tree(t, "d", "echo x >f")
	file := c.plan(t, "apply: never\n"+resource(dir), "true")
	id := events.NewID()
	together(4, func(int) { c.submit(t, file, "--id", id) })
	c.ended(t, id, events.StateExecuted)
	if got := c.submit(t, file, "--id", id); got != id {
		t.Errorf("submitted once more: printed %q", got)
	}
	other := c.plan(t, "apply: never\n"+resource(dir), "false")
	r := c.warmfleet(t, "submit", other, "--id", id).exits(t, 2)
	if !strings.Contains(r.stderr, "another id") {
		t.Errorf("refusal of another plan: %q", r.stderr)
	}
	c.queueEmpties(t)
	c.once(t, id, 1)
	if n := c.count(t, id, isType(events.TypeAccepted)); n != 1 {
		t.Errorf("accepted %d times", n)
	}
}

func TestCase_H3(t *testing.T) {
	for _, freeze := range []struct {
		name  string
		first string // makes what the checkpoint after it holds
		last  string // the step before the files are applied
		at    func(events.Event) bool
	}{
		{"InStep", "echo one >one", "", all(isType(events.TypeStepStarted), ofStep("step-2"))},
		{"InUpload", "head -c 80000000 /dev/urandom >big; echo one >one", "", all(isType(events.TypeStepFinished), ofStep("step-1"))},
		{"BeforeApply", "echo one >one", "mkdir many; seq 0 7999 | split -l 1 -a 4 -d - many/", all(isType(events.TypeStepFinished), ofStep("step-2"))},
	} {
		t.Run(freeze.name, func(t *testing.T) {
			t.Parallel()
			onlyTheNewOwnerEnds(t, freeze.name, freeze.first, freeze.last, freeze.at)
		})
	}
}

// onlyTheNewOwnerEnds freezes the holder at an event until another worker has the plan.
func onlyTheNewOwnerEnds(t *testing.T, name, first, last string, at func(events.Event) bool) {
	c := startCluster(t, ordinary(t))
	o := newOutlet(t, c.place)
	wa := c.worker(t, "wa", "--expose", o.dir)
	dir := c.tree(t, "d", "echo x >f")
	word := fmt.Sprintf("600.%d", time.Now().UnixNano()%1e9)
	second := "sleep " + word + " & p=$!; " + o.gate() + "kill $p; echo two >two"
	if last != "" {
		second = last + "; echo two >two"
	}
	file := c.planOf(t, "apply: auto\n"+resource(dir), "{checkpoint: true, run: "+quoted(first)+"}", "{run: "+quoted(second)+"}")
	id := c.submit(t, file)
	c.until(t, id, name, at)
	wa.signal(t, syscall.SIGSTOP)
	c.worker(t, "wb", "--expose", o.dir)
	taken := c.until(t, id, "the other's claim", all(isType(events.TypeClaimed), func(e events.Event) bool { return e.Data.Worker == "wb" }))
	if last == "" {
		c.until(t, id, "the other's second step", all(isType(events.TypeStepStarted), ofStep("step-2"), byWorker("wb")))
		eventually(t, "the other's second step to run", func() bool { return running(word) > 0 })
	}
	wa.signal(t, syscall.SIGCONT)
	if !wa.output.await(patience, func(s string) bool { return strings.Contains(s, "lost the plan") }) {
		t.Errorf("the thawed worker does not say that it lost the plan")
	}
	if last == "" {
		eventually(t, "the old owner's step to end", func() bool { return running(word) == 1 })
	}
	o.open(t)
	c.ended(t, id, events.StateApplied)
	c.once(t, id, 2)
	c.queueEmpties(t)
	if got := c.sh(t, dir, "cat f one two"); got != "x\none\ntwo\n" {
		t.Errorf("the original: %q", got)
	}
	nothingAfter(t, c, id, taken)
}

// nothingAfter fails the test if the first worker wrote anything after it lost the plan.
func nothingAfter(t *testing.T, c *cluster, id string, taken events.Event) {
	t.Helper()
	lost := false
	for _, r := range c.records(t, id) {
		lost = lost || r.Event.ID == taken.ID
		if lost && r.Event.Source == "/worker/wa" {
			t.Errorf("after the take-over the old owner wrote %s\n%s", r.Event.Kind(), c.story(t, id))
		}
	}
	entries, err := c.fleet.Checkpoints.List(t.Context(), "")
	must(t, err)
	for _, e := range entries {
		if strings.Contains(string(e.Value), `"worker":"wa"`) && e.Created.After(taken.Time) {
			t.Errorf("after the take-over the old owner wrote checkpoint %s", e.Value)
		}
	}
}
