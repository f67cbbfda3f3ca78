package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/poolfile"
)

const poolBody = `{"version":1,"name":"api","resource":{"repo":"/srv/api.git","ref":"main"}}`

// apply applies a pool file.
func (d *desk) apply(t *testing.T, file string) api.PoolChanged {
	t.Helper()
	b, err := json.Marshal(api.PoolApply{Spec: json.RawMessage(file)})
	if err != nil {
		t.Fatal(err)
	}
	done, err := d.poolApply(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	return done.(api.PoolChanged)
}

func (d *desk) shown(t *testing.T, name string) api.Pool {
	t.Helper()
	p, err := d.poolGet(t.Context(), []byte(name))
	if err != nil {
		t.Fatal(err)
	}
	return p.(api.Pool)
}

// buildOf waits for the build command of a pool.
func (d *desk) buildOf(t *testing.T, name string) (events.Delivery, events.Command) {
	t.Helper()
	got, err := d.pull(t, name)
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := got.Command()
	if err != nil || cmd.Verb != events.VerbBuild {
		t.Fatalf("command %+v, %v, want a build", cmd, err)
	}
	return got, cmd
}

// built records an image as the worker that built it does, and acknowledges the command.
func (d *desk) built(t *testing.T, from events.Delivery, cmd events.Command) {
	t.Helper()
	var params events.BuildParams
	if err := json.Unmarshal(cmd.Params, &params); err != nil {
		t.Fatal(err)
	}
	cp := events.NewID()
	d.record(t, d.fleet.Checkpoints, cp, checkpoint.Checkpoint{ID: cp, Phase: checkpoint.Image, Portable: true})
	d.record(t, d.fleet.Images, cmd.PlanID, events.Image{ID: cmd.PlanID, Pool: cmd.Pool, Commit: "c1", Checkpoint: cp})
	d.change(t, cmd.Pool, func(l *events.Latest) {
		l.Image, l.Commit, l.BuiltAt, l.Generation, l.Error, l.Failures = cmd.PlanID, "c1", time.Now(), params.Generation, "", 0
	})
	if err := from.Ack(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// record stores a record.
func (d *desk) record(t *testing.T, bucket kv.Bucket, key string, v any) {
	t.Helper()
	b, err := json.Marshal(v)
	if err == nil {
		_, err = bucket.Create(t.Context(), key, b)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (d *desk) change(t *testing.T, name string, do func(*events.Latest)) {
	t.Helper()
	err := d.changeLatest(t.Context(), name, func(l *events.Latest) error {
		do(l)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func poolWorker(name string, slots int, pools ...string) events.Worker {
	w := pathWorker(name, "h1", slots)
	for _, p := range pools {
		w.Pools[p] = ""
	}
	return w
}

func TestScheduler_PoolApplyTwiceChangesNothing(t *testing.T) {
	d := open(t)
	if got, want := d.apply(t, poolBody), (api.PoolChanged{Name: "api", Generation: 1, Changed: true, State: "applied"}); got != want {
		t.Errorf("first apply: %+v, want %+v", got, want)
	}
	first, err := d.fleet.Pools.Get(t.Context(), "api")
	if err != nil {
		t.Fatal(err)
	}
	spaced := strings.Replace(strings.ReplaceAll(poolBody, ":", ": "), "}}", `}, "target_size": 3}`, 1)
	if got := d.apply(t, spaced); got.Changed || got.Generation != 1 {
		t.Errorf("the same file again: %+v", got)
	}
	again, err := d.fleet.Pools.Get(t.Context(), "api")
	if err != nil || again.Revision != first.Revision {
		t.Errorf("the same file again wrote revision %d over %d (%v)", again.Revision, first.Revision, err)
	}
	if got := d.apply(t, strings.Replace(poolBody, "}}", `},"target_size":5}`, 1)); !got.Changed || got.Generation != 2 {
		t.Errorf("another file: %+v", got)
	}
	b, err := json.Marshal(api.PoolApply{Spec: json.RawMessage(`{"version":1,"name":"api","target_sise":1}`)})
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.poolApply(t.Context(), b)
	if errorCode(err) != api.CodeInvalid || !strings.Contains(err.Error(), "target_sise") || !strings.Contains(err.Error(), "resource.repo") {
		t.Errorf("a broken file: %v, want every fault", err)
	}
	if p := d.shown(t, "api"); p.Generation != 2 || p.TargetSize != 5 || p.State != poolEmpty {
		t.Errorf("after a broken file: %+v", p)
	}
	if has, err := d.fleet.Queue.HasPool(t.Context(), "api"); !has || err != nil {
		t.Errorf("the pool has no queue: %v", err)
	}
}

func TestScheduler_PoolIsBuiltWhenServedAndAgainWhenItsFileChanged(t *testing.T) {
	d := open(t)
	d.apply(t, poolBody)
	if p := d.shown(t, "api"); !strings.Contains(p.Error, "no live worker") {
		t.Errorf("without a worker: error %q", p.Error)
	}
	if _, err := d.poolRefresh(t.Context(), []byte("api")); errorCode(err) != api.CodeConflict {
		t.Errorf("refresh without a worker: %v", err)
	}
	d.announce(t, poolWorker("w1", 1, "api"))
	del, cmd := d.buildOf(t, "api")
	if p := d.shown(t, "api"); p.State != poolBuilding {
		t.Errorf("state %s while a build is held, want building", p.State)
	}
	got, err := d.poolRefresh(t.Context(), []byte(`{"name":"api","scratch":true}`))
	if err != nil {
		t.Fatal(err)
	}
	if b := got.(api.Building); !b.Queued || b.ID != cmd.PlanID {
		t.Errorf("refresh beside a build: %+v, want image %s", b, cmd.PlanID)
	}
	d.built(t, del, cmd)
	eventually(t, "the pool is ready", func() bool { return d.shown(t, "api").State == poolReady })
	d.apply(t, strings.Replace(poolBody, "}}", `},"image":{"setup":["make"]}}`, 1))
	del, second := d.buildOf(t, "api")
	var params events.BuildParams
	if err := json.Unmarshal(second.Params, &params); err != nil || params.Generation != 2 || params.Scratch {
		t.Errorf("params %s, want generation 2", second.Params)
	}
	d.change(t, "api", func(l *events.Latest) { l.Error, l.Failures, l.FailedAt = "setup[0]: exit 2", 1, time.Now() })
	if err := del.Ack(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pool says why", func() bool {
		p := d.shown(t, "api")
		return p.State == poolFailing && p.Error == "last build failed: setup[0]: exit 2" && p.Image == cmd.PlanID
	})
}

func TestScheduler_PoolAppliedJustNowIsAwaited(t *testing.T) {
	d := open(t)
	d.announce(t, poolWorker("w1", 1))
	eventually(t, "the worker is known", func() bool { return len(d.index.workers()) == 1 })
	d.apply(t, poolBody)
	for name, ask := range map[string]func(context.Context) (any, error){
		"refresh": func(ctx context.Context) (any, error) { return d.poolRefresh(ctx, []byte("api")) },
		"prewarm": func(ctx context.Context) (any, error) { return d.poolPrewarm(ctx, []byte("api")) },
		"explain": func(ctx context.Context) (any, error) {
			return d.imageBuild(ctx, []byte(`{"pool":"api","explain":true}`))
		},
	} {
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := ask(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, want a wait for the worker", name, err)
		}
	}
	done := make(chan error)
	go func() {
		_, err := d.poolRefresh(t.Context(), []byte("api"))
		done <- err
	}()
	d.announce(t, poolWorker("w1", 1, "api"))
	if err := <-done; err != nil {
		t.Errorf("refresh once the worker says that it serves the pool: %v", err)
	}
}

// Another leader finds the build that its predecessor asked for, and asks for no other.
func TestScheduler_LeaderChangeDuringABuild(t *testing.T) {
	d := open(t)
	d.apply(t, poolBody)
	d.announce(t, poolWorker("w1", 1, "api"))
	del, cmd := d.buildOf(t, "api")
	if err := d.fleet.Leases.Delete(t.Context(), "leader.scheduler", 0); err != nil {
		t.Fatal(err)
	}
	second := New(d.fleet, 20*time.Millisecond, d.log)
	if err := second.buildDue(t.Context(), "api", pool{record: events.Pool{Name: "api", Generation: 1}, there: true}); err != nil {
		t.Fatal(err) // it knows of no worker yet
	}
	second.index.worker("w1", ptr(poolWorker("w1", 1, "api")))
	err := second.buildDue(t.Context(), "api", pool{record: events.Pool{Name: "api", Generation: 1}, there: true})
	if err == nil || !strings.Contains(err.Error(), cmd.PlanID) {
		t.Errorf("another leader asks for a build beside %s: %v", cmd.PlanID, err)
	}
	d.built(t, del, cmd)
	if n, err := d.fleet.Queue.Depth(t.Context(), "api"); err != nil || n.Queued+n.Held != 0 {
		t.Errorf("%+v commands, %v, want none", n, err)
	}
}

func ptr[T any](v T) *T { return &v }

func pooled(resource string) json.RawMessage {
	return json.RawMessage(`{"version":1,"name":"p","pool":"api","apply":"never","steps":[{"run":"true"}]` + resource + `}`)
}

func TestScheduler_PlanTakesTheRepositoryOfItsPool(t *testing.T) {
	d := open(t)
	d.apply(t, poolBody)
	for _, tc := range []struct {
		name, resource, code string
		want                 events.Resource
	}{
		{"None", "", "", events.Resource{Repo: "/srv/api.git", Ref: "main"}},
		{"SameRepo", `,"resource":{"repo":"file:///srv/api.git"}`, "", events.Resource{Repo: "/srv/api.git", Ref: "main"}},
		{"OtherRef", `,"resource":{"repo":"/srv/api.git","ref":"v1"}`, "", events.Resource{Repo: "/srv/api.git", Ref: "v1"}},
		{"OtherRepo", `,"resource":{"repo":"/srv/other.git"}`, codeInvalidPlan, events.Resource{}},
		{"Path", `,"resource":{"path":"/srv","host":"h1"}`, codeInvalidPlan, events.Resource{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := d.submit(t, events.NewID(), pooled(tc.resource))
			if f.Code != tc.code || tc.code == "" && f.Resource != tc.want {
				t.Errorf("%s %s %+v %q, want %s %+v", f.State, f.Code, f.Resource, f.Error, tc.code, tc.want)
			}
		})
	}
	f := d.submit(t, events.NewID(), json.RawMessage(strings.Replace(string(pooled("")), `"api"`, `"nope"`, 1)))
	if f.State != events.StateRejected || f.Code != codeUnknownPool {
		t.Errorf("%s %s, want rejected with %s", f.State, f.Code, codeUnknownPool)
	}
}

func TestAdmission_Pools(t *testing.T) {
	plan := waitingPlan(0, "normal", events.Resource{Repo: "r"})
	plan.Pool = "api"
	begun := plan
	begun.Epoch = 1
	for _, tc := range []struct {
		name  string
		facts map[string]poolFact
		serve bool
		fold  events.Fold
		want  verdict
	}{
		{"Built", map[string]poolFact{"api": {built: true}}, true, plan, verdict{pool: "api", verb: events.VerbRun}},
		{"BuiltAndFailedSince", map[string]poolFact{"api": {built: true, failed: "x"}}, true, plan, verdict{pool: "api", verb: events.VerbRun}},
		{"NobodyServes", map[string]poolFact{"api": {built: true}}, false, plan, verdict{waiting: "no live worker of pool api"}},
		{"NotBuilt", map[string]poolFact{"api": {}}, true, plan, verdict{waiting: "pool api has no image yet: it is being built"}},
		{"Failed", map[string]poolFact{"api": {failed: "exit 3"}}, true, plan, verdict{waiting: "pool api has no image: its last build failed: exit 3"}},
		{"BegunNeedsNoImage", map[string]poolFact{"api": {}}, true, begun, verdict{pool: "api", verb: events.VerbRun}},
		{"Removed", nil, true, plan, verdict{waiting: "pool api was removed: apply it again, or cancel the plan"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := newAdmission()
			a.pools = tc.facts
			a.workers["w"] = poolWorker("w", 1)
			if tc.serve {
				a.workers["w"] = poolWorker("w", 1, "api")
			}
			a.observe("p", tc.fold)
			tc.want.id = "p"
			if got := a.decide(); len(got) != 1 || got[0] != tc.want {
				t.Errorf("decided %+v, want %+v", got, tc.want)
			}
		})
	}
}

// Ten plans of one pool leave room for another pool on the same worker.
func TestAdmission_ManyPlansOfAPoolStarveNoOther(t *testing.T) {
	a := newAdmission()
	a.pools = map[string]poolFact{"api": {built: true}, "web": {built: true}}
	a.workers["w"] = poolWorker("w", 3, "api", "web")
	for i := range 11 {
		f := waitingPlan(i, "normal", events.Resource{Repo: "r"})
		f.Pool = "api"
		if i == 10 {
			f.Pool = "web"
		}
		a.observe(fmt.Sprint("p", i), f)
	}
	got := map[string]int{}
	for _, v := range a.decide() {
		got[v.pool]++
	}
	if diff := cmp.Diff(got, map[string]int{"api": 6, "web": 1}); diff != "" {
		t.Errorf("commands by pool (- got, + want):\n%s", diff)
	}
}

func TestPoolView(t *testing.T) {
	spec := poolfile.Pool{}
	spec.Defaults()
	now := epochStart
	w1, w2 := poolWorker("w1", 1, "api"), poolWorker("w2", 1, "api")
	w1.Warm = map[string]events.Warm{"api": {Idle: 2, Target: 2, Behind: 1, SyncedAt: now.Add(-time.Second), OldestMS: 5, Hits: 3, Misses: 1, Wasted: 1, RefillMS: 9}}
	w2.Warm = map[string]events.Warm{"api": {Target: 1, Behind: 7, Error: "disk is full"}}
	p := pool{there: true, built: true, spec: spec, record: events.Pool{Name: "api", Generation: 4}, latest: events.Latest{Image: "i", Commit: "c", BuiltAt: now.Add(-time.Hour)}}
	got := poolView("api", p, poolNow{workers: map[string]events.Worker{"w1": w1, "w2": w2, "w3": poolWorker("w3", 1)}, now: now})
	want := api.Pool{
		Name: "api", State: poolReady, Error: "worker w2: disk is full", Image: "i", Commit: "c", Warm: 2, TargetSize: 3, HitRate: 0.75, Behind: 1,
		BuiltAt: now.Add(-time.Hour), Stale: true, StalenessMS: 1000, OldestMS: 5, RefillMS: 9, Hits: 3, Misses: 1, Wasted: 1, Generation: 4,
		Workers: map[string]api.PoolWorker{"w1": {Idle: 2, Target: 2}, "w2": {Target: 1, Error: "disk is full"}},
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("view (- got, + want):\n%s", diff)
	}
}
