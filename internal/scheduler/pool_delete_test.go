package scheduler

import (
	"strings"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
)

func TestScheduler_PoolDelete(t *testing.T) {
	d := open(t)
	d.apply(t, poolBody)
	id := events.NewID()
	d.submit(t, id, pooled(""))
	if _, err := d.poolDelete(t.Context(), []byte("api")); errorCode(err) != api.CodeRefused {
		t.Errorf("delete under a waiting plan: %v", err)
	}
	w := poolWorker("w1", 1, "api")
	d.announce(t, w)
	del, cmd := d.buildOf(t, "api")
	d.built(t, del, cmd)
	if _, err := d.poolDelete(t.Context(), []byte(`{"name":"api","force":true}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.poolGet(t.Context(), []byte("api")); errorCode(err) != api.CodeNotFound {
		t.Errorf("show after rm: %v", err)
	}
	eventually(t, "the plan waits", func() bool {
		f, _ := d.index.get(id)
		return strings.Contains(f.Reason, "was removed")
	})
	delete(w.Pools, "api")
	d.announce(t, w)
	eventually(t, "the queue is gone", func() bool {
		has, err := d.fleet.Queue.HasPool(t.Context(), "api")
		return err == nil && !has
	})
	list, err := d.poolList(t.Context(), nil)
	if err != nil || len(list.([]api.Pool)) != 0 {
		eventually(t, "nothing is left of it", func() bool {
			list, err := d.poolList(t.Context(), nil)
			return err == nil && len(list.([]api.Pool)) == 0
		})
	}
	if got := d.apply(t, poolBody); !got.Changed {
		t.Errorf("applied again: %+v", got)
	}
}

// A pool that was removed goes also when the worker that built its image was killed, and when another leader had queued a plan.
func TestScheduler_PoolDeleteAfterItsWorkerDied(t *testing.T) {
	for _, tc := range []struct {
		name string
		next *events.Worker
	}{
		{"Gone", nil},
		{"AnotherOfItsName", ptr(poolWorker("w1", 1))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := open(t)
			d.apply(t, poolBody)
			w := poolWorker("w1", 1, "api")
			w.Started = time.Now().UTC()
			d.announce(t, w)
			_, cmd := d.buildOf(t, "api")
			d.change(t, "api", func(l *events.Latest) {
				l.Build = &events.Build{ID: cmd.PlanID, Worker: "w1", WorkerStarted: w.Started, Since: time.Now(), Attempt: 1}
			})
			plan := events.NewID()
			d.submit(t, plan, pooled(""))
			if err := d.fleet.Queue.Publish(t.Context(), events.NewCommand("api", events.VerbRun, plan)); err != nil {
				t.Fatal(err) // as an earlier leader did
			}
			if _, err := d.poolDelete(t.Context(), []byte(`{"name":"api","force":true}`)); err != nil {
				t.Fatal(err)
			}
			if tc.next == nil {
				if err := d.fleet.Workers.Delete(t.Context(), "w1", 0); err != nil {
					t.Fatal(err)
				}
			} else {
				tc.next.Started = w.Started.Add(time.Second)
				d.announce(t, *tc.next)
			}
			eventually(t, "nothing is left of the pool", func() bool {
				list, err := d.poolList(t.Context(), nil)
				has, failed := d.fleet.Queue.HasPool(t.Context(), "api")
				return err == nil && failed == nil && len(list.([]api.Pool)) == 0 && !has
			})
		})
	}
}
