package fleets

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// takeOver is how soon after the end of its worker a plan is claimed by another.
const takeOver = 7 * time.Second

func TestFleet_FiftyPlansEachOnce(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	c.Worker(t, "wa")
	c.Worker(t, "wb")
	var files []string
	for i := range 5 {
		files = append(files, c.Plan(t, "apply: never\n"+fleettest.Resource(c.Tree(t, fmt.Sprint("d", i), "echo x >f")), "echo y >g"))
	}
	ids := make([]string, 50)
	fleettest.Together(len(ids), func(i int) { ids[i] = c.Submit(t, files[i%len(files)]) })
	for _, id := range ids {
		c.Ended(t, id, events.StateExecuted)
		c.Once(t, id, 1)
	}
	c.QueueEmpties(t)
}

func TestFleet_KilledWorker(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	o := fleettest.NewOutlet(t, c.Place)
	wa := c.Worker(t, "wa", "--expose", o.Dir)
	dir := c.Tree(t, "d", "echo x >f")
	word := fmt.Sprintf("601.%d", time.Now().UnixNano()%1e9)
	id := c.Submit(t, c.PlanOf(t, "apply: auto\n"+fleettest.Resource(dir),
		`{id: first, checkpoint: true, run: "echo one >one"}`,
		"{id: second, run: "+fleettest.Quoted("[ $(cat one) = one ]; sleep "+word+" & p=$!; "+o.Gate()+"kill $p; echo two >two")+"}"))
	c.Until(t, id, "portable checkpoint", fleettest.All(fleettest.IsType(events.TypeCheckpointed), fleettest.OfStep("first")))
	c.Until(t, id, "second step", fleettest.All(fleettest.IsType(events.TypeStepStarted), fleettest.OfStep("second")))
	c.Worker(t, "wb", "--expose", o.Dir)
	killed := time.Now()
	wa.Kill(t)
	e := c.Until(t, id, "the other's claim", fleettest.All(fleettest.IsType(events.TypeClaimed), func(e events.Event) bool { return e.Data.Worker == "wb" }))
	if took := e.Time.Sub(killed); took > takeOver {
		t.Errorf("taken over after %s, want at most %s", took, takeOver)
	}
	if e.Data.Source != events.SourceCheckpoint {
		t.Errorf("the other started from %q, want the checkpoint", e.Data.Source)
	}
	o.Open(t)
	c.Ended(t, id, events.StateApplied)
	c.Once(t, id, 2)
	if n := c.Count(t, id, fleettest.IsType(events.TypeStepStarted), fleettest.OfStep("first")); n != 1 {
		t.Errorf("the first step ran %d times", n)
	}
	if got := c.Sh(t, dir, "cat f one two"); got != "x\none\ntwo\n" {
		t.Errorf("the original: %q", got)
	}
	fleettest.Eventually(t, "the killed worker's step to end", func() bool { return fleettest.Running(word) == 0 })
}

// A worker killed in an in-place plan leaves an original half changed; the next worker of that
// host brings it back before the plan runs again.
func TestFleet_KilledWorkerInPlace(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	o := fleettest.NewOutlet(t, c.Place)
	wa := c.Worker(t, "wa", "--expose", o.Dir)
	dir := c.Tree(t, "d", "echo x >f; echo y >g")
	file := c.Plan(t, "strategy: none\napply: auto\n"+fleettest.Resource(dir),
		"[ ! -e new ]; [ $(cat f) = x ]; echo half >f; rm g; echo new >new; "+o.Gate()+"echo whole >f")
	id := c.Submit(t, file)
	fleettest.Eventually(t, "the original to be half changed", func() bool { return fleettest.Exists(dir+"/new") && !fleettest.Exists(dir+"/g") })
	wa.Kill(t)
	o.Open(t)
	c.Worker(t, "wa", "--expose", o.Dir)
	c.Ended(t, id, events.StateApplied)
	if got := c.Sh(t, dir, "cat f new; ls"); got != "whole\nnew\nf\nnew\n" {
		t.Errorf("the original: %q", got)
	}
}

// A worker that is told to stop and whose step takes too long hands the plan over.
func TestFleet_DrainHandsOver(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	o := fleettest.NewOutlet(t, c.Place)
	wa := c.Worker(t, "wa", "--expose", o.Dir, "--drain-timeout", "500ms")
	dir := c.Tree(t, "d", "echo x >f")
	id := c.Submit(t, c.Plan(t, "apply: auto\n"+fleettest.Resource(dir), o.Gate()+"echo y >f"))
	c.Until(t, id, "step", fleettest.IsType(events.TypeStepStarted))
	c.Worker(t, "wb", "--expose", o.Dir)
	wa.Signal(t, syscall.SIGTERM)
	if code := wa.Exit(t, fleettest.Patience); code != 0 {
		t.Errorf("the stopped worker's exit code is %d", code)
	}
	c.Until(t, id, "the other's step", fleettest.All(fleettest.IsType(events.TypeStepStarted), fleettest.ByWorker("wb")))
	if n := c.Count(t, id, fleettest.IsType(events.TypeInterrupted)); n != 1 {
		t.Errorf("%d interrupted events, want 1\n%s", n, c.Story(t, id))
	}
	o.Open(t)
	c.Ended(t, id, events.StateApplied)
	c.Once(t, id, 2)
}
