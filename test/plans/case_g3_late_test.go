package plans

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/internal/fleet"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// Case G3 (b): of 200 plans, each cancelled within 50 ms, every one has one final state; what a step did outside was done by a step that is
// shown as run, and none runs later.
func TestCase_G3_TwoHundred(t *testing.T) {
	t.Parallel()
	const plans, clients = 200, 4
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	o := fleettest.NewOutlet(t, c.Place)
	c.Worker(t, "w", "--slots", "4", "--expose", o.Dir)
	dir := c.Tree(t, "g3", "echo a >a")
	ids, refused := make([]string, plans), make([]error, plans)
	for i := range ids {
		ids[i] = events.NewID()
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	fleettest.Together(clients, func(n int) {
		random := rand.New(rand.NewPCG(seed, uint64(n)))
		for i := n; i < plans; i += clients {
			plan := map[string]any{
				"version": 1, "name": "g3", "apply": "never", "resource": map[string]string{"path": dir, "host": fleet.HostID("")},
				"steps": []map[string]string{{"run": "echo " + ids[i] + " >" + o.File}},
			}
			body, err := json.Marshal(plan)
			if err == nil {
				_, err = c.Client.Submit(t.Context(), events.Submission{V: 1, Type: "warmfleet.submit.v1", PlanID: ids[i], Plan: body})
			}
			if err != nil {
				t.Errorf("submit: %v", err)
				return
			}
			<-time.After(time.Duration(random.IntN(50)) * time.Millisecond)
			_, refused[i] = c.Client.Cancel(t.Context(), ids[i], "tester")
		}
	})
	states := map[string]int{}
	for i, id := range ids {
		v := c.Ends(t, id)
		states[v.State]++
		if n := c.Count(t, id, fleettest.IsFinal); n != 1 || v.State != events.StateCancelled && v.State != events.StateExecuted {
			t.Errorf("%s with %d final events, want one, cancelled or executed\n%s", v.State, n, c.Story(t, id))
		}
		if (refused[i] == nil) != (v.State == events.StateCancelled) {
			t.Errorf("%s, and its cancel was told %v", v.State, refused[i])
		}
	}
	c.QueueEmpties(t)
	c.Ended(t, c.Submit(t, c.Plan(t, "apply: never\n"+fleettest.Resource(dir), "echo last >"+o.File)), events.StateExecuted)
	fleettest.Eventually(t, "what steps wrote", func() bool { return strings.HasSuffix(o.Got(), "last") })
	ran := o.Got()
	for _, id := range ids {
		started := c.Count(t, id, fleettest.IsType(events.TypeStepStarted))
		if n := strings.Count(ran, id); n > started {
			t.Errorf("the step ran %d times and is shown as started %d times\n%s", n, started, c.Story(t, id))
		}
	}
	t.Log(states)
}

// lateCancel is a moment after a plan's steps.
type lateCancel struct {
	name, head, script string
	after              string // the event that it is counted from
	git                bool
}

var lateCancels = []lateCancel{
	{name: "Rollback", head: "apply: auto\n", script: "for i in $(seq 600); do echo $i >many/$i; done; rm a; exit 1", after: events.TypeStepFinished},
	{name: "RollbackInPlace", head: "apply: auto\nstrategy: none\n", script: "for i in $(seq 600); do echo $i >many/$i; done; rm a; exit 1", after: events.TypeStepFinished},
	{name: "Upload", head: "apply: auto\n", script: "head -c 40M /dev/urandom >big; rm a", after: events.TypeStepFinished},
	{name: "Apply", head: "apply: auto\n", script: "for i in $(seq 600); do echo new $i >many/$i; done; rm a", after: events.TypeExecuted},
	{name: "Intent", head: "apply: auto\n", script: "for i in $(seq 600); do echo new $i >many/$i; done; rm a", after: events.TypeApplyIntent},
	{name: "Commit", head: "apply: auto\n" + "commit: {message: by plan, branch: trunk}\nidentity: {name: By, email: by@example.com}\n", script: "for i in $(seq 600); do echo new $i >many/$i; done; rm a", after: events.TypeStepFinished, git: true},
}

// Case G3 (d): a cancel that comes while a plan is rolled back, uploaded or applied leaves the original as it was or as it is to be, every
// checkpoint whole, and one final state of which the canceller is told.
func TestCase_G3_Late(t *testing.T) {
	t.Parallel()
	for _, a := range fleettest.Accounts(t) {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			c := fleettest.StartCluster(t, a)
			c.Worker(t, "w", "--slots", "8")
			for _, l := range lateCancels {
				t.Run(l.name, func(t *testing.T) {
					var wait sync.WaitGroup
					for i, delay := range []time.Duration{0, 15, 90} {
						wait.Go(func() { cancelsLate(t, c, l, fmt.Sprint(l.name, i), delay*time.Millisecond) })
					}
					wait.Wait()
				})
			}
			c.QueueEmpties(t)
		})
	}
}

