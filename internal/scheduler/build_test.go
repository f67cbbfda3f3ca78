package scheduler

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/image"
)

// An image that is gone, in whatever part, is told on its pool and built anew from a clone; until then plans wait.
func TestScheduler_ImageGone(t *testing.T) {
	for _, tc := range []struct {
		name string
		lose func(t *testing.T, d *desk, i events.Image)
	}{
		{"Record", func(t *testing.T, d *desk, i events.Image) {
			if _, err := d.imageDelete(t.Context(), []byte(i.ID)); errorCode(err) != api.CodeRefused {
				t.Errorf("image rm of the one that a pool starts from: %v", err)
			}
			if _, err := d.imageDelete(t.Context(), []byte(`{"id":"`+i.ID+`","force":true}`)); err != nil {
				t.Fatal(err)
			}
		}},
		{"Checkpoint", func(t *testing.T, d *desk, i events.Image) {
			if _, err := d.checkpointDelete(t.Context(), []byte(i.Checkpoint)); errorCode(err) != api.CodeRefused || !strings.Contains(err.Error(), "pool api") {
				t.Errorf("checkpoint rm of the one that a pool starts from: %v", err)
			}
			if _, err := d.checkpointDelete(t.Context(), []byte(`{"id":"`+i.Checkpoint+`","force":true}`)); err != nil {
				t.Fatal(err)
			}
		}},
		{"CheckpointBehindOurBack", func(t *testing.T, d *desk, i events.Image) {
			if err := d.fleet.Checkpoints.Delete(t.Context(), i.Checkpoint, 0); err != nil {
				t.Fatal(err)
			}
		}},
		{"LayerAsAWorkerFinds", func(t *testing.T, d *desk, i events.Image) {
			w := poolWorker("w1", 1, "api")
			w.Warm = map[string]events.Warm{"api": {Lost: i.ID, Error: "layer missing"}}
			d.announce(t, w)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := open(t)
			d.apply(t, poolBody)
			d.announce(t, poolWorker("w1", 1, "api"))
			del, cmd := d.buildOf(t, "api")
			d.built(t, del, cmd)
			eventually(t, "the pool is ready", func() bool { return d.shown(t, "api").State == poolReady })
			i, err := d.loadImage(t.Context(), cmd.PlanID)
			if err != nil {
				t.Fatal(err)
			}
			d.change(t, "api", func(l *events.Latest) { l.Asked.At = time.Now().Add(-image.FirstRetry + 3*time.Second) })
			tc.lose(t, d, i)
			eventually(t, "the pool says what is gone", func() bool {
				return strings.Contains(d.shown(t, "api").Error, "image "+i.ID+" was deleted, or something of it was")
			})
			id := events.NewID()
			d.submit(t, id, pooled(""))
			eventually(t, "a plan waits for another image", func() bool {
				f, _ := d.index.get(id)
				return strings.Contains(f.Reason, "has no image yet")
			})
			del, again := d.buildOf(t, "api")
			var params events.BuildParams
			if err := json.Unmarshal(again.Params, &params); err != nil || !params.Scratch || !params.Force {
				t.Errorf("params %s, want a build from a clone", again.Params)
			}
			d.announce(t, poolWorker("w1", 1, "api"))
			d.built(t, del, again)
			eventually(t, "the pool is ready", func() bool { p := d.shown(t, "api"); return p.State == poolReady && p.Error == "" })
		})
	}
}

// What cannot be read of one image is no word on it, and no harm to another.
func TestScheduler_UnreadableCheckpointIsNotLost(t *testing.T) {
	d := open(t)
	d.apply(t, poolBody)
	d.announce(t, poolWorker("w1", 1, "api"))
	del, cmd := d.buildOf(t, "api")
	d.built(t, del, cmd)
	i, err := d.loadImage(t.Context(), cmd.PlanID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.fleet.Checkpoints.Put(t.Context(), i.Checkpoint, []byte("{")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the image is known", func() bool { return d.pools.get("api").built })
	if err := d.findLost(t.Context()); err == nil || !d.pools.get("api").built {
		t.Errorf("got %v, built %v", err, d.pools.get("api").built)
	}
}

// Another file begins anew: failures of the last one don't make it wait.
func TestScheduler_FailuresOfAnotherFile(t *testing.T) {
	d := open(t)
	d.apply(t, poolBody)
	d.announce(t, poolWorker("w1", 1, "api"))
	del, cmd := d.buildOf(t, "api")
	d.change(t, "api", func(l *events.Latest) { l.Error, l.Failures, l.FailedAt = "x", 7, time.Now() })
	if err := del.Ack(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.apply(t, strings.Replace(poolBody, "}}", `},"target_size":1}`, 1))
	del, next := d.buildOf(t, "api")
	if next.PlanID == cmd.PlanID {
		t.Error("the same build again")
	}
	if p, err := d.freshPool(t.Context(), events.Pool{Name: "api", Spec: []byte(poolBody)}); err != nil || p.latest.Failures != 0 {
		t.Errorf("%d failures, %v, want none", p.latest.Failures, err)
	}
	if err := del.Ack(t.Context()); err != nil {
		t.Fatal(err)
	}
}
