package fleets

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// fileOf reads a file of a checkpoint's exported tree.
func fileOf(t testing.TB, c *fleettest.Cluster, id, name string) []byte {
	t.Helper()
	cp, err := checkpoint.Load(t.Context(), c.Fleet.Checkpoints, id)
	fleettest.Must(t, err)
	var out bytes.Buffer
	fleettest.Must(t, checkpoint.Export(t.Context(), cp, c.Fleet.Store, &out))
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			t.Fatalf("checkpoint %s has no file %s", id, name)
		}
		fleettest.Must(t, err)
		if strings.TrimPrefix(h.Name, "./") == name {
			b, err := io.ReadAll(r)
			fleettest.Must(t, err)
			return b
		}
	}
}

// Case I1: a checkpoint counts only after it was stored whole.
func TestCase_I1(t *testing.T) {
	t.Parallel()
	t.Run("ManyAtOnce", manyCheckpointsAtOnce)
	t.Run("KilledUploads", killedUploads)
}

func manyCheckpointsAtOnce(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Self())
	dir := c.Tree(t, "d", "echo x >a")
	for _, name := range []string{"w1", "w2", "w3"} {
		c.Worker(t, name)
	}
	const plans = 18
	file := c.Plan(t, "apply: never\n"+fleettest.Resource(dir), fleettest.RandomScript(1_200_000))
	var ids []string
	for range plans {
		ids = append(ids, c.Submit(t, file))
	}
	seen := map[string]bool{}
	for _, id := range ids {
		v := c.Ended(t, id, events.StateExecuted)
		last := v.Checkpoints[len(v.Checkpoints)-1].ID
		sum := sha256.Sum256(fileOf(t, c, last, "f"))
		got, want := hex.EncodeToString(sum[:]), strings.TrimSpace(string(fileOf(t, c, last, "sum")))
		if got != want || seen[got] {
			t.Errorf("plan %s: the file has digest %s, want %s and another than all before", id, got, want)
		}
		seen[got] = true
	}
	c.Collect(t)
	c.Exact(t)
}

func killedUploads(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Self())
	dir := c.Tree(t, "d", "echo x >a")
	file := c.Plan(t, "apply: never\nmax_attempts: 20\n"+fleettest.Resource(dir), fleettest.RandomScript(4_000_000))
	const kills = 4
	var ids []string
	for range kills {
		w := c.Worker(t, "w")
		before := c.LayersState(t).Bytes
		ids = append(ids, c.Submit(t, file))
		fleettest.Eventually(t, "an upload", func() bool { return c.LayersState(t).Bytes > before+700_000 })
		w.Kill(t)
	}
	c.Collect(t)
	c.Exact(t)
	c.Worker(t, "w")
	for _, id := range ids {
		c.Ended(t, id, events.StateExecuted)
	}
	c.Collect(t)
	c.Exact(t)
	if listed := len(c.LayersState(t).Subjects); listed < kills {
		t.Errorf("%d objects for %d plans", listed, kills)
	}
}

// Storage is bounded: what plans leave that were rolled back, applied or just run is gone
// once their time is over, to the byte.
func TestGC_BytesReturnToBase(t *testing.T) {
	t.Parallel()
	c := &fleettest.Cluster{Place: fleettest.NewPlace(t, fleettest.Self())}
	c.Serve(t, "--keep-applied", "0s", "--keep-executed", "0s", "--keep-failed", "0s")
	c.Worker(t, "w")
	dir := c.Tree(t, "d", "head -c 300000 /dev/urandom >big")
	waits := c.Submit(t, c.Plan(t, "apply: manual\n"+fleettest.Resource(dir), fleettest.RandomScript(50_000)))
	c.Until(t, waits, "awaiting approval", fleettest.IsType(events.TypeAwaitingApproval))
	c.Collect(t)
	c.Exact(t)
	base := c.LayersState(t)

	ends := map[string]string{}
	for i := range 30 {
		want, script := events.StateExecuted, fleettest.RandomScript(200_000)
		if i%3 == 0 {
			want, script = events.StateFailed, script+"; exit 7"
		}
		ends[c.Submit(t, c.PlanOf(t, "apply: never\n"+fleettest.Resource(dir),
			"{run: "+fleettest.Quoted(fleettest.RandomScript(100_000))+", checkpoint: true}", "{run: "+fleettest.Quoted(script)+"}"))] = want
	}
	for id, want := range ends {
		c.Ended(t, id, want)
	}
	if grown := c.LayersState(t).Bytes - base.Bytes; grown < 20*300_000 {
		t.Errorf("30 plans took %d bytes: the test proves nothing", grown)
	}
	if dry := c.Do(t, "warmfleet", "gc", "--grace", "0s", "--dry-run"); !strings.Contains(dry, "would remove") {
		t.Errorf("dry run: %s", dry)
	}
	fleettest.Eventually(t, "the records of 30 plans to be removed", func() bool { return c.Collect(t).Kept <= 3 })
	c.Exact(t)
	got := c.LayersState(t)
	if len(got.Subjects) != len(base.Subjects) || got.Bytes > base.Bytes+1000 {
		t.Errorf("%d objects in %d bytes, were %d in %d", len(got.Subjects), got.Bytes, len(base.Subjects), base.Bytes)
	}
	c.Do(t, "warmfleet", "plan", "approve", waits)
	c.Ended(t, waits, events.StateApplied)
}
