package checkpoint_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/events/eventstest"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
	"github.com/warmfleet/warmfleet/pkg/objectstore/objectstoretest"
)

// depot is a fleet's object store on a real server, whose stored messages a test can damage.
type depot struct {
	js      jetstream.JetStream
	bucket  string
	store   *objectstore.JetStream
	records kv.Store
}

func newDepot(t *testing.T) depot {
	t.Helper()
	js := eventstest.Connect(t, eventstest.Start(t))
	if err := events.Declare(t.Context(), js, events.Options{}); err != nil {
		t.Fatal(err)
	}
	subjects, err := events.NewSubjects("")
	if err != nil {
		t.Fatal(err)
	}
	d := depot{js: js, bucket: subjects.LayersBucket()}
	if d.store, err = objectstore.NewJetStream(js, objectstore.Options{Bucket: d.bucket, ChunkSize: 32 << 10}); err != nil {
		t.Fatal(err)
	}
	if d.records, err = kv.Open(t.Context(), js, subjects.Buckets().Checkpoints); err != nil {
		t.Fatal(err)
	}
	return d
}

// rechunk replaces the stored chunks of an object by what change makes of them.
func (d depot) rechunk(t *testing.T, name string, change func(chunks [][]byte) [][]byte) {
	t.Helper()
	ob, err := d.js.ObjectStore(t.Context(), d.bucket)
	if err != nil {
		t.Fatal(err)
	}
	info, err := ob.GetInfo(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := d.js.Stream(t.Context(), "OBJ_"+d.bucket)
	if err != nil {
		t.Fatal(err)
	}
	subject := "$O." + d.bucket + ".C." + info.NUID
	var chunks [][]byte
	for seq := uint64(0); ; {
		m, err := stream.GetMsg(t.Context(), seq+1, jetstream.WithGetMsgSubject(subject))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		chunks, seq = append(chunks, m.Data), m.Sequence
	}
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject(subject)); err != nil {
		t.Fatal(err)
	}
	for _, c := range change(chunks) {
		if _, err := d.js.PublishMsg(t.Context(), &nats.Msg{Subject: subject, Data: c}); err != nil {
			t.Fatal(err)
		}
	}
}

func (d depot) edit(t *testing.T, id string, change func(*checkpoint.Checkpoint)) {
	t.Helper()
	cp, err := checkpoint.Load(t.Context(), d.records, id)
	if err != nil {
		t.Fatal(err)
	}
	change(&cp)
	b, err := json.Marshal(cp)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.records.Put(t.Context(), id, b); err != nil {
		t.Fatal(err)
	}
}

