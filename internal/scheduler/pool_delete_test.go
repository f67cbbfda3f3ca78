package scheduler

import (
	"encoding/json"
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

// A plan whose worker died with it ends with its pool, so that the pool goes; one whose apply has begun goes on once the pool is
// there again.
func TestScheduler_PoolDeleteUnderALostPlan(t *testing.T) {
	for _, tc := range []struct {
		name  string
		begun bool
		next  *events.Worker
	}{
		{"Gone", false, nil},
		{"Restarted", false, ptr(poolWorker("w1", 1))},
		{"Applying", true, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := open(t)
			d.apply(t, poolBody)
			w := poolWorker("w1", 1, "api")
			w.Started = time.Now().UTC()
			d.announce(t, w)
			del, cmd := d.buildOf(t, "api")
			d.built(t, del, cmd)
			id := events.NewID()
			d.submit(t, id, json.RawMessage(strings.Replace(string(pooled("")), `"never"`, `"auto"`, 1)))
			d.takes(t, events.VerbRun, id)
			holder, err := events.OpenWriter(t.Context(), d.fleet.Log, id, "/worker/w1")
			if err == nil {
				err = holder.Claim(t.Context(), events.Data{Worker: "w1"})
			}
			if err != nil {
				t.Fatal(err)
			}
			if tc.begun {
				changed := 1
				for _, typ := range []string{events.TypeExecuted, events.TypeApplyIntent} {
					if err := holder.Append(t.Context(), typ, events.Data{Changed: &changed}); err != nil {
						t.Fatal(err)
					}
				}
			}
			if _, err := d.poolDelete(t.Context(), []byte(`{"name":"api","force":true}`)); err != nil {
				t.Fatal(err)
			}
			if tc.next == nil {
				err = d.fleet.Workers.Delete(t.Context(), "w1", 0)
			} else {
				tc.next.Started = time.Now().UTC().Add(time.Second)
				d.announce(t, *tc.next)
			}
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "nothing is left of the pool", func() bool {
				list, err := d.poolList(t.Context(), nil)
				has, failed := d.fleet.Queue.HasPool(t.Context(), "api")
				return err == nil && failed == nil && len(list.([]api.Pool)) == 0 && !has
			})
			if !tc.begun {
				eventually(t, "the plan ends", func() bool { return d.state(id) == events.StateDead })
				if f, _ := d.index.get(id); f.Code != "pool_removed" || !strings.Contains(f.Error, "w1") {
					t.Errorf("the plan: %+v", f)
				}
				if err := holder.Append(t.Context(), events.TypeExecuted, events.Data{}); err == nil {
					t.Error("a worker that was only slow went on")
				}
				return
			}
			if got := d.state(id); got != events.StateApplying {
				t.Errorf("the plan is %s", got)
			}
			d.apply(t, poolBody)
			d.announce(t, poolWorker("w2", 1, "api"))
			d.takes(t, events.VerbApply, id)
		})
	}
}

// takes waits until the command of a plan of pool api is queued, and holds it.
func (d *desk) takes(t *testing.T, verb, id string) {
	t.Helper()
	eventually(t, verb+" is queued", func() bool {
		got, err := d.pull(t, "api")
		if err != nil {
			return false
		}
		cmd, err := got.Command()
		return err == nil && cmd.Verb == verb && cmd.PlanID == id
	})
}
