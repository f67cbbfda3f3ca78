package fleets

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// longerThanLease is well beyond the 5 s after which a silent worker's command comes again.
const longerThanLease = "sleep 12; "

func TestCase_H1(t *testing.T) {
	t.Parallel()
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
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	o := fleettest.NewOutlet(t, c.Place)
	for _, w := range []string{"wa", "wb", "wc"} {
		c.Worker(t, w, "--expose", o.Dir)
	}
	dir := c.Tree(t, "d", "echo x >f")
	id := c.Submit(t, c.Plan(t, "apply: auto\n"+fleettest.Resource(dir), "echo line >"+o.File+"; "+longerThanLease+"echo y >f"))
	c.Ended(t, id, events.StateApplied)
	c.Once(t, id, 1)
	c.QueueEmpties(t)
	if got := o.Got(); got != "line" {
		t.Errorf("outside: %q, want one line", got)
	}
	if n := c.Count(t, id, fleettest.IsType(events.TypeStepStarted)); n != 1 {
		t.Errorf("the step was started %d times", n)
	}
}

// oneLineWithAGentleStop stops the holder during its first step: the step ends there, the next
// runs elsewhere.
func oneLineWithAGentleStop(t *testing.T) {
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	o := fleettest.NewOutlet(t, c.Place)
	wa := c.Worker(t, "wa", "--expose", o.Dir)
	dir := c.Tree(t, "d", "echo x >f")
	id := c.Submit(t, c.Plan(t, "apply: auto\n"+fleettest.Resource(dir), "echo first >"+o.File+"; "+longerThanLease+"echo y >f", "grep -q y f; echo second >"+o.File))
	c.Until(t, id, "first step", fleettest.IsType(events.TypeStepStarted))
	c.Worker(t, "wb", "--expose", o.Dir)
	wa.Signal(t, syscall.SIGTERM)
	if code := wa.Exit(t, fleettest.Patience); code != 0 {
		t.Errorf("the stopped worker's exit code is %d", code)
	}
	c.Ended(t, id, events.StateApplied)
	c.Once(t, id, 2)
	c.QueueEmpties(t)
	if got := o.Got(); got != "first second" {
		t.Errorf("outside: %q, want each line once", got)
	}
	if n := c.Count(t, id, fleettest.ByWorker("wb"), fleettest.IsType(events.TypeStepStarted), fleettest.OfStep("step-2")); n != 1 {
		t.Errorf("the second step ran %d times on the other worker\n%s", n, c.Story(t, id))
	}
	if got := fleettest.Read(t, dir, "f"); got != "y\n" {
		t.Errorf("f: %q", got)
	}
}

func oneLineWithALostAck(t *testing.T) {
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	o := fleettest.NewOutlet(t, c.Place)
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
	direct := c.Place
	c.Place = c.With("NATS_URL=" + via)
	c.Worker(t, "wa", "--expose", o.Dir)
	c.Place = direct
	dir := c.Tree(t, "d", "echo x >f")
	id := c.Submit(t, c.Plan(t, "apply: auto\n"+fleettest.Resource(dir), "echo line >"+o.File+"; echo y >f"))
	c.Ended(t, id, events.StateApplied)
	select {
	case <-dropped:
	case <-time.After(fleettest.Patience):
		t.Fatal("no acknowledgement passed the proxy")
	}
	c.QueueEmpties(t)
	c.Once(t, id, 1)
	if got := o.Got(); got != "line" {
		t.Errorf("outside: %q, want one line", got)
	}
	next := c.Submit(t, c.Plan(t, "apply: never\n"+fleettest.Resource(dir), "true"))
	c.Ended(t, next, events.StateExecuted)
}

func sameIDRunsOnce(t *testing.T) {
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	c.Worker(t, "wa")
	dir := c.Tree(t, "d", "echo x >f")
	file := c.Plan(t, "apply: never\n"+fleettest.Resource(dir), "true")
	id := events.NewID()
	fleettest.Together(4, func(int) { c.Submit(t, file, "--id", id) })
	c.Ended(t, id, events.StateExecuted)
	if got := c.Submit(t, file, "--id", id); got != id {
		t.Errorf("submitted once more: printed %q", got)
	}
	other := c.Plan(t, "apply: never\n"+fleettest.Resource(dir), "false")
	r := c.Warmfleet(t, "submit", other, "--id", id).Exits(t, 2)
	if !strings.Contains(r.Stderr, "another id") {
		t.Errorf("refusal of another plan: %q", r.Stderr)
	}
	c.QueueEmpties(t)
	c.Once(t, id, 1)
	if n := c.Count(t, id, fleettest.IsType(events.TypeAccepted)); n != 1 {
		t.Errorf("accepted %d times", n)
	}
}

