package plans

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// marked are the processes of this machine whose command line has a text.
func marked(t testing.TB, text string) []string {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	fleettest.Must(t, err)
	var found []string
	for _, name := range names {
		if line, err := os.ReadFile(name); err == nil && bytes.HasPrefix(line, []byte("sleep\x00"+text+"\x00")) {
			found = append(found, name)
		}
	}
	return found
}

// treeRuns waits until so many of the processes with a text run.
func treeRuns(t testing.TB, text string, processes int) {
	t.Helper()
	fleettest.Eventually(t, "the step's processes", func() bool { return len(marked(t, text)) >= processes })
}

// Case G1: nothing of a step survives its cancellation, its time-out or its worker's death, whatever
// group or session it moved to.
func TestCase_G1(t *testing.T) {
	t.Parallel()
	for i, a := range fleettest.Accounts(t) {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			seconds := func(n string) string { return "7" + string(rune('0'+i)) + n }
			script := func(n string) string {
				s := seconds(n)
				return `run: "setsid sleep ` + s + ` & (setsid sh -c 'trap \"\" TERM; sleep ` + s + `; :' &); nohup sleep ` + s + ` & wait", id: tree`
			}
			c := fleettest.StartCluster(t, a)
			dir := c.Tree(t, "g1", "echo a >a")
			w := c.Worker(t, "w", "--grace", "300ms")
			gone := func(t *testing.T, n string) {
				t.Helper()
				fleettest.Eventually(t, "the end of the step's processes", func() bool { return len(marked(t, seconds(n))) == 0 })
			}
			t.Run("Cancel", func(t *testing.T) {
				id := c.Submit(t, c.PlanOf(t, "apply: never", "{"+script("1")+"}"), "--path", dir)
				treeRuns(t, seconds("1"), 3)
				c.Do(t, "warmfleet", "plan", "cancel", id)
				c.Ended(t, id, events.StateCancelled)
				if left := marked(t, seconds("1")); len(left) > 0 {
					t.Errorf("%d processes are left after the final event", len(left))
				}
			})
			t.Run("Timeout", func(t *testing.T) {
				id := c.Submit(t, c.PlanOf(t, "apply: never", "{timeout: 2s, "+script("2")+"}"), "--path", dir)
				treeRuns(t, seconds("2"), 3)
				c.Ended(t, id, events.StateFailed)
				if left := marked(t, seconds("2")); len(left) > 0 {
					t.Errorf("%d processes are left after the final event", len(left))
				}
			})
			t.Run("KilledWorker", func(t *testing.T) {
				c.Submit(t, c.PlanOf(t, "apply: never\nmax_attempts: 1", "{"+script("3")+"}"), "--path", dir)
				treeRuns(t, seconds("3"), 3)
				began := time.Now()
				fleettest.Must(t, w.Cmd.Process.Kill())
				gone(t, "3")
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("took %v", took)
				}
			})
		})
	}
}

// Case G2: the polite signal gets its grace in full, then comes the hard one, and neither makes a success.
func TestCase_G2(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	c.Worker(t, "w")
	dir := c.Tree(t, "g2", "echo a >a")
	v := c.Warmfleet(t, "run", c.PlanOf(t, "apply: never",
		`{id: deaf, timeout: 2s, continue_on_error: true, run: "trap '' TERM; while :; do sleep 1; done"}`,
		`{id: polite, timeout: 2s, continue_on_error: true, run: "trap 'sleep 1; echo bye; exit 0' TERM; sleep 60 & wait"}`,
		`{id: stopped, timeout: 2s, continue_on_error: true, run: "kill -STOP $$"}`,
	), "--path", dir, "-o", "json").Exits(t, 0).View(t)
	for i, least := range []int64{4000, 3000, 2000} {
		s := v.Steps[i]
		if s.State != events.StepFailed || fleettest.Deref(s.Cause) != "timeout" || fleettest.Deref(s.Signal) != "" {
			t.Errorf("%s: %s by %s %s, want failed by timeout", s.ID, s.State, fleettest.Deref(s.Cause), fleettest.Deref(s.Signal))
		}
		if s.DurationMS == nil || *s.DurationMS < least {
			t.Errorf("%s: took %d ms, want at least %d", s.ID, fleettest.Deref(s.DurationMS), least)
		}
	}
	if got := c.Do(t, "warmfleet", "plan", "logs", v.ID); !bytes.Contains([]byte(got), []byte("bye")) {
		t.Errorf("output %q, want bye in it", got)
	}
}

// Case F4: what ended a step for its limits is told, and the plan's tree goes back; with
// the control groups of this machine, and where there are none.
func TestCase_F4_Limits(t *testing.T) {
	t.Parallel()
	for _, a := range fleettest.Accounts(t) {
		for _, cgroups := range []string{"auto", "none"} {
			t.Run(a.Name+"/"+cgroups, func(t *testing.T) {
				t.Parallel()
				limitsAreTold(t, a, cgroups)
			})
		}
	}
}

func limitsAreTold(t *testing.T, a fleettest.Account, cgroups string) {
	c := fleettest.StartCluster(t, a)
	c.Worker(t, "w", "--cgroups", cgroups)
	dir := c.Tree(t, "limits", "echo a >a")
	before := fleettest.Snapshot(t, dir)
	for _, l := range []struct{ cause, limit, step string }{
		{"oom", "memory_mb: 64", `x=$(head -c 150M /dev/zero | tr '\\0' x); sleep 60`},
		{"pids", "pids: 32", `i=0; while [ $i -lt 64 ]; do sleep 60 & i=$((i+1)); done; wait`},
		{"disk", "disk_gb: 0.02", `head -c 60M /dev/zero >fill; sleep 60`},
	} {
		v := c.Warmfleet(t, "run", c.PlanOf(t, "apply: auto\nlimits: {"+l.limit+"}", `{timeout: 20s, run: "`+l.step+`"}`), "--path", dir, "-o", "json").Exits(t, 3).View(t)
		if got := fleettest.Deref(v.Steps[0].Cause); got != l.cause {
			t.Errorf("%s: cause %q, want %q: %s", l.limit, got, l.cause, fleettest.Deref(v.Error))
		}
		fleettest.Unchanged(t, dir, before)
	}
	// The worker goes on, and so do checkpoints.
	v := c.Warmfleet(t, "run", c.PlanOf(t, "apply: never\nlimits: {disk_gb: 0.02}", `{run: "cat a; echo b >b", checkpoint: true}`), "--path", dir, "-o", "json").Exits(t, 0).View(t)
	if len(v.Checkpoints) < 2 {
		t.Errorf("checkpoints %+v, want one after the step", v.Checkpoints)
	}
	if cgroups == "none" {
		if v.Guarantees["pids"] != "enforced" || v.Guarantees["memory"] != "best_effort" || v.Guarantees["cpu"] != "absent" {
			t.Errorf("guarantees %v", v.Guarantees)
		}
		// What is absent is not asked for in vain.
		r := c.Warmfleet(t, "run", c.Plan(t, "apply: never\nlimits: {cpu_cores: 1}", "true"), "--path", dir).Exits(t, 10)
		if !strings.Contains(r.Stderr, "cpu") {
			t.Errorf("a limit that nothing here holds: %s", r.Stderr)
		}
	}
}
