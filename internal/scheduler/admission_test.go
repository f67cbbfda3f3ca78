package scheduler

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/pkg/events"
)

var epochStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func waitingPlan(age int, class string, r events.Resource) events.Fold {
	return events.Fold{State: events.StateAccepted, Class: class, Resource: r, Created: epochStart.Add(time.Duration(age) * time.Second)}
}

func pathWorker(name, host string, slots int, paths ...string) events.Worker {
	w := events.Worker{Name: name, Host: host, State: "ready", Slots: slots, Pools: map[string]string{"default": ""}}
	for _, p := range paths {
		w.Pools[events.PoolToken(host, p)] = p
	}
	return w
}

func ids(vs []verdict) (admitted []string) {
	for _, v := range vs {
		if v.pool != "" {
			admitted = append(admitted, v.id)
		}
	}
	return admitted
}

func TestAdmission_Order(t *testing.T) {
	a := newAdmission()
	a.workers["w"] = pathWorker("w", "h", 3)
	for i, class := range []string{"low", "normal", "high", "normal", "high", "low", "normal"} {
		a.observe(fmt.Sprint("p", i), waitingPlan(i, class, events.Resource{Repo: "r"}))
	}
	got := ids(a.decide())
	want := []string{"p2", "p4", "p1", "p3", "p6", "p0"} // 3 free slots, twice
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("admitted (-want +got):\n%s", d)
	}
	if again := ids(a.decide()); len(again) != 0 {
		t.Errorf("a full pool admitted %v", again)
	}
}

func TestAdmission_RoomFollowsTheLog(t *testing.T) {
	a := newAdmission()
	a.workers["w"] = pathWorker("w", "h", 1)
	for i := range 4 {
		a.observe(fmt.Sprint("p", i), waitingPlan(i, "normal", events.Resource{Repo: "r"}))
	}
	if got := ids(a.decide()); len(got) != 2 {
		t.Fatalf("admitted %v, want 2", got)
	}
	a.observe("p0", events.Fold{State: events.StateRunning, Held: true, Worker: "w"})
	if got := ids(a.decide()); len(got) != 0 {
		t.Errorf("admitted %v while the only slot is taken", got)
	}
	a.observe("p0", events.Fold{State: events.StateExecuted})
	if got, want := ids(a.decide()), []string{"p2"}; !cmp.Equal(got, want) {
		t.Errorf("admitted %v after a plan ended, want %v", got, want)
	}
}

func TestAdmission_Route(t *testing.T) {
	a := newAdmission()
	a.workers["a"] = pathWorker("a", "h1", 1, "/srv")
	a.workers["b"] = pathWorker("b", "h1", 1, "/srv/deep", "/srv/deeper")
	for _, tc := range []struct {
		name string
		r    events.Resource
		want verdict
	}{
		{"LongestEntryWins", events.Resource{Host: "h1", Path: "/srv/deep/x"}, verdict{pool: events.PoolToken("h1", "/srv/deep"), verb: events.VerbRun}},
		{"EntryItself", events.Resource{Host: "h1", Path: "/srv"}, verdict{pool: events.PoolToken("h1", "/srv"), verb: events.VerbRun}},
		{"NotAStringPrefix", events.Resource{Host: "h1", Path: "/srv/deepest"}, verdict{pool: events.PoolToken("h1", "/srv"), verb: events.VerbRun}},
		{"NotListed", events.Resource{Host: "h1", Path: "/etc"}, verdict{reject: "path /etc: no live worker of host h1 allows it: start one with --allow-path"}},
		{"NoWorkerOfHost", events.Resource{Host: "h2", Path: "/srv"}, verdict{waiting: "no live worker of host h2"}},
		{"Repo", events.Resource{Repo: "https://h/x.git"}, verdict{pool: "default", verb: events.VerbRun}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a.plans = map[string]*entry{}
			a.observe("p", waitingPlan(0, "normal", tc.r))
			tc.want.id = "p"
			got := a.decide()
			if len(got) != 1 || got[0] != tc.want {
				t.Errorf("decided %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestAdmission_ApprovedPlanIsAppliedAndRetriedWhenPublishingFailed(t *testing.T) {
	a := newAdmission()
	a.workers["w"] = pathWorker("w", "h", 1)
	a.observe("p", events.Fold{State: events.StateAwaitingApproval, Executed: true, Resource: events.Resource{Repo: "r"}})
	if got := a.decide(); len(got) != 0 {
		t.Fatalf("decided %+v before approval", got)
	}
	a.observe("p", events.Fold{State: events.StateApplying, Executed: true, Resource: events.Resource{Repo: "r"}})
	want := verdict{id: "p", pool: "default", verb: events.VerbApply}
	for range 2 {
		if got := a.decide(); len(got) != 1 || got[0] != want {
			t.Fatalf("decided %+v, want %+v", got, want)
		}
		a.withdraw("p")
	}
}
