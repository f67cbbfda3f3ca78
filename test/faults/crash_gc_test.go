//go:build fault

package faults

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
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// TestCrash_Collection kills the process that collects garbage, server included, at each of its points. After another
// start and another collection the store holds what it holds after one that nobody killed.
func TestCrash_Collection(t *testing.T) {
	s := newLittered(t)
	trace := filepath.Join(s.Path("tmp"), "trace")
	var all []point
	if !t.Run("Whole", func(t *testing.T) {
		c := s.copied(t)
		c.ServeBy(t, c.With("WARMFLEET_FAULT_TRACE="+trace), s.program, executedGoes...)
		collectAgain(t, c)
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
	if d := layertest.Diff(fleettest.Snapshot(t, s.dir), s.before, layertest.Options{}); d != "" {
		t.Errorf("the original (-got +want):\n%s", fleettest.Tail(d, 4000))
	}
}

// executedGoes makes the checkpoints of an executed plan garbage at once.
var executedGoes = []string{"--keep-executed", "0s"}

// littered is the state of a fleet that was stopped, in which a collection finds one of everything.
type littered struct {
	*fleettest.Place
	program string // that is killed
	dir     string // the original of a plan that waits for approval
	before  layertest.Snapshot
	kept    []string // checkpoints
}

func newLittered(t *testing.T) *littered {
	t.Helper()
	c := &fleettest.Cluster{Place: fleettest.NewPlace(t, fleettest.Self())}
	s := &littered{Place: c.Place, program: filepath.Join(fleettest.FaultyBin(t), "warmfleet")}
	c.Serve(t, executedGoes...)
	w := c.Worker(t, "w")
	s.dir = c.Tree(t, "d", "head -c 300000 /dev/urandom >big")
	s.before = fleettest.Snapshot(t, s.dir)
	waits := c.Submit(t, c.Plan(t, "apply: manual\n"+fleettest.Resource(s.dir), fleettest.RandomScript(50_000)))
	c.Until(t, waits, "awaiting approval", fleettest.IsType(events.TypeAwaitingApproval))
	s.kept = checkpoints(t, c)

	gone := execute(t, c, s.dir)
	c.Collect(t)
	execute(t, c, s.dir) // its records are over, too
	execute(t, c, s.dir)
	litter(t, c, waits, gone)
	w.Signal(t, syscall.SIGTERM)
	w.Exit(t, fleettest.Patience)
	c.Up.Signal(t, syscall.SIGTERM)
	c.Up.Exit(t, fleettest.Patience)
	return s
}

// execute runs a plan to its end and returns its last checkpoint.
func execute(t *testing.T, c *fleettest.Cluster, dir string) checkpoint.Checkpoint {
	t.Helper()
	id := c.Submit(t, c.PlanOf(t, "apply: never\n"+fleettest.Resource(dir), "{run: "+fleettest.Quoted(fleettest.RandomScript(60_000))+", checkpoint: true}", "{run: "+fleettest.Quoted(fleettest.RandomScript(70_000))+"}"))
	v := c.Ended(t, id, events.StateExecuted)
	cp, err := checkpoint.Load(t.Context(), c.Fleet.Checkpoints, v.Checkpoints[len(v.Checkpoints)-1].ID)
	fleettest.Must(t, err)
	return cp
}

// litter leaves a record of a writer that was killed, which names what was removed; a mark on what a record names; and
// chunks of uploads that nobody ended.
func litter(t *testing.T, c *fleettest.Cluster, plan string, gone checkpoint.Checkpoint) {
	t.Helper()
	records, err := checkpoint.All(t.Context(), c.Fleet.Checkpoints)
	fleettest.Must(t, err)
	for _, cp := range records {
		if cp.PlanID == plan && len(cp.Layers) > 0 {
			o, err := c.Fleet.Store.Stat(t.Context(), cp.Layers[len(cp.Layers)-1].Name)
			fleettest.Must(t, err)
			if o.Marked.IsZero() {
				_, err = c.Fleet.Store.(objectstore.Marker).Mark(t.Context(), o)
			}
			fleettest.Must(t, err)
		}
	}
	gone.ID, gone.PlanID = events.NewID(), plan
	b, err := json.Marshal(gone)
	fleettest.Must(t, err)
	_, err = c.Fleet.Checkpoints.Create(t.Context(), gone.ID, b)
	fleettest.Must(t, err)
	for _, nuid := range []string{"one", "two", "two"} {
		_, err := c.Fleet.JetStream.Publish(t.Context(), "$O."+c.Fleet.Subjects.LayersBucket()+".C."+nuid, make([]byte, 10_000))
		fleettest.Must(t, err)
	}
}

// checkpoints are the ids of all records.
func checkpoints(t *testing.T, c *fleettest.Cluster) (ids []string) {
	t.Helper()
	records, err := checkpoint.All(t.Context(), c.Fleet.Checkpoints)
	fleettest.Must(t, err)
	for _, cp := range records {
		ids = append(ids, cp.ID)
	}
	slices.Sort(ids)
	return ids
}

// copied is another fleet in the same state.
func (s *littered) copied(t *testing.T) *fleettest.Cluster {
	t.Helper()
	c := &fleettest.Cluster{Place: fleettest.NewPlace(t, fleettest.Self())}
	c.Do(t, "cp", "-a", s.Path("ctl"), c.Path("ctl"))
	c.Do(t, "rm", c.Path("ctl", "nats.env")) // its address is another fleet's
	return c
}

func (s *littered) killedAt(t *testing.T, p point) {
	c := s.copied(t)
	home := c.Place
	c.ServeBy(t, home.With("WARMFLEET_FAULT="+p.String()+":kill"), s.program, executedGoes...)
	ctx, cancel := context.WithTimeout(t.Context(), fleettest.Patience)
	defer cancel()
	go func() {
		defer cancel()
		select {
		case <-c.Up.Ended:
		case <-ctx.Done():
		}
	}()
	if done, err := c.Client.CollectGarbage(ctx, api.Collect{Grace: "0s"}); err != nil && ctx.Err() == nil {
		t.Fatalf("collected %+v: %v", done, err)
	}
	c.Up.Exit(t, fleettest.Patience)
	if ws := c.Up.Cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() {
		t.Fatalf("it ended with exit code %d, not by a signal", ws.ExitStatus())
	}
	c.ServeBy(t, home, "warmfleet", executedGoes...)
	fleettest.Must(t, c.Fleet.Leases.Delete(t.Context(), "gc", 0)) // the dead one's; it would go by itself
	collectAgain(t, c)
	s.judge(t, c)
	if !t.Failed() {
		c.Up.Signal(t, syscall.SIGTERM)
		c.Up.Exit(t, fleettest.Patience)
	}
}

// collectAgain collects without a grace. A scheduler that has just started may be at it.
func collectAgain(t *testing.T, c *fleettest.Cluster) {
	t.Helper()
	fleettest.Eventually(t, "a collection", func() bool {
		_, err := c.Client.CollectGarbage(t.Context(), api.Collect{Grace: "0s"})
		return err == nil
	})
}

// judge fails the test unless the store holds what has to stay, whole, and nothing else.
func (s *littered) judge(t *testing.T, c *fleettest.Cluster) {
	t.Helper()
	if got := checkpoints(t, c); !slices.Equal(got, s.kept) {
		t.Errorf("checkpoints %v, want %v", got, s.kept)
	}
	c.Exact(t)
}
