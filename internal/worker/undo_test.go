package worker

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/layer/layertest"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// undoTree is what a plan is about to change in the tests of undo.
const undoTree = `echo h >h1; ln h1 h2; echo gone >gone; chmod 640 gone; mkdir -p sub; echo in >sub/in; ln -s a link; echo run >run; chmod 755 run
touch -d '2001-02-03 04:05:06.123456789' a h1 gone run sub/in; setfattr -n user.test -v kept gone 2>/dev/null || true`

const undoPlan = `apply: auto
steps:
  - run: |
      echo new >a; sed -i s/h/H/ h1; rm gone; rm -r sub; echo file >sub; ln -sfn run link; chmod 644 run; mkdir -p n/m; echo n >n/m/f
`

func (r *rig) sh(t *testing.T, script string) {
	t.Helper()
	cmd := exec.Command("bash", "-euc", "umask 022; "+script)
	cmd.Dir = r.tree
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
}

func (r *rig) copy(t *testing.T) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	if out, err := exec.Command("cp", "-a", r.tree, to).CombinedOutput(); err != nil {
		t.Fatalf("copy: %v: %s", err, out)
	}
	return to
}

// askUndo records that a plan is to be undone and publishes its command, as a scheduler does.
func (r *rig) askUndo(t *testing.T, id string) {
	t.Helper()
	w, err := events.OpenWriter(t.Context(), r.fleet.Log, id, "/test")
	if err != nil {
		t.Fatal(err)
	}
	r.append(t, w, events.TypeUndoRequested, events.Data{By: "test"})
	await(t, "end of the command before", func() bool {
		err := r.fleet.Queue.Publish(t.Context(), events.NewCommand(r.pool, events.VerbUndo, id))
		if err != nil && !errors.Is(err, events.ErrQueued) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// undoEnds waits for the nth undo of a plan to be done or failed and returns the event.
func (r *rig) undoEnds(t *testing.T, id string, nth int) events.Event {
	t.Helper()
	var last events.Event
	await(t, "the end of an undo", func() bool {
		records, err := r.fleet.Log.Events(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, rec := range records {
			if k := rec.Event.Kind(); k == events.TypeUndoFailed || k == events.TypeRolledBack && rec.Event.Data.Reason == events.ReasonUndo {
				n++
				last = rec.Event
			}
		}
		return n >= nth
	})
	return last
}

var exact = layertest.Options{NoDirTimes: true}

// Another worker undoes, after the first is gone with all that it had, and everything is as before to the nanosecond.
func TestWorker_Undo(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"copy_on_write", "none"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.sh(t, undoTree)
			before := r.copy(t)
			_, stop := r.worker(t, "w1")
			p := r.submit(t, "strategy: "+strategy+"\n"+undoPlan)
			r.ends(t, p.PlanID(), events.StateApplied)
			r.has(t, "n/m/f", "n\n")
			stop()
			r.write(t, "since", "came since\n")
			r.worker(t, "w2")
			r.askUndo(t, p.PlanID())
			e := r.undoEnds(t, p.PlanID(), 1)
			if e.Kind() != events.TypeRolledBack || e.Data.RolledBack != "original" || e.Data.Final || e.Data.Plan.State != events.StateApplied || !e.Data.Plan.Undone {
				t.Fatalf("got %s %+v", e.Kind(), e.Data)
			}
			r.tidied(t)
			o := exact
			o.Skip = []string{"since"}
			layertest.Compare(t, r.tree, before, o)
			r.has(t, "since", "came since\n")
		})
	}
}

func TestWorker_UndoConflict(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.sh(t, undoTree)
	r.worker(t, "w1")
	p := r.submit(t, undoPlan)
	r.ends(t, p.PlanID(), events.StateApplied)
	r.tidied(t)
	before := r.copy(t)
	r.write(t, "a", "edited since\n")
	r.askUndo(t, p.PlanID())
	e := r.undoEnds(t, p.PlanID(), 1)
	if e.Kind() != events.TypeUndoFailed || e.Data.Code != "conflict" || e.Data.Plan.Undoing || e.Data.Plan.Undone || e.Data.Plan.State != events.StateApplied {
		t.Fatalf("got %s %+v", e.Kind(), e.Data)
	}
	want := []events.Conflict{{
		Path: "a", Kind: "content",
		Base:   &events.FileState{Type: "file", Mode: "0644", Size: 4, SHA256: "7aa7a5359173d05b63cfd682e3c38487f3cb4f7f1d60659fe59fab1505977d4c"},
		Ours:   &events.FileState{Type: "file", Mode: "0644", Size: 4, SHA256: "2c8b08da5ce60398e1f19af0e5dccc744df274b826abe585eaba68c525434806"},
		Theirs: &events.FileState{Type: "file", Mode: "0644", Size: 13, SHA256: "0aa86c043e376273bf5155e672be3109482fc955b4e20fd45ae1968adc32e59d"},
	}}
	if diff := cmp.Diff(e.Data.Conflicts, want); diff != "" || e.Data.ConflictCount != 1 {
		t.Errorf("conflicts (-got +want):\n%s", diff)
	}
	r.tidied(t)
	o := exact
	o.Skip = []string{"a"}
	layertest.Compare(t, r.tree, before, o)
	r.has(t, "a", "edited since\n")
	r.write(t, "a", "new\n") // as the plan had left it
	r.askUndo(t, p.PlanID())
	if e := r.undoEnds(t, p.PlanID(), 2); e.Kind() != events.TypeRolledBack {
		t.Fatalf("the second time: %s %s", e.Kind(), e.Data.Error)
	}
	r.has(t, "a", "one\n")
}

func TestWorker_UndoWithoutCheckpoint(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.worker(t, "w1")
	p := r.submit(t, "apply: auto\nsteps: [{run: echo new >a}]\n")
	d := r.ends(t, p.PlanID(), events.StateApplied)
	if err := checkpoint.Remove(t.Context(), r.fleet.Checkpoints, d.Plan.Intent.Checkpoint); err != nil {
		t.Fatal(err)
	}
	r.askUndo(t, p.PlanID())
	if e := r.undoEnds(t, p.PlanID(), 1); e.Data.Code != "no_checkpoint" || !strings.Contains(e.Data.Error, d.Plan.Intent.Checkpoint) {
		t.Errorf("got %s %+v", e.Kind(), e.Data)
	}
	r.has(t, "a", "new\n")
}

// Each step of an undo fails once, as when the worker is lost there and the command comes again: in the end it is done once,
// whole, and said once.
func TestWorker_UndoFaultSweep(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.sh(t, undoTree)
	w := r.make(t, "w1", r.fleet)
	var sweep failing
	w.applyHook = sweep.pass
	run(t, w)
	for at := 0; ; at++ {
		before := r.copy(t)
		p := r.submit(t, undoPlan)
		r.ends(t, p.PlanID(), events.StateApplied)
		r.tidied(t)
		after := r.copy(t)
		sweep.arm(at)
		r.askUndo(t, p.PlanID())
		e := r.undoEnds(t, p.PlanID(), 1)
		reached := sweep.disarm() > at
		if e.Kind() == events.TypeUndoFailed { // taken back, and said so
			r.tidied(t)
			layertest.Compare(t, r.tree, after, exact)
			r.askUndo(t, p.PlanID())
			if e = r.undoEnds(t, p.PlanID(), 2); e.Kind() != events.TypeRolledBack {
				t.Fatalf("step %d: %s", at, e.Data.Error)
			}
		}
		r.tidied(t)
		layertest.Compare(t, r.tree, before, exact)
		if !reached {
			return
		}
	}
}

// failing lets one step of an undo fail.
type failing struct {
	mu       sync.Mutex
	armed    bool
	at, seen int
}

func (f *failing) pass(point string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen++
	if f.armed && f.seen-1 == f.at {
		return fmt.Errorf("%w at %s", errLostHere, point)
	}
	return nil
}

// arm counts from here on and makes the step with this number fail.
func (f *failing) arm(at int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed, f.at, f.seen = true, at, 0
}

// disarm lets all steps pass and returns how many were seen since arm.
func (f *failing) disarm() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed = false
	return f.seen
}

