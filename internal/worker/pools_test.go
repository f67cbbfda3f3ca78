package worker

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// look is a plan's first step that shows where its sandbox is.
const look = "steps: [{run: 'cat VERSION built; git rev-parse HEAD; git status --porcelain --untracked-files=no; git symbolic-ref -q --short HEAD'}]\n"

func TestPool_WarmAndFresh(t *testing.T) {
	t.Parallel()
	p := newPoolRig(t)
	p.push(t, "v1")
	image := p.image(t, "echo by-v1 >built")
	w, _ := p.worker(t, "w1")
	p.apply(t, `,"target_size":2,"max_staleness":"0s"`)
	p.warm(t, w, "two warm ones", idle(2))
	commit := p.push(t, "v2") // the moment before the claim
	plan := p.plan(t, "apply: never\n"+look)
	done := p.ends(t, plan.PlanID(), events.StateExecuted)
	claim := p.claimOf(t, plan.PlanID())
	one := 1
	want := events.Data{Source: "warm", Pool: "api", Image: image.ID, Commit: commit, Behind: &one}
	got := events.Data{Source: claim.Source, Pool: claim.Pool, Image: claim.Image, Commit: claim.Commit, Behind: claim.Behind, Notes: claim.Notes}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("claim (-got +want):\n%s", diff)
	}
	if got, want := p.output(t, plan.PlanID()), "v2\nby-v1\n"+commit+"\ntrunk\n"; got != want {
		t.Errorf("step saw %q, want %q", got, want)
	}
	if *done.Changed != 0 {
		t.Errorf("%d paths changed by a plan that changes none: what the sync changed is no part of it", *done.Changed)
	}
	p.warm(t, w, "refill", idle(2))
	states := p.states(t, claim.SandboxID)
	if got, want := slices.Compact(states), []string{"creating", "ready", "syncing", "executing", "snapshotting", "executing", "terminated"}; !slices.Equal(got, want) {
		t.Errorf("states %v, want %v", got, want)
	}
}

// states waits for the end of a sandbox and returns the states of its environment.
func (p *poolRig) states(t *testing.T, sandbox string) []string {
	t.Helper()
	records, err := p.fleet.Log.Follow(t.Context(), events.Filter{Subject: "fleet.evt.sandbox." + sandbox + ".*"})
	if err != nil {
		t.Fatal(err)
	}
	env := []string{
		events.EnvCreating, events.EnvSyncing, events.EnvReady, events.EnvExecuting, events.EnvSnapshotting, events.EnvTerminated,
	}
	var seen []string
	for r := range records {
		kind := r.Event.Kind()
		if slices.Contains(env, kind) {
			seen = append(seen, kind)
		}
		if kind == events.EnvTerminated {
			break
		}
	}
	return seen
}

func TestPool_TenPlansOnThree(t *testing.T) {
	t.Parallel()
	p := newPoolRig(t)
	p.push(t, "v1")
	p.image(t, "echo x >built")
	w, _ := p.worker(t, "w1")
	p.apply(t, `,"target_size":3`)
	p.warm(t, w, "three warm ones", idle(3))
	var plans []*events.Writer
	for range 10 {
		plans = append(plans, p.plan(t, "apply: never\nsteps: [{run: 'test ! -e mine && echo x >mine && cat VERSION'}]\n"))
	}
	sources, boxes := map[string]int{}, map[string]string{}
	for _, plan := range plans {
		p.ends(t, plan.PlanID(), events.StateExecuted)
		claim := p.claimOf(t, plan.PlanID())
		sources[claim.Source]++
		if other := boxes[claim.SandboxID]; other != "" {
			t.Errorf("plans %s and %s had one sandbox", other, plan.PlanID())
		}
		boxes[claim.SandboxID] = plan.PlanID()
	}
	if sources["warm"] < 3 || sources["warm"]+sources["cold"] != 10 {
		t.Errorf("sources %v, want at least three warm and the others cold", sources)
	}
	stats := p.warm(t, w, "refill", idle(3))
	if stats.Hits != int64(sources["warm"]) || stats.Misses != int64(sources["cold"]) {
		t.Errorf("%d hits and %d misses of %v", stats.Hits, stats.Misses, sources)
	}
}