// A bad object is found, refused where it is to be used, and stored anew by who has its layer.
func TestVerify_FindsDamage(t *testing.T) {
	for name, tc := range map[string]struct {
		damage func(t *testing.T, d depot, cp checkpoint.Checkpoint)
		kind   string
		refuse error
		healed bool // by storing the layer again
	}{
		"FlippedByte": {func(t *testing.T, d depot, cp checkpoint.Checkpoint) {
			d.rechunk(t, cp.Layers[0].Name, func(c [][]byte) [][]byte {
				c[1][7] ^= 1
				return c
			})
		}, checkpoint.ProblemCorrupt, checkpoint.ErrBadLayer, true},
		"DeletedChunk": {func(t *testing.T, d depot, cp checkpoint.Checkpoint) {
			d.rechunk(t, cp.Layers[0].Name, func(c [][]byte) [][]byte { return c[1:] })
		}, checkpoint.ProblemCorrupt, checkpoint.ErrBadLayer, true},
		"Truncated": {func(t *testing.T, d depot, cp checkpoint.Checkpoint) {
			d.rechunk(t, cp.Layers[0].Name, func(c [][]byte) [][]byte {
				c[len(c)-1] = c[len(c)-1][:10]
				return c
			})
		}, checkpoint.ProblemCorrupt, checkpoint.ErrBadLayer, true},
		"Swapped": {func(t *testing.T, d depot, cp checkpoint.Checkpoint) {
			d.rechunk(t, cp.Layers[0].Name, func(c [][]byte) [][]byte {
				c[0], c[1] = c[1], c[0]
				return c
			})
		}, checkpoint.ProblemCorrupt, checkpoint.ErrBadLayer, true},
		"Gone": {func(t *testing.T, d depot, cp checkpoint.Checkpoint) {
			if err := d.store.Delete(t.Context(), cp.Layers[0].Name); err != nil {
				t.Fatal(err)
			}
		}, checkpoint.ProblemMissing, checkpoint.ErrMissingLayer, true},
		"AnotherLayersBytes": {func(t *testing.T, d depot, cp checkpoint.Checkpoint) {
			if err := d.store.Delete(t.Context(), cp.Layers[0].Name); err != nil {
				t.Fatal(err)
			}
			if _, err := d.store.Put(t.Context(), cp.Layers[0].Name, strings.NewReader("no layer")); err != nil {
				t.Fatal(err)
			}
		}, checkpoint.ProblemCorrupt, checkpoint.ErrBadLayer, true},
		"WrongSizeInRecord": {func(t *testing.T, d depot, cp checkpoint.Checkpoint) {
			d.edit(t, cp.ID, func(c *checkpoint.Checkpoint) { c.Layers[0].Size-- })
		}, checkpoint.ProblemDiffers, checkpoint.ErrBadLayer, false},
		"WrongDigestInRecord": {func(t *testing.T, d depot, cp checkpoint.Checkpoint) {
			d.edit(t, cp.ID, func(c *checkpoint.Checkpoint) {
				c.Layers[0].Digest = strings.Replace(c.Layers[0].Digest, "sha256:", "sha256:0", 1)[:71]
			})
		}, checkpoint.ProblemDiffers, checkpoint.ErrBadLayer, false},
		"TarTooLong": {func(t *testing.T, d depot, cp checkpoint.Checkpoint) {
			d.edit(t, cp.ID, func(c *checkpoint.Checkpoint) { c.Layers[0].TarSize -= 512 })
		}, checkpoint.ProblemDiffers, checkpoint.ErrBadLayer, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDepot(t)
			first := newDesk(t, d.store, d.records)
			content := string(objectstoretest.Bytes(1, 150_000))
			good, cp := first.put(t, "p", "good"), first.put(t, "p", content)
			tc.damage(t, d, cp)

			_, err := newDesk(t, d.store, d.records).manager.Restore(t.Context(), cp.ID)
			if !errors.Is(err, tc.refuse) || strings.Contains(err.Error(), "\n") {
				t.Errorf("restore: %v, want one line of %v", err, tc.refuse)
			}
			found, err := checkpoint.VerifyOne(t.Context(), d.store, d.records, cp.ID)
			checkProblem(t, found, err, checkpoint.Problem{Kind: tc.kind, Object: cp.Layers[0].Name, Checkpoints: []string{cp.ID}})
			found, err = checkpoint.Verify(t.Context(), d.store, d.records, checkpoint.Part{N: 1, T: 1})
			checkProblem(t, found, err, checkpoint.Problem{Kind: tc.kind, Object: cp.Layers[0].Name, Checkpoints: []string{cp.ID}})
			if _, err := newDesk(t, d.store, d.records).manager.Restore(t.Context(), cp.ID); !errors.Is(err, tc.refuse) {
				t.Errorf("restore after it was found: %v, want %v", err, tc.refuse)
			}
			if r, err := newDesk(t, d.store, d.records).manager.Restore(t.Context(), good.ID); err != nil {
				t.Errorf("restore of another: %v", err)
			} else {
				r.Release()
			}
			if !tc.healed {
				return
			}
			newDesk(t, d.store, d.records).put(t, "p", content)
			first.sound(t, 3)
			if r, err := newDesk(t, d.store, d.records).manager.Restore(t.Context(), cp.ID); err != nil {
				t.Errorf("restore after the layer was stored anew: %v", err)
			} else {
				r.Release()
			}
		})
	}
}

func checkProblem(t *testing.T, found checkpoint.Verified, err error, want checkpoint.Problem) {
	t.Helper()
	if err != nil || len(found.Problems) != 1 {
		t.Fatalf("verified %+v, %v, want one problem", found, err)
	}
	got := found.Problems[0]
	if got.What == "" || strings.Contains(got.What, "\n") {
		t.Errorf("described as %q, want one line", got.What)
	}
	got.What = ""
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("problem: got - want +\n%s", diff)
	}
}

