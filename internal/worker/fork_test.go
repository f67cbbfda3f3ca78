package worker

import (
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/sandboxtest"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/events/eventstest"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
	"github.com/warmfleet/warmfleet/pkg/objectstore/objectstoretest"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

// closedStore takes nothing in until it is opened.
type closedStore struct {
	objectstore.Store
	open chan struct{}
}

func (s closedStore) Put(ctx context.Context, name string, r io.Reader) (objectstore.Info, error) {
	select {
	case <-s.open:
	case <-ctx.Done():
		return objectstore.Info{}, ctx.Err()
	}
	return s.Store.Put(ctx, name, r)
}

func fork(t *testing.T, w *Worker, id string) *sandbox.Sandbox {
	t.Helper()
	sb, err := w.hold(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

// Forks see neither each other nor the sandbox that their checkpoint was taken of, which runs
// on; none of it is stored yet.
func TestWorker_ForkOfWhatIsNotStored(t *testing.T) {
	r := newRig(t)
	f := r.open(t, eventstest.Connect(t, r.server))
	gate := closedStore{f.Store, make(chan struct{})}
	f.Store = gate
	w := r.make(t, "w1", f)
	run(t, w)
	p := r.submit(t, "apply: never\nsteps: [{run: 'echo plan >a; sleep 60'}]")
	seen := r.until(t, p.PlanID(), "claim", ofKind(events.TypeClaimed))
	r.until(t, p.PlanID(), "a step", ofKind(events.TypeStepStarted))
	id := seen[len(seen)-1].Data.Checkpoint.ID
	if _, err := checkpoint.Load(t.Context(), r.fleet.Checkpoints, id); err == nil {
		t.Fatal("the checkpoint has a record already")
	}
	one, two := fork(t, w, id), fork(t, w, id)
	if one.ID() == two.ID() {
		t.Errorf("both forks are sandbox %s", one.ID())
	}
	sandboxtest.Run(t, one, "echo one >a; rm -r d; echo x >new")
	if got := sandboxtest.Run(t, two, "cat a d/b; ls"); got != "one\ntwo\na\nd\n" {
		t.Errorf("the other fork holds %q", got)
	}
	if got := sandboxtest.Run(t, one, "cat a; ls"); got != "one\na\nnew\n" {
		t.Errorf("the fork holds %q", got)
	}
	r.has(t, "a", "one\n")
	close(gate.open)
	r.append(t, p, events.TypeCancelRequested, events.Data{})
	w.cancelHinted(p.PlanID())
	r.ends(t, p.PlanID(), events.StateCancelled)
	if got := sandboxtest.Run(t, two, "cat a"); got != "one\n" {
		t.Errorf("after the end of the plan the fork holds %q", got)
	}
}

// used is what a directory takes on the disk, in bytes.
func used(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) || os.IsPermission(err) { // overlayfs closes its work directory, which is empty
			return nil
		}
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if os.IsNotExist(err) {
			return nil
		}
		if err == nil {
			bytes += fi.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

func TestWorker_ForkTakesNoRoom(t *testing.T) {
	r := newRig(t)
	r.write(t, "big", string(objectstoretest.Bytes(1, 64<<20)))
	w, _ := r.worker(t, "w1")
	if !w.report.Overlay {
		t.Skip("reason: without overlayfs every sandbox is a copy")
	}
	p := r.submit(t, "apply: never\nsteps: [{run: 'echo x >f'}]")
	cp := r.ends(t, p.PlanID(), events.StateExecuted).Plan.Checkpoint
	first := fork(t, w, cp.ID)
	before := used(t, w.cfg.StateDir)
	for range 5 {
		sandboxtest.Run(t, fork(t, w, cp.ID), "test -s big; echo y >f")
	}
	if grown := used(t, w.cfg.StateDir) - before; grown > 1<<20 {
		t.Errorf("five forks of 64 MiB took %d bytes", grown)
	}
	if got := sandboxtest.Run(t, first, "cat f"); got != "x\n" {
		t.Errorf("the first fork holds %q", got)
	}
}

// A fork goes to any worker, and further from there.
func TestWorker_ForkElsewhere(t *testing.T) {
	r := newRig(t)
	_, stop := r.worker(t, "w1")
	p := r.submit(t, "apply: never\nsteps: [{run: 'echo x >f; rm a'}]")
	cp := r.ends(t, p.PlanID(), events.StateExecuted).Plan.Checkpoint
	stop()
	w2, _ := r.worker(t, "w2")
	if got := sandboxtest.Run(t, fork(t, w2, cp.ID), "cat f; ls"); got != "x\nd\nf\n" {
		t.Errorf("on another worker: %q", got)
	}
}

func (r *rig) left(t *testing.T, w *Worker, content string) layer.Layer {
	t.Helper()
	l, err := w.cache.Build(func(b *layer.Builder) error {
		return b.Put(layer.Entry{Path: "f", Type: layer.File, Mode: 0o644, UID: layer.Self, GID: layer.Self, MTime: time.Unix(1, 0), Size: int64(len(content))}, strings.NewReader(content))
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func has(t *testing.T, w *Worker, id string) bool {
	t.Helper()
	ids, err := w.cache.Layers()
	if err != nil {
		t.Fatal(err)
	}
	return slices.Contains(ids, id)
}

// What a killed worker left goes when one starts in its directory: what nobody could find, and what
// is beyond the budget. Base images stay, and so does all while another process is there.
func TestWorker_SweepsTheCacheAtStart(t *testing.T) {
	for name, tc := range map[string]struct {
		budget     int64
		keepsNamed bool
	}{"WithinBudget": {0, true}, "NoBudget": {-1, false}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			w, stop := r.worker(t, "w1")
			p := r.submit(t, "apply: manual\nsteps: [{run: 'echo x >f'}]")
			r.ends(t, p.PlanID(), events.StateAwaitingApproval)
			bases, err := w.bases.Layers()
			if err != nil || len(bases) == 0 {
				t.Fatalf("bases %v, %v", bases, err)
			}
			nameless, named := r.left(t, w, "nameless"), r.left(t, w, "named")
			kept := w.cps.Keep(named, checkpoint.Checkpoint{PlanID: p.PlanID(), Phase: checkpoint.PreApply})
			if _, err := w.cps.Store(t.Context(), kept.ID); err != nil {
				t.Fatal(err)
			}
			cfg := w.cfg
			cfg.CacheBudget = tc.budget
			beside, err := New(t.Context(), cfg, r.fleet, zerolog.Nop())
			if err != nil {
				t.Fatal(err)
			}
			if !has(t, beside, nameless.ID) {
				t.Error("a layer was removed beside a process that may use it")
			}
			beside.Close()
			stop()

			next, err := New(t.Context(), cfg, r.fleet, zerolog.Nop())
			if err != nil {
				t.Fatal(err)
			}
			defer next.Close()
			if has(t, next, nameless.ID) {
				t.Error("a layer without a name is left")
			}
			if has(t, next, named.ID) != tc.keepsNamed {
				t.Errorf("a stored layer is kept: %v, want %v", !tc.keepsNamed, tc.keepsNamed)
			}
			for _, id := range bases {
				if !has(t, next, id) {
					t.Errorf("layer %s of a base is gone", id)
				}
			}
		})
	}
}

// settles waits until the worker holds nothing of any plan.
func settles(t *testing.T, w *Worker) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); ; {
		w.mu.Lock()
		n := len(w.plans)
		w.mu.Unlock()
		if n == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%d plans are under way", n)
		}
	}
}

// While the worker runs a layer goes the second time it is found unused, and never in use.
func TestWorker_SweepsTheCacheWhileItRuns(t *testing.T) {
	r := newRig(t)
	f := r.open(t, eventstest.Connect(t, r.server))
	w := r.make(t, "w1", f)
	w.cfg.CacheBudget = -1
	run(t, w)
	p := r.submit(t, "apply: never\nsteps: [{run: 'echo x >f'}]")
	cp := r.ends(t, p.PlanID(), events.StateExecuted).Plan.Checkpoint
	settles(t, w)
	sb := fork(t, w, cp.ID)
	top := sb.Chain()[len(sb.Chain())-1].ID
	nameless := r.left(t, w, "nameless")
	sweep := func() {
		t.Helper()
		if err := w.sweepCache(false); err != nil {
			t.Fatal(err)
		}
	}
	sweep()
	if !has(t, w, nameless.ID) {
		t.Error("a layer that may just be being made was removed")
	}
	sweep()
	if has(t, w, nameless.ID) {
		t.Error("a layer without a name is left")
	}
	if got := sandboxtest.Run(t, sb, "cat f"); got != "x\n" {
		t.Errorf("the fork holds %q", got)
	}
	w.letGo(sb.ID())
	sweep()
	if !has(t, w, top) {
		t.Error("the layer of a fork that has just ended was removed at once")
	}
	sweep()
	if has(t, w, top) {
		t.Error("the layer of a fork that ended is left")
	}
	if got := sandboxtest.Run(t, fork(t, w, cp.ID), "cat f"); got != "x\n" {
		t.Errorf("a fork after the sweep holds %q", got)
	}
}