func TestPool_ImageChangeRolls(t *testing.T) {
	t.Parallel()
	p := newPoolRig(t)
	p.push(t, "v1")
	p.image(t, "echo first >built")
	w, _ := p.worker(t, "w1")
	p.apply(t, `,"target_size":3`)
	p.warm(t, w, "three warm ones", idle(3))
	next := p.image(t, "echo second >built")
	least := 3
	p.warm(t, w, "all of the next image", func(s events.Warm) bool {
		least = min(least, s.Idle)
		return s.Image == next.ID && s.Wasted == 3 && s.Idle == 3
	})
	if least < 3 {
		t.Errorf("only %d were idle while the image changed, want 3 all the time", least)
	}
	plan := p.plan(t, "apply: never\nsteps: [{run: cat built}]\n")
	p.ends(t, plan.PlanID(), events.StateExecuted)
	if got := p.output(t, plan.PlanID()); got != "second\n" {
		t.Errorf("built %q, want that of the next image", got)
	}
}

func TestPool_MaxAge(t *testing.T) {
	t.Parallel()
	p := newBuiltPool(t)
	w, _ := p.worker(t, "w1")
	p.apply(t, `,"target_size":1,"max_age":"1s"`)
	p.warm(t, w, "replacement of an old one", func(s events.Warm) bool { return s.Wasted >= 2 })
	p.apply(t, `,"target_size":1,"max_age":"25m"`)
	p.warm(t, w, "one warm", idle(1))
}

func TestPool_FewerWanted(t *testing.T) {
	t.Parallel()
	p := newBuiltPool(t)
	w, _ := p.worker(t, "w1")
	p.apply(t, `,"target_size":3`)
	p.warm(t, w, "three warm ones", idle(3))
	p.apply(t, `,"target_size":1`)
	p.warm(t, w, "one warm", idle(1))
	p.apply(t, `,"target_size":0`)
	p.warm(t, w, "none", idle(0))
}

func TestPool_Restart(t *testing.T) {
	t.Parallel()
	p := newBuiltPool(t)
	p.apply(t, `,"target_size":2`)
	cfg := p.config(t, "w1")
	for range 2 {
		w, err := New(t.Context(), cfg, p.fleet, p.builder.log)
		if err != nil {
			t.Fatal(err)
		}
		stop := run(t, w)
		p.warm(t, w, "two warm ones", idle(2))
		plan := p.plan(t, "apply: never\nsteps: [{run: cat VERSION}]\n")
		p.ends(t, plan.PlanID(), events.StateExecuted)
		stop()
	}
	left, err := filepath.Glob(filepath.Join(cfg.StateDir, "layers", "staging*", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("open layers left: %v, %v", left, err)
	}
}

func TestPool_Prewarm(t *testing.T) {
	t.Parallel()
	p := newBuiltPool(t)
	w, _ := p.worker(t, "w1")
	p.apply(t, `,"target_size":1`)
	p.warm(t, w, "one warm", idle(1))
	got, err := p.fleet.Conn.Request(p.fleet.Subjects.Worker("w1", "prewarm"), []byte(`{"name":"api"}`), patience)
	if err != nil {
		t.Fatal(err)
	}
	var out api.Prewarmed
	if err := json.Unmarshal(got.Data, &out); err != nil || out.Worker != "w1" || time.Until(out.Expires) < 4*time.Minute {
		t.Errorf("answer %s, %v", got.Data, err)
	}
	if s := p.warm(t, w, "one more", idle(2)); s.Hits+s.Misses != 0 || s.Prewarmed != 1 {
		t.Errorf("after a prewarm %+v, want one prewarmed and none claimed", s)
	}
	got, err = p.fleet.Conn.Request(p.fleet.Subjects.Worker("w1", "prewarm"), []byte(`{"name":"other"}`), patience)
	if err != nil || got.Header.Get("Nats-Service-Error-Code") != api.CodeNotFound {
		t.Errorf("prewarm of another pool: %v, %v", got.Header, err)
	}
}

// A plan that wants what warm sandboxes are not starts cold, on the image, and says why.
func TestPool_ColdWithTheReason(t *testing.T) {
	t.Parallel()
	p := newPoolRig(t)
	p.push(t, "v1")
	p.image(t, "echo x >built")
	w, _ := p.worker(t, "w1")
	p.apply(t, `,"target_size":1`)
	p.warm(t, w, "one warm", idle(1))
	for _, tc := range []struct{ name, text, note string }{
		{"Network", "network: allow\n", "cold: network allow: warm sandboxes of this pool are made with none"},
		{"Strategy", "strategy: git_worktree\n", "cold: strategy git_worktree: warm sandboxes are made with copy_on_write"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			plan := p.plan(t, tc.text+"apply: never\nsteps: [{run: cat VERSION built}]\n")
			p.ends(t, plan.PlanID(), events.StateExecuted)
			claim := p.claimOf(t, plan.PlanID())
			if claim.Source != events.SourceCold || !slices.Equal(claim.Notes, []string{tc.note}) {
				t.Errorf("source %s, notes %q, want cold and %q", claim.Source, claim.Notes, tc.note)
			}
			if got := p.output(t, plan.PlanID()); got != "v1\nx\n" {
				t.Errorf("saw %q, want the image's files", got)
			}
		})
	}
}