// The parts are disjoint and complete, and the same over time.
func TestVerify_PartsCoverAllOnce(t *testing.T) {
	d := newDesk(t, objectstore.NewMemory(), kv.NewMemory())
	const n, parts = 30, 7
	for i := range n {
		d.put(t, "p", strings.Repeat("x", i+1))
	}
	if _, err := d.store.Put(t.Context(), "orphan", strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	total := 0
	for i := range parts {
		found, err := checkpoint.Verify(t.Context(), d.store, d.records, checkpoint.Part{N: i + 1, T: parts})
		if err != nil || len(found.Problems) > 0 || !slices.Equal(found.Orphans, []string{"orphan"}) {
			t.Errorf("part %d: %+v, %v", i+1, found, err)
		}
		if found.Read == n {
			t.Errorf("part %d is everything", i+1)
		}
		total += found.Read
	}
	if total != n {
		t.Errorf("%d parts read %d objects, want each of %d once", parts, total, n)
	}
	if found, err := checkpoint.Verify(t.Context(), d.store, d.records, checkpoint.Part{}); err != nil || found.Read != 0 || found.Objects != n {
		t.Errorf("without a part: %+v, %v", found, err)
	}
}

func TestParsePart(t *testing.T) {
	for text, want := range map[string]checkpoint.Part{"1/1": {N: 1, T: 1}, "3/7": {N: 3, T: 7}} {
		if got, err := checkpoint.ParsePart(text); err != nil || got != want {
			t.Errorf("%q: got %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "1", "0/3", "4/3", "-1/3", "1/0", "a/b", "1/2/3", "50%"} {
		if got, err := checkpoint.ParsePart(text); err == nil {
			t.Errorf("%q: got %+v, want an error", text, got)
		}
	}
}

// Another build may compress the same tar to other bytes under the same name: the record says
// what is stored, and what an older record says does not keep the layer from being used.
func TestStore_RecordsTheStoredBytesOfTheSameLayer(t *testing.T) {
	store, records := objectstore.NewMemory(), kv.NewMemory()
	content := strings.Repeat("the same content ", 1000)
	before := newDesk(t, store, records).put(t, "p", content)
	name := before.Layers[0].Name
	plain, err := objectstoretest.ReadAll(t.Context(), store, name)
	if err != nil {
		t.Fatal(err)
	}
	other := recompressed(t, plain)
	if err := store.Delete(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	info, err := store.Put(t.Context(), name, bytes.NewReader(other))
	if err != nil {
		t.Fatal(err)
	}
	after := newDesk(t, store, records).put(t, "p", content)
	if got, want := after.Layers[0], (checkpoint.LayerRef{Name: name, Size: info.Size, TarSize: before.Layers[0].TarSize, Digest: info.Digest}); got != want {
		t.Errorf("recorded %+v, want %+v", got, want)
	}
	if after.SizeBytes != info.Size {
		t.Errorf("size %d, want %d", after.SizeBytes, info.Size)
	}
	d := newDesk(t, store, records)
	d.sound(t, 2)
	for _, id := range []string{before.ID, after.ID} {
		r, err := newDesk(t, store, records).manager.Restore(t.Context(), id)
		if err != nil {
			t.Errorf("restore: %v", err)
			continue
		}
		r.Release()
	}
}

func TestStore_PlanBudget(t *testing.T) {
	d := newDesk(t, objectstore.NewMemory(), kv.NewMemory())
	tight := budgeted(t, d, 50_000)
	if _, err := tight.manager.Store(t.Context(), tight.keep(t, "p", "small").ID); err != nil {
		t.Fatal(err)
	}
	big := tight.keep(t, "p", string(objectstoretest.Bytes(1, 60_000)))
	if _, err := tight.manager.Store(t.Context(), big.ID); !errors.Is(err, checkpoint.ErrBudget) {
		t.Errorf("store beyond the budget: %v, want %v", err, checkpoint.ErrBudget)
	}
	d.sound(t, 1)
	if got := d.names(t); len(got) != 1 {
		t.Errorf("%d objects, want none of what was refused", len(got))
	}
}

// recompressed is the same tar in another zstd frame.
func recompressed(t *testing.T, packed []byte) []byte {
	t.Helper()
	dec, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dec.Close()
	plain, err := dec.DecodeAll(packed, nil)
	if err != nil {
		t.Fatal(err)
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBetterCompression))
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close()
	other := enc.EncodeAll(plain, nil)
	if bytes.Equal(other, packed) {
		t.Fatal("both levels compress to the same bytes")
	}
	return other
}

// On a server: a reader in the middle of a layer that is collected finishes or learns that it is
// gone, at once; what others need stays, and nothing of the rest.
func TestCollect_OnAServer(t *testing.T) {
	d := newDepot(t)
	desk := newDesk(t, d.store, d.records)
	kept, goes := desk.put(t, "keeps", "kept"), desk.put(t, "goes", string(objectstoretest.Bytes(2, 3<<20)))
	r, err := d.store.Get(t.Context(), goes.Layers[0].Name)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.CopyN(io.Discard, r, 1000); err != nil {
		t.Fatal(err)
	}
	c := checkpoint.Collection{Fate: func(c checkpoint.Checkpoint, written time.Time) checkpoint.Fate {
		if c.PlanID == "goes" {
			return checkpoint.Fate{Until: written}
		}
		return checkpoint.Fate{Pinned: true}
	}}
	if done := desk.collect(t, c); len(done.Checkpoints) != 1 || done.Objects != 1 || done.Bytes != goes.SizeBytes {
		t.Errorf("collected %+v, want the one layer of %d bytes", done, goes.SizeBytes)
	}
	start := time.Now()
	if _, err := io.Copy(io.Discard, r); err != nil && !errors.Is(err, objectstore.ErrCorrupt) {
		t.Errorf("the reader: %v, want %v", err, objectstore.ErrCorrupt)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("the reader took %v", took)
	}
	desk.sound(t, 1)
	if got := desk.names(t); !slices.Equal(got, []string{kept.Layers[0].Name}) {
		t.Errorf("objects %v, want %s alone", got, kept.Layers[0].Name)
	}
	stream, err := d.js.Stream(t.Context(), "OBJ_"+d.bucket)
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n != 2 {
		t.Errorf("%d messages are left, want a chunk and a record", n)
	}
}
