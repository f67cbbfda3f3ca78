//go:build fault

package test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
)

// TestCrash_Collection kills the process that collects garbage, server included, at each of its points. After another
// start and another collection the store holds what it holds after one that nobody killed.
func TestCrash_Collection(t *testing.T) {
	s := newLittered(t)
	trace := filepath.Join(s.path("tmp"), "trace")
	var all []point
	if !t.Run("Whole", func(t *testing.T) {
		c := s.copied(t)
		c.serveBy(t, c.with("WARMFLEET_FAULT_TRACE="+trace), s.program, executedGoes...)
		c.collectAgain(t)
		s.judge(t, c)
		all = passages(t, trace)
	}) {
		return
	}
	// What the store was littered with is there so that all of these are passed.
	for _, name := range []string{
		"scheduler.gc", "checkpoint.dropped", "checkpoint.marked", "checkpoint.spared", "checkpoint.ripe", "checkpoint.reaped", "store.buried",
		"checkpoint.collected", "store.sweep", "store.swept", "store.tombstone", "checkpoint.leavings-gone", "checkpoint.noted", "scheduler.collected",
	} {
		if !slices.ContainsFunc(all, func(p point) bool { return p.name == name }) {
			t.Errorf("%s is not passed", name)
		}
	}
	t.Run("Killed", func(t *testing.T) {
		for _, p := range chosen(all, map[string]bool{}) {
			t.Run(strings.NewReplacer(":", "-", ".", "-").Replace(p.String()), func(t *testing.T) {
				t.Parallel()
				s.killedAt(t, p)
			})
		}
	})
	if d := layertest.Diff(snapshot(t, s.dir), s.before, layertest.Options{}); d != "" {
		t.Errorf("the original (-got +want):\n%s", tail(d, 4000))
	}
}

// executedGoes makes the checkpoints of an executed plan garbage at once.
var executedGoes = []string{"--keep-executed", "0s"}

// littered is the state of a fleet that was stopped, in which a collection finds one of everything.
type littered struct {
	*place
	program string // that is killed
	dir     string // the original of a plan that waits for approval
	before  layertest.Snapshot
	kept    []string // checkpoints
}

func newLittered(t *testing.T) *littered {
	t.Helper()
	faulty, err := faultyPrograms()
	must(t, err)
	c := &cluster{place: newPlace(t, self())}
	s := &littered{place: c.place, program: filepath.Join(faulty, "warmfleet")}
	c.serve(t, executedGoes...)
	w := c.worker(t, "w")
	s.dir = c.tree(t, "d", "head -c 300000 /dev/urandom >big")
	s.before = snapshot(t, s.dir)
	waits := c.submit(t, c.plan(t, "apply: manual\n"+resource(s.dir), random(50_000)))
	c.until(t, waits, "awaiting approval", isType(events.TypeAwaitingApproval))
	s.kept = c.checkpoints(t)

	gone := c.execute(t, s.dir)
	c.collect(t)
	c.execute(t, s.dir) // its records are over, too
	c.execute(t, s.dir)
	c.litter(t, waits, gone)
	w.signal(t, syscall.SIGTERM)
	w.exit(t, patience)
	c.up.signal(t, syscall.SIGTERM)
	c.up.exit(t, patience)
	return s
}

// execute runs a plan to its end and returns its last checkpoint.
func (c *cluster) execute(t *testing.T, dir string) checkpoint.Checkpoint {
	t.Helper()
	id := c.submit(t, c.planOf(t, "apply: never\n"+resource(dir), "{run: "+quoted(random(60_000))+", checkpoint: true}", "{run: "+quoted(random(70_000))+"}"))
	v := c.ended(t, id, events.StateExecuted)
	cp, err := checkpoint.Load(t.Context(), c.fleet.Checkpoints, v.Checkpoints[len(v.Checkpoints)-1].ID)
	must(t, err)
	return cp
}

// litter leaves a record of a writer that was killed, which names what was removed; a mark on what a record names; and
// chunks of uploads that nobody ended.
func (c *cluster) litter(t *testing.T, plan string, gone checkpoint.Checkpoint) {
	t.Helper()
	records, err := checkpoint.All(t.Context(), c.fleet.Checkpoints)
	must(t, err)
	for _, cp := range records {
		if cp.PlanID == plan && len(cp.Layers) > 0 {
			o, err := c.fleet.Store.Stat(t.Context(), cp.Layers[len(cp.Layers)-1].Name)
			must(t, err)
			if o.Marked.IsZero() {
				_, err = c.fleet.Store.(objectstore.Marker).Mark(t.Context(), o)
			}
			must(t, err)
		}
	}
	gone.ID, gone.PlanID = events.NewID(), plan
	b, err := json.Marshal(gone)
	must(t, err)
	_, err = c.fleet.Checkpoints.Create(t.Context(), gone.ID, b)
	must(t, err)
	for _, nuid := range []string{"one", "two", "two"} {
		_, err := c.fleet.JetStream.Publish(t.Context(), "$O."+c.fleet.Subjects.LayersBucket()+".C."+nuid, make([]byte, 10_000))
		must(t, err)
	}
}

// checkpoints are the ids of all records.
func (c *cluster) checkpoints(t *testing.T) (ids []string) {
	t.Helper()
	records, err := checkpoint.All(t.Context(), c.fleet.Checkpoints)
	must(t, err)
	for _, cp := range records {
		ids = append(ids, cp.ID)
	}
	slices.Sort(ids)
	return ids
}

// copied is another fleet in the same state.
func (s *littered) copied(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{place: newPlace(t, self())}
	c.do(t, "cp", "-a", s.path("ctl"), c.path("ctl"))
	c.do(t, "rm", c.path("ctl", "nats.env")) // its address is another fleet's
	return c
}

func (s *littered) killedAt(t *testing.T, p point) {
	c := s.copied(t)
	home := c.place
	c.serveBy(t, home.with("WARMFLEET_FAULT="+p.String()+":kill"), s.program, executedGoes...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	go func() {
		defer cancel()
		select {
		case <-c.up.ended:
		case <-ctx.Done():
		}
	}()
	if done, err := c.CollectGarbage(ctx, api.Collect{Grace: "0s"}); err != nil && ctx.Err() == nil {
		t.Fatalf("collected %+v: %v", done, err)
	}
	c.up.exit(t, patience)
	if ws := c.up.cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() {
		t.Fatalf("it ended with exit code %d, not by a signal", ws.ExitStatus())
	}
	c.serveBy(t, home, "warmfleet", executedGoes...)
	must(t, c.fleet.Leases.Delete(t.Context(), "gc", 0)) // the dead one's; it would go by itself
	c.collectAgain(t)
	s.judge(t, c)
	if !t.Failed() {
		c.up.signal(t, syscall.SIGTERM)
		c.up.exit(t, patience)
	}
}

// collectAgain collects without a grace. A scheduler that has just started may be at it.
func (c *cluster) collectAgain(t *testing.T) {
	t.Helper()
	eventually(t, "a collection", func() bool {
		_, err := c.CollectGarbage(t.Context(), api.Collect{Grace: "0s"})
		return err == nil
	})
}

// judge fails the test unless the store holds what has to stay, whole, and nothing else.
func (s *littered) judge(t *testing.T, c *cluster) {
	t.Helper()
	if got := c.checkpoints(t); !slices.Equal(got, s.kept) {
		t.Errorf("checkpoints %v, want %v", got, s.kept)
	}
	c.exact(t)
}
