package test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// layersState is what the object store's stream holds: messages of chunks by object, and all bytes.
func (c *cluster) layersState(t testing.TB) jetstream.StreamState {
	t.Helper()
	s, err := c.fleet.JetStream.Stream(t.Context(), "OBJ_"+c.fleet.Subjects.LayersBucket())
	must(t, err)
	info, err := s.Info(t.Context(), jetstream.WithSubjectFilter("$O."+c.fleet.Subjects.LayersBucket()+".C.>"))
	must(t, err)
	return info.State
}

// collect runs `warmfleet gc` without a grace.
func (c *cluster) collect(t testing.TB) api.Collected {
	t.Helper()
	var done api.Collected
	must(t, json.Unmarshal([]byte(c.do(t, "warmfleet", "gc", "--grace", "0s", "-o", "json")), &done))
	return done
}

// exact fails the test unless the store holds what the listed checkpoints name, whole, and nothing else.
func (c *cluster) exact(t testing.TB) {
	t.Helper()
	records, err := checkpoint.All(t.Context(), c.fleet.Checkpoints)
	must(t, err)
	want := map[string]bool{}
	for _, cp := range records {
		for _, ref := range append(append([]checkpoint.LayerRef{}, cp.Base...), cp.Layers...) {
			want[ref.Name] = true
		}
		if cp.Delta != "" {
			want[cp.Delta] = true
		}
	}
	objects, err := c.fleet.Store.List(t.Context())
	must(t, err)
	for _, o := range objects {
		if !want[o.Name] {
			t.Errorf("no checkpoint names the object %s", o.Name)
		}
		delete(want, o.Name)
	}
	for name := range want {
		t.Errorf("checkpoints name %s, which is not there", name)
	}
	if got := len(c.layersState(t).Subjects); got != len(objects) {
		t.Errorf("the store holds chunks of %d objects, has %d", got, len(objects))
	}
	if r := c.warmfleet(t, "verify", "--read-data-subset", "1/1"); r.code != 0 {
		t.Errorf("verify: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}

// file reads a file of a checkpoint's exported tree.
func (c *cluster) file(t testing.TB, id, name string) []byte {
	t.Helper()
	cp, err := checkpoint.Load(t.Context(), c.fleet.Checkpoints, id)
	must(t, err)
	var out bytes.Buffer
	must(t, checkpoint.Export(t.Context(), cp, c.fleet.Store, &out))
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			t.Fatalf("checkpoint %s has no file %s", id, name)
		}
		must(t, err)
		if strings.TrimPrefix(h.Name, "./") == name {
			b, err := io.ReadAll(r)
			must(t, err)
			return b
		}
	}
}

// random is a step that writes a file of so many bytes and its digest.
func random(size int) string {
	return fmt.Sprintf("head -c %d /dev/urandom >f; sha256sum <f | cut -c1-64 >sum", size)
}

// Case I1: a checkpoint counts only after it was stored whole.
func TestCase_I1(t *testing.T) {
	t.Run("ManyAtOnce", manyCheckpointsAtOnce)
	t.Run("KilledUploads", killedUploads)
}

func manyCheckpointsAtOnce(t *testing.T) {
	t.Parallel()
	c := startCluster(t, self())
	dir := c.tree(t, "d", "echo x >a")
	for _, name := range []string{"w1", "w2", "w3"} {
		c.worker(t, name)
	}
	const plans = 18
	file := c.plan(t, "apply: never\n"+resource(dir), random(1_200_000))
	var ids []string
	for range plans {
		ids = append(ids, c.submit(t, file))
	}
	seen := map[string]bool{}
	for _, id := range ids {
		v := c.ended(t, id, events.StateExecuted)
		last := v.Checkpoints[len(v.Checkpoints)-1].ID
		sum := sha256.Sum256(c.file(t, last, "f"))
		got, want := hex.EncodeToString(sum[:]), strings.TrimSpace(string(c.file(t, last, "sum")))
		if got != want || seen[got] {
			t.Errorf("plan %s: the file has digest %s, want %s and another than all before", id, got, want)
		}
		seen[got] = true
	}
	c.collect(t)
	c.exact(t)
}

func killedUploads(t *testing.T) {
	t.Parallel()
	c := startCluster(t, self())
	dir := c.tree(t, "d", "echo x >a")
	file := c.plan(t, "apply: never\nmax_attempts: 20\n"+resource(dir), random(4_000_000))
	const kills = 4
	var ids []string
	for range kills {
		w := c.worker(t, "w")
		before := c.layersState(t).Bytes
		ids = append(ids, c.submit(t, file))
		eventually(t, "an upload", func() bool { return c.layersState(t).Bytes > before+700_000 })
		w.kill(t)
	}
	c.collect(t)
	c.exact(t)
	c.worker(t, "w")
	for _, id := range ids {
		c.ended(t, id, events.StateExecuted)
	}
	c.collect(t)
	c.exact(t)
	if listed := len(c.layersState(t).Subjects); listed < kills {
		t.Errorf("%d objects for %d plans", listed, kills)
	}
}

// Storage is bounded: what plans leave that were rolled back, applied or just run is gone
// once their time is over, to the byte.
func TestGC_BytesReturnToBase(t *testing.T) {
	t.Parallel()
	c := &cluster{place: newPlace(t, self())}
	c.serve(t, "--keep-applied", "0s", "--keep-executed", "0s", "--keep-failed", "0s")
	c.worker(t, "w")
	dir := c.tree(t, "d", "head -c 300000 /dev/urandom >big")
	waits := c.submit(t, c.plan(t, "apply: manual\n"+resource(dir), random(50_000)))
	c.until(t, waits, "awaiting approval", isType(events.TypeAwaitingApproval))
	c.collect(t)
	c.exact(t)
	base := c.layersState(t)

	ends := map[string]string{}
	for i := range 30 {
		want, script := events.StateExecuted, random(200_000)
		if i%3 == 0 {
			want, script = events.StateFailed, script+"; exit 7"
		}
		ends[c.submit(t, c.planOf(t, "apply: never\n"+resource(dir),
			"{run: "+quoted(random(100_000))+", checkpoint: true}", "{run: "+quoted(script)+"}"))] = want
	}
	for id, want := range ends {
		c.ended(t, id, want)
	}
	if grown := c.layersState(t).Bytes - base.Bytes; grown < 20*300_000 {
		t.Errorf("30 plans took %d bytes: the test proves nothing", grown)
	}
	if dry := c.do(t, "warmfleet", "gc", "--grace", "0s", "--dry-run"); !strings.Contains(dry, "would remove") {
		t.Errorf("dry run: %s", dry)
	}
	eventually(t, "the records of 30 plans to be removed", func() bool { return c.collect(t).Kept <= 3 })
	c.exact(t)
	got := c.layersState(t)
	if len(got.Subjects) != len(base.Subjects) || got.Bytes > base.Bytes+1000 {
		t.Errorf("%d objects in %d bytes, were %d in %d", len(got.Subjects), got.Bytes, len(base.Subjects), base.Bytes)
	}
	c.do(t, "warmfleet", "plan", "approve", waits)
	c.ended(t, waits, events.StateApplied)
}