var errLostHere = errors.New("lost here")

// What a killed worker left of an undo is completed by whoever looks at the original next: the same command again, or the
// apply of another plan.
func TestWorker_UndoLeftByALostWorker(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{true, false} {
		t.Run(fmt.Sprintf("Again=%v", again), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.sh(t, undoTree)
			before := r.copy(t)
			lost := r.make(t, "lost", r.fleet)
			defer lost.Close()
			_, stop := r.worker(t, "w1")
			p := r.submit(t, undoPlan)
			r.ends(t, p.PlanID(), events.StateApplied)
			stop()
			r.tidied(t)
			r.halfUndone(t, lost, p.PlanID())
			if _, err := os.Lstat(filepath.Join(r.tree, layer.JournalDir)); err != nil {
				t.Fatalf("nothing is left half made: %v", err)
			}
			r.worker(t, "w2")
			other := ""
			if again {
				r.command(t, events.VerbUndo, p.PlanID())
			} else {
				other = r.submit(t, "apply: auto\nsteps: [{run: echo other >other}]\n").PlanID()
			}
			if e := r.undoEnds(t, p.PlanID(), 1); e.Kind() != events.TypeRolledBack {
				t.Fatalf("got %s %s", e.Kind(), e.Data.Error)
			}
			if other != "" {
				r.ends(t, other, events.StateWaiting)
				r.command(t, events.VerbApply, other)
				r.ends(t, other, events.StateApplied)
				r.has(t, "other", "other\n")
			}
			r.tidied(t)
			o := exact
			o.Skip = []string{"other"}
			layertest.Compare(t, r.tree, before, o)
		})
	}
}

// halfUndone leaves an original as a worker does that is killed in the middle of an undo.
func (r *rig) halfUndone(t *testing.T, w *Worker, id string) {
	t.Helper()
	asked, err := events.OpenWriter(t.Context(), r.fleet.Log, id, "/test")
	if err != nil {
		t.Fatal(err)
	}
	r.append(t, asked, events.TypeUndoRequested, events.Data{})
	j := &job{id: id, cmd: events.NewCommand(r.pool, events.VerbUndo, id)}
	if j.writer, err = events.OpenWriter(t.Context(), r.fleet.Log, id, "/worker/lost"); err != nil {
		t.Fatal(err)
	}
	if j.plan, err = w.body(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	dead := false
	w.applyHook = func(point string) error {
		dead = dead || point == "do 000004"
		if dead {
			return errLostHere // and every step after it, those of taking back included
		}
		return nil
	}
	if err := w.undo(t.Context(), j); !errors.Is(err, errUnsettled) {
		t.Fatalf("got %v, want it unsettled", err)
	}
}