func TestCase_H3(t *testing.T) {
	t.Parallel()
	for _, freeze := range []struct {
		name  string
		first string // makes what the checkpoint after it holds
		last  string // the step before the files are applied
		at    func(events.Event) bool
	}{
		{"InStep", "echo one >one", "", fleettest.All(fleettest.IsType(events.TypeStepStarted), fleettest.OfStep("step-2"))},
		{"InUpload", "head -c 80000000 /dev/urandom >big; echo one >one", "", fleettest.All(fleettest.IsType(events.TypeStepFinished), fleettest.OfStep("step-1"))},
		{"BeforeApply", "echo one >one", "mkdir many; seq 0 7999 | split -l 1 -a 4 -d - many/", fleettest.All(fleettest.IsType(events.TypeStepFinished), fleettest.OfStep("step-2"))},
	} {
		t.Run(freeze.name, func(t *testing.T) {
			t.Parallel()
			onlyTheNewOwnerEnds(t, freeze.name, freeze.first, freeze.last, freeze.at)
		})
	}
}

// onlyTheNewOwnerEnds freezes the holder at an event until another worker has the plan.
func onlyTheNewOwnerEnds(t *testing.T, name, first, last string, at func(events.Event) bool) {
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	o := fleettest.NewOutlet(t, c.Place)
	wa := c.Worker(t, "wa", "--expose", o.Dir)
	dir := c.Tree(t, "d", "echo x >f")
	word := fmt.Sprintf("600.%d", time.Now().UnixNano()%1e9)
	second := "sleep " + word + " & p=$!; " + o.Gate() + "kill $p; echo two >two"
	if last != "" {
		second = last + "; echo two >two"
	}
	file := c.PlanOf(t, "apply: auto\n"+fleettest.Resource(dir), "{checkpoint: true, run: "+fleettest.Quoted(first)+"}", "{run: "+fleettest.Quoted(second)+"}")
	id := c.Submit(t, file)
	c.Until(t, id, name, at)
	wa.Signal(t, syscall.SIGSTOP)
	c.Worker(t, "wb", "--expose", o.Dir)
	taken := c.Until(t, id, "the other's claim", fleettest.All(fleettest.IsType(events.TypeClaimed), func(e events.Event) bool { return e.Data.Worker == "wb" }))
	if last == "" {
		c.Until(t, id, "the other's second step", fleettest.All(fleettest.IsType(events.TypeStepStarted), fleettest.OfStep("step-2"), fleettest.ByWorker("wb")))
		fleettest.Eventually(t, "the other's second step to run", func() bool { return fleettest.Running(word) > 0 })
	}
	wa.Signal(t, syscall.SIGCONT)
	if !wa.Output.Await(fleettest.Patience, func(s string) bool { return strings.Contains(s, "lost the plan") }) {
		t.Errorf("the thawed worker does not say that it lost the plan")
	}
	if last == "" {
		fleettest.Eventually(t, "the old owner's step to end", func() bool { return fleettest.Running(word) == 1 })
	}
	o.Open(t)
	c.Ended(t, id, events.StateApplied)
	c.Once(t, id, 2)
	c.QueueEmpties(t)
	if got := c.Sh(t, dir, "cat f one two"); got != "x\none\ntwo\n" {
		t.Errorf("the original: %q", got)
	}
	nothingAfter(t, c, id, taken)
}

// nothingAfter fails the test if the first worker wrote anything after it lost the plan.
func nothingAfter(t *testing.T, c *fleettest.Cluster, id string, taken events.Event) {
	t.Helper()
	lost := false
	for _, r := range c.Records(t, id) {
		lost = lost || r.Event.ID == taken.ID
		if lost && r.Event.Source == "/worker/wa" {
			t.Errorf("after the take-over the old owner wrote %s\n%s", r.Event.Kind(), c.Story(t, id))
		}
	}
	entries, err := c.Fleet.Checkpoints.List(t.Context(), "")
	fleettest.Must(t, err)
	for _, e := range entries {
		if strings.Contains(string(e.Value), `"worker":"wa"`) && e.Created.After(taken.Time) {
			t.Errorf("after the take-over the old owner wrote checkpoint %s", e.Value)
		}
	}
}
