package worker

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// One pool's broken image is told with the reason and tried again; another pool does not notice.
func TestPool_BrokenOneHarmsNoOther(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, says string
		breaks     func(t *testing.T, p *poolRig, w *Worker, image events.Image)
	}{
		{"ImageGone", "its record is gone", func(t *testing.T, p *poolRig, _ *Worker, _ events.Image) {
			id := events.NewID()
			put(t, p.fleet.Images, events.LatestKey("broken"), events.Latest{Pool: "broken", Image: id})
		}},
		{"LayerGone", "not found", func(t *testing.T, p *poolRig, w *Worker, image events.Image) {
			gone := image
			gone.ID, gone.Checkpoint = events.NewID(), events.NewID()
			put(t, p.fleet.Images, gone.ID, gone)
			put(t, p.fleet.Images, events.LatestKey("broken"), events.Latest{Pool: "broken", Image: gone.ID})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := newPoolRig(t)
			p.push(t, "v1")
			image := p.image(t, "true >built")
			w, _ := p.worker(t, "w1")
			tc.breaks(t, p, w, image)
			spec := fmt.Sprintf(`{"version":1,"name":"broken","resource":{"repo":%q}}`, p.repo)
			put(t, p.fleet.Pools, "broken", events.Pool{Name: "broken", Spec: []byte(spec), Generation: 1})
			p.apply(t, `,"target_size":2`)
			p.warm(t, w, "two warm ones of the good pool", idle(2))
			await(t, "reason", func() bool { return strings.Contains(w.Record().Warm["broken"].Error, tc.says) })
			good := image
			good.ID, good.Pool = events.NewID(), "broken"
			put(t, p.fleet.Images, good.ID, good)
			put(t, p.fleet.Images, events.LatestKey("broken"), events.Latest{Pool: "broken", Image: good.ID})
			await(t, "recovery", func() bool { return w.Record().Warm["broken"].Idle == 3 && w.Record().Warm["broken"].Error == "" })
		})
	}
}

// A sandbox that cannot be made is tried again with pauses, not in a loop; the reason is told.
func TestPool_MakeFails(t *testing.T) {
	t.Parallel()
	p := newBuiltPool(t)
	w := p.make(t, "w1", p.fleet)
	full := make(chan struct{})
	tries := make(chan struct{}, 1000)
	start := w.host.Init
	w.host.Init = func(ctx context.Context, network string, noSetuid bool) (*isolate.Init, error) {
		tries <- struct{}{}
		if open(full) {
			return nil, fmt.Errorf("start init: %w", syscall.ENOSPC)
		}
		return start(ctx, network, noSetuid)
	}
	run(t, w)
	p.apply(t, `,"target_size":2`)
	p.warm(t, w, "reason", func(s events.Warm) bool { return strings.Contains(s.Error, syscall.ENOSPC.Error()) })
	<-tries // the first two were at once
	<-tries
	<-tries // a second later
	if n := len(tries); n > 1 {
		t.Errorf("%d more tries at once, want pauses", n)
	}
	close(full)
	p.warm(t, w, "two warm ones once there is room", func(s events.Warm) bool { return s.Idle == 2 && s.Error == "" })
}

// killInit kills the init of an idle sandbox as the kernel would that is out of memory.
func killInit(t *testing.T, b *warmBox) {
	t.Helper()
	if err := syscall.Kill(b.sb.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-b.sb.Done()
}

// A sandbox whose init was killed while it waited is replaced and never handed out.
func TestPool_KilledWhileIdle(t *testing.T) {
	t.Parallel()
	p := newBuiltPool(t)
	w, _ := p.worker(t, "w1")
	p.apply(t, `,"target_size":2`)
	p.warm(t, w, "two warm ones", idle(2))
	killed := map[string]bool{}
	w.pooling.keeper("api").warm.Each(func(b *warmBox) {
		killed[b.sb.ID()] = true
		killInit(t, b)
	})
	for range 3 {
		plan := p.plan(t, "apply: never\nsteps: [{run: cat VERSION}]\n")
		p.ends(t, plan.PlanID(), events.StateExecuted)
		if claim := p.claimOf(t, plan.PlanID()); killed[claim.SandboxID] {
			t.Errorf("a killed sandbox was handed out")
		}
	}
	if s := p.warm(t, w, "replacements", idle(2)); s.Wasted != 2 {
		t.Errorf("%d wasted, want the two that were killed", s.Wasted)
	}
}

func TestPool_RemoteUnreachable(t *testing.T) {
	t.Parallel()
	p := newPoolRig(t)
	commit := p.push(t, "v1")
	p.image(t, "true >built")
	w, _ := p.worker(t, "w1")
	p.apply(t, `,"target_size":1,"max_staleness":"0s"`)
	p.warm(t, w, "one warm", idle(1))
	if err := os.Rename(p.repo, p.repo+".away"); err != nil {
		t.Fatal(err)
	}
	refused := p.plan(t, "apply: never\nsteps: [{run: cat VERSION}]\n")
	if d := p.ends(t, refused.PlanID(), events.StateFailed); d.Code != "stale_base" || !strings.Contains(d.Error, commit[:12]) {
		t.Errorf("failed with code %s: %s", d.Code, d.Error)
	}
	p.apply(t, `,"target_size":1,"max_staleness":"0s","allow_stale":true`)
	p.warm(t, w, "one warm", idle(1))
	allowed := p.plan(t, "apply: never\nsteps: [{run: cat VERSION}]\n")
	p.ends(t, allowed.PlanID(), events.StateExecuted)
	claim := p.claimOf(t, allowed.PlanID())
	if claim.Source != events.SourceWarm || claim.Commit != commit || !strings.Contains(fmt.Sprint(claim.Notes), "stale: "+commit[:12]) {
		t.Errorf("source %s, commit %s, notes %q, want a warm one that says it is stale", claim.Source, claim.Commit, claim.Notes)
	}
}

// Case C1 and a force-push: the default branch is asked of the remote, and history may be rewritten.