func TestPool_NoImageYet(t *testing.T) {
	t.Parallel()
	p := newPoolRig(t)
	commit := p.push(t, "v1")
	p.worker(t, "w1")
	p.apply(t, "")
	plan := p.plan(t, "apply: never\nsteps: [{run: cat VERSION}]\n")
	p.ends(t, plan.PlanID(), events.StateExecuted)
	claim := p.claimOf(t, plan.PlanID())
	if claim.Source != events.SourceCold || claim.Commit != commit || !strings.Contains(strings.Join(claim.Notes, "\n"), "the pool has none yet") {
		t.Errorf("source %s, commit %s, notes %q", claim.Source, claim.Commit, claim.Notes)
	}
}

// A removed pool keeps nothing warm, and its last commands are done.
func TestPool_Removed(t *testing.T) {
	t.Parallel()
	p := newBuiltPool(t)
	w, _ := p.worker(t, "w1")
	p.apply(t, `,"target_size":1`)
	p.warm(t, w, "one warm", idle(1))
	if err := p.fleet.Pools.Delete(t.Context(), "api", 0); err != nil {
		t.Fatal(err)
	}
	served := func() bool { _, is := w.Record().Pools["api"]; return is }
	await(t, "end of service", func() bool { return !served() })
	plan := p.plan(t, "apply: never\nsteps: [{run: cat VERSION}]\n")
	p.ends(t, plan.PlanID(), events.StateExecuted)
	if claim := p.claimOf(t, plan.PlanID()); claim.Source != events.SourceCold || !strings.Contains(fmt.Sprint(claim.Notes), "removed") {
		t.Errorf("source %s, notes %q", claim.Source, claim.Notes)
	}
	await(t, "removal of its queue", func() bool {
		return p.fleet.Queue.(events.PoolQueues).RemovePool(t.Context(), "api") == nil
	})
	await(t, "end of its keeper", func() bool { return w.pooling.keeper("api") == nil })
	if err := p.fleet.Queue.EnsurePool(t.Context(), "api"); err != nil {
		t.Fatal(err)
	}
	p.apply(t, `,"target_size":1`)
	p.warm(t, w, "one warm once it is back", idle(1))
}

func TestPool_OnlyThoseNamed(t *testing.T) {
	t.Parallel()
	p := newBuiltPool(t)
	p.apply(t, `,"target_size":1`)
	cfg := p.config(t, "w1")
	cfg.Pools = []string{"other"}
	w, err := New(t.Context(), cfg, p.fleet, p.builder.log)
	if err != nil {
		t.Fatal(err)
	}
	run(t, w)
	put(t, p.fleet.Pools, "other", events.Pool{Name: "other", Spec: []byte(`{"version":1,"name":"other","resource":{"repo":"/nowhere"}}`)})
	await(t, "service of the named pool", func() bool { return w.pooling.keeper("other") != nil })
	if w.pooling.keeper("api") != nil {
		t.Error("serves a pool that --pools does not name")
	}
}

