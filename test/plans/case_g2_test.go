package plans

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// g2Step is an answer to the polite signal. With a grace of three seconds the first and the third are ended by the hard one.
type g2Step struct {
	name, script, says string
	least              time.Duration // from the signal to the end
}

var g2Steps = []g2Step{
	{"Deaf", "trap '' TERM; echo up; while :; do sleep 1; done", "", 3 * time.Second},
	{"Polite", "trap 'sleep 1; echo bye; exit 0' TERM; echo up; sleep 60 & wait", "bye\n", time.Second},
	{"Stopped", "echo up; kill -STOP $$; trap '' TERM; while :; do kill -STOP $$; done", "", 0},
	// The shell dies at once; what it runs cleans up.
	{"Inner", `sh -c "trap 'sleep 1; echo bye; exit 0' TERM; echo up; sleep 60 & wait"; true`, "bye\n", time.Second},
	{"OtherSession", `setsid sh -c "trap 'sleep 1; echo bye; exit 0' TERM; echo up; sleep 60 & wait" & wait`, "bye\n", time.Second},
}

// Case G2: at a time-out, at a cancel and at the end of a worker, every process of the step gets the polite signal and then the grace in full.
func TestCase_G2_Grace(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"Timeout", "Cancel", "CancelTwice", "Shutdown"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			c := fleettest.StartCluster(t, fleettest.Ordinary(t))
			w := c.Worker(t, "w", "--slots", "8", "--grace", "3s", "--drain-timeout", "500ms")
			dir := c.Tree(t, "g2", "echo a >a")
			timeout := map[bool]string{true: "timeout: 2s, "}[by == "Timeout"]
			var ids []string
			for _, s := range g2Steps {
				ids = append(ids, c.Submit(t, c.PlanOf(t, "apply: never\nmax_attempts: 1\n"+fleettest.Resource(dir), "{"+timeout+"run: "+fleettest.Quoted(s.script)+"}")))
			}
			for _, id := range ids {
				fleettest.Eventually(t, "the step to be up", func() bool { return strings.HasPrefix(c.Do(t, "warmfleet", "plan", "logs", id), "up\n") })
			}
			began := time.Now()
			politely(t, c, w, by, ids)
			for i, s := range g2Steps {
				t.Run(s.name, func(t *testing.T) { s.hadItsGrace(t, c, g2End{ids[i], by, began}) })
			}
		})
	}
}

// politely ends plans in one of the ways.
func politely(t *testing.T, c *fleettest.Cluster, w *fleettest.Process, by string, ids []string) {
	t.Helper()
	switch by {
	case "Cancel", "CancelTwice":
		for _, id := range ids {
			c.Do(t, "warmfleet", "plan", "cancel", id)
		}
	case "Shutdown":
		w.Signal(t, syscall.SIGTERM)
		if code := w.Exit(t, fleettest.Patience); code != 0 {
			t.Errorf("the worker's exit code is %d", code)
		}
	}
	if by == "CancelTwice" { // a second one must neither shorten the grace nor begin it anew
		for range 3 {
			<-time.After(500 * time.Millisecond)
			for _, id := range ids {
				c.Warmfleet(t, "plan", "cancel", id)
			}
		}
	}
}

// g2End is how a plan was ended, and when that began.
type g2End struct {
	id, by string
	began  time.Time
}

func (s g2Step) hadItsGrace(t *testing.T, c *fleettest.Cluster, end g2End) {
	t.Helper()
	id, by := end.id, end.by
	if by == "Shutdown" { // another worker may go on with the plan; here it is only the output that counts
		if got := c.Do(t, "warmfleet", "plan", "logs", id); got != "up\n"+s.says {
			t.Errorf("output %q, want %q", got, "up\n"+s.says)
		}
		return
	}
	state, cause := events.StateCancelled, "cancelled"
	if by == "Timeout" {
		state, cause = events.StateFailed, "timeout"
	}
	v := c.Ended(t, id, state)
	step := v.Steps[0]
	if step.State == events.StepSucceeded || fleettest.Deref(step.Signal) != "" || step.Cause != nil && *step.Cause != cause {
		t.Errorf("step %s by %s, signal %q; want %s", step.State, fleettest.Deref(step.Cause), fleettest.Deref(step.Signal), cause)
	}
	if got := c.Do(t, "warmfleet", "plan", "logs", id); got != "up\n"+s.says {
		t.Errorf("output %q, want %q", got, "up\n"+s.says)
	}
	all := c.Records(t, id)
	if took := all[len(all)-1].Event.Time.Sub(end.began); by != "Timeout" && took < s.least || took > 30*time.Second {
		t.Errorf("it took %s, want %s at least", took, s.least)
	}
	if n := c.Count(t, id, fleettest.IsFinal); n != 1 {
		t.Errorf("%d final events", n)
	}
}

// Case G2: a time-out that is none is refused where it is written, in plans and in commands.
func TestCase_G2_NoTimeout(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	dir := c.Tree(t, "g2", "echo a >a")
	for _, bad := range []string{"0", "0s", "-1s", "-5", "''"} {
		for where, file := range map[string]string{
			"step": c.PlanOf(t, "apply: never\n"+fleettest.Resource(dir), "{timeout: "+bad+", run: 'true'}"),
			"plan": c.PlanOf(t, "apply: never\ntimeout: "+bad+"\n"+fleettest.Resource(dir), "{run: 'true'}"),
		} {
			r := c.Warmfleet(t, "submit", file)
			if r.Code != 2 || !strings.Contains(r.Stderr, "timeout") {
				t.Errorf("timeout %s of a %s: exit code %d, %s", bad, where, r.Code, r.Stderr)
			}
		}
	}
	for _, flags := range [][]string{{"--grace", "-1s"}, {"--drain-timeout", "-1s"}} {
		r := c.Run(t, "worker", append([]string{"--name", "w", "--state-dir", c.Path("w")}, flags...)...).Exits(t, 2)
		if !strings.Contains(r.Stderr, strings.TrimLeft(flags[0], "-")+" is") || strings.Count(strings.TrimSpace(r.Stderr), "\n") > 0 {
			t.Errorf("%v: %s", flags, r.Stderr)
		}
	}
}