func cancelsLate(t *testing.T, c *fleettest.Cluster, l lateCancel, name string, delay time.Duration) {
	init := "echo a >a; mkdir many; for i in $(seq 200); do echo old >many/$i; done"
	if l.git {
		init += "; git init -q -b trunk .; git add -A; " + fleettest.GitIdentity + "commit -qm one"
	}
	dir := c.Tree(t, name, init)
	before := fleettest.Snapshot(t, dir)
	id := c.Submit(t, c.Plan(t, l.head+fleettest.Resource(dir), l.script))
	c.Until(t, id, l.after, func(e events.Event) bool { return e.Kind() == l.after || e.Data.Final })
	<-time.After(delay)
	done, refused := c.Client.Cancel(t.Context(), id, "tester")
	v := c.Ends(t, id)
	if n := c.Count(t, id, fleettest.IsFinal); n != 1 {
		t.Errorf("%d final events\n%s", n, c.Story(t, id))
	}
	// A request is no promise: a step that had failed before makes the plan failed.
	asked := refused == nil && done.State != events.StateCancelled && v.State == events.StateFailed
	if !asked && (refused == nil) != (v.State == events.StateCancelled) {
		t.Errorf("%s after %s, and the cancel was told %v, %v\n%s", v.State, delay, done, refused, c.Story(t, id))
	}
	switch v.State {
	case events.StateCancelled, events.StateFailed:
		fleettest.Untouched(t, dir, before)
		if fleettest.Deref(v.RolledBack) == "" {
			t.Errorf("%s, and it does not say what was rolled back", v.State)
		}
	case events.StateApplied:
		fleettest.Eventually(t, "the end of the journal", func() bool { return !fleettest.Exists(filepath.Join(dir, ".warmfleet-apply")) })
		if l.name == "Rollback" || l.name == "RollbackInPlace" || fleettest.Exists(filepath.Join(dir, "a")) {
			t.Errorf("applied, and a is %v", fleettest.Exists(filepath.Join(dir, "a")))
		}
		if entries, err := os.ReadDir(filepath.Join(dir, "many")); l.name != "Upload" && (err != nil || len(entries) != 600) {
			t.Errorf("applied %d of 600 files: %v", len(entries), err)
		}
	default:
		t.Errorf("got state %s\n%s", v.State, c.Story(t, id))
	}
	// What a worker has not stored yet can't be read elsewhere, and may never be.
	stored := func() (ids []string) {
		list, err := c.Client.Checkpoints(t.Context(), api.CheckpointFilter{Plan: id})
		fleettest.Must(t, err)
		for _, cp := range list {
			if cp.Portable {
				ids = append(ids, cp.ID)
			}
		}
		return ids
	}
	for _, cp := range stored() {
		if r := c.Warmfleet(t, "checkpoint", "verify", cp); r.Code != 0 && slices.Contains(stored(), cp) {
			t.Errorf("checkpoint %s: %s%s", cp, r.Stdout, r.Stderr)
		}
	}
}