func TestPool_NoneWhereToldSo(t *testing.T) {
	t.Parallel()
	p := newPoolRig(t)
	cfg := p.config(t, "w1")
	cfg.NoPools = true
	w, err := New(t.Context(), cfg, p.fleet, p.builder.log)
	if err != nil {
		t.Fatal(err)
	}
	other, _ := p.worker(t, "w2")
	run(t, w)
	p.apply(t, `,"target_size":0`)
	await(t, "service by the other worker", func() bool { return other.pooling.keeper("api") != nil })
	if w.pooling.wanted("api") || w.pooling.keeper("api") != nil {
		t.Error("serves a pool")
	}
	cfg.Pools = []string{"api"}
	if err := cfg.Validate(); err == nil {
		t.Error("takes names of pools where it serves none")
	}
}

// Apply of a plan with a pool is one commit on the branch, of what its steps changed alone.
func TestPool_ApplyPushes(t *testing.T) {
	t.Parallel()
	p := newPoolRig(t)
	p.push(t, "v1")
	p.image(t, "echo x >built")
	w, _ := p.worker(t, "w1")
	p.apply(t, `,"target_size":1,"max_staleness":"0s"`)
	p.warm(t, w, "one warm", idle(1))
	onto := p.push(t, "v2")
	plan := p.plan(t, "apply: auto\nidentity: {name: By, email: by@example.com}\ncommit: {message: by plan}\nsteps: [{run: echo new >new.txt}]\n")
	d := p.ends(t, plan.PlanID(), events.StateApplied)
	if d.Branch != "trunk" || d.Onto != onto || *d.Changed != 1 {
		t.Errorf("applied %s on %s, %d changed; want trunk, %s and 1", d.Branch, d.Onto, *d.Changed, onto)
	}
	if got := gitAs(t, p.repo, "show", "--format=%s", "--name-status", "trunk"); got != "by plan\n\nA\tnew.txt" {
		t.Errorf("commit %q", got)
	}
}

// A plan whose worker was lost goes on from its checkpoint elsewhere, also when its pool is gone by then.
func TestPool_ResumedWithoutThePool(t *testing.T) {
	t.Parallel()
	p := newPoolRig(t)
	p.push(t, "v1")
	p.image(t, "echo x >built")
	p.apply(t, `,"target_size":1`)
	cfg := p.config(t, "wa")
	cfg.DrainTimeout = 10 * time.Millisecond
	a, err := New(t.Context(), cfg, p.fleet, p.builder.log)
	if err != nil {
		t.Fatal(err)
	}
	stop := run(t, a)
	p.warm(t, a, "one warm", idle(1))
	plan := p.plan(t, "apply: auto\nidentity: {name: By, email: by@example.com}\ncommit: {message: by plan}\nsteps: [{run: echo 1 >one, checkpoint: true}, {run: sleep 3}, {run: cat built >three}]\n")
	p.until(t, plan.PlanID(), "step checkpoint", func(e events.Event) bool {
		return e.Kind() == events.TypeCheckpointed && e.Data.Checkpoint.Phase == events.PhaseStep
	})
	stop() // which hands the plan over at its checkpoint
	b, _ := p.worker(t, "wb")
	await(t, "service by the other", func() bool { return b.pooling.keeper("api") != nil })
	if err := p.fleet.Pools.Delete(t.Context(), "api", 0); err != nil {
		t.Fatal(err)
	}
	d := p.ends(t, plan.PlanID(), events.StateApplied)
	if got := gitAs(t, p.repo, "show", "--format=%s", "--name-status", "trunk"); got != "by plan\n\nA\tone\nA\tthree" || *d.Changed != 2 {
		t.Errorf("commit %q, %d changed", got, *d.Changed)
	}
	seen := p.until(t, plan.PlanID(), "second claim", func(e events.Event) bool {
		return e.Kind() == events.TypeClaimed && e.Data.Source == events.SourceCheckpoint
	})
	if got := seen[len(seen)-1].Data; got.Worker != "wb" {
		t.Errorf("resumed by %s", got.Worker)
	}
}
