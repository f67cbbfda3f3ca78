package worker

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// held waits in a step until the test wrote into the file `hold` of the original. A file that the test removed might
// stay visible: the kernel remembers names that it has looked up.
const held = "n=0; while ! grep -q go hold; do n=$((n+1)); [ $n -lt 2000 ]; sleep 0.01; done"

// livePlan is a plan on a live base whose step waits before it does its work.
func livePlan(apply, script string) string {
	return "base: live\napply: " + apply + "\nsteps:\n- id: s\n  run: |\n    " + held + "\n    " + script + "\n"
}

// meanwhile submits a plan, and changes the original between its start and its step's work.
func (r *rig) meanwhile(t *testing.T, text string, change func()) *events.Writer {
	t.Helper()
	r.write(t, "hold", "wait")
	settle(t)
	p := r.submit(t, text)
	r.until(t, p.PlanID(), "step", ofKind(events.TypeStepStarted))
	if change != nil {
		change()
	}
	r.write(t, "hold", "go")
	return p
}

// settle returns when what was written until now is surely older than what comes next.
func settle(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(60 * time.Millisecond); time.Now().Before(end); {
		select {
		case <-t.Context().Done():
			t.Fatal("interrupted")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestWorker_LiveBase(t *testing.T) {
	r := newRig(t)
	w, _ := r.worker(t, "w1")
	r.write(t, "gone", "x")
	p := r.meanwhile(t, livePlan("auto", "cat d/b >copy; echo two >>a; mkdir -p n/m; echo new >n/m/f; rm gone; mv d/b d/c"), nil)
	r.ends(t, p.PlanID(), events.StateApplied)
	r.has(t, "a", "one\ntwo\n")
	r.has(t, "n/m/f", "new\n")
	r.has(t, "copy", "two\n")
	r.has(t, "d/c", "two\n")
	r.has(t, "gone", "")
	items, err := w.bases.Items()
	if err != nil || len(items) != 0 {
		t.Errorf("an image was made: %d, %v", len(items), err)
	}
	all, err := checkpoint.All(t.Context(), r.fleet.Checkpoints)
	if err != nil || len(all) == 0 {
		t.Fatalf("%d records, %v", len(all), err)
	}
	for _, cp := range all {
		if cp.Phase != checkpoint.PreApply && (cp.Portable || !cp.Live || len(cp.Base) > 0) {
			t.Errorf("record of %s: portable %v, live %v, %d base layers", cp.Phase, cp.Portable, cp.Live, len(cp.Base))
		}
	}
}

// Whatever others change under a sandbox that the plan changes too is a conflict, whatever the order and the stat.
func TestWorker_LiveBaseDrift(t *testing.T) {
	old := time.Unix(1_700_000_000, 0)
	for _, tc := range []struct {
		name   string
		script string
		change func(t *testing.T, r *rig)
		want   []string // conflicts; none: applied
		drift  []string
	}{
		{"Elsewhere", "echo x >>a", func(t *testing.T, r *rig) { r.write(t, "d/b", "by others\n") }, nil, []string{"d/b"}},
		{"BesideANewFile", "echo x >new", func(t *testing.T, r *rig) { r.write(t, "other", "by others\n") }, nil, []string{"other"}},
		{"SameFile", "echo x >>a", func(t *testing.T, r *rig) { r.write(t, "a", "by others\n") }, []string{"a"}, []string{"a"}},
		{"SameSizeAndTime", "echo x >>a", func(t *testing.T, r *rig) {
			r.write(t, "a", "eno\n")
			if err := os.Chtimes(filepath.Join(r.tree, "a"), old, old); err != nil {
				t.Fatal(err)
			}
		}, []string{"a"}, []string{"a"}},
		{"Deleted", "echo x >a", func(t *testing.T, r *rig) {
			if err := os.Remove(filepath.Join(r.tree, "a")); err != nil {
				t.Fatal(err)
			}
		}, []string{"a"}, []string{"a", "."}},
		{"AddedBoth", "echo x >new", func(t *testing.T, r *rig) { r.write(t, "new", "by others\n") }, []string{"new"}, []string{"new"}},
		{"ParentReplaced", "echo x >d/new", func(t *testing.T, r *rig) {
			err := os.Rename(filepath.Join(r.tree, "d"), filepath.Join(r.tree, "e"))
			if err != nil {
				t.Fatal(err)
			}
			r.write(t, "d/b", "two\n")
		}, []string{"d/new"}, []string{"d", "d/b", "e", "e/b"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			r.worker(t, "w1")
			if err := os.Chtimes(filepath.Join(r.tree, "a"), old, old); err != nil {
				t.Fatal(err)
			}
			p := r.meanwhile(t, livePlan("auto", tc.script), func() { tc.change(t, r) })
			state := events.StateApplied
			if len(tc.want) > 0 {
				state = events.StateConflict
			}
			seen := r.until(t, p.PlanID(), state, func(e events.Event) bool { return e.Data.Plan.State == state })
			last := seen[len(seen)-1].Data
			var got []string
			for _, c := range last.Conflicts {
				if c.Kind != "drift" {
					t.Errorf("conflict of kind %q, want drift", c.Kind)
				}
				got = append(got, c.Path)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("conflicts (-want +got):\n%s", d)
			}
			executed := seen[slices.IndexFunc(seen, ofKind(events.TypeExecuted))].Data
			for _, want := range tc.drift {
				if !slices.Contains(executed.Drift, want) {
					t.Errorf("drift %q, want %q in it", executed.Drift, want)
				}
			}
			if len(tc.want) > 0 {
				r.has(t, "new", map[bool]string{true: "by others\n"}[tc.name == "AddedBoth"])
			}
		})
	}
}

// An approval days later, on a worker that was started since, applies the bytes.
func TestWorker_LiveBaseApprovedLater(t *testing.T) {
	r := newRig(t)
	_, stop := r.worker(t, "w1")
	p := r.meanwhile(t, livePlan("manual", "echo two >>a; echo new >n"), nil)
	r.ends(t, p.PlanID(), events.StateAwaitingApproval)
	stop()
	w, _ := r.worker(t, "w2")
	id := p.PlanID()
	last, err := r.fleet.Log.Last(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.hold(t.Context(), last.Event.Data.Plan.Checkpoint.ID); err == nil || !strings.Contains(err.Error(), "live") {
		t.Errorf("a sandbox on a live base was made again: %v", err)
	}
	p, err = events.OpenWriter(t.Context(), r.fleet.Log, id, "/test")
	if err != nil {
		t.Fatal(err)
	}
	r.approve(t, p)
	r.ends(t, id, events.StateApplied)
	r.has(t, "a", "one\ntwo\n")
	r.has(t, "n", "new\n")
}

// A plan whose worker was lost starts from the beginning: its checkpoints would show another original.
func TestWorker_LiveBaseStartsAgain(t *testing.T) {
	r := newRig(t)
	_, stop := r.worker(t, "w1")
	r.write(t, "hold", "wait")
	settle(t)
	p := r.submit(t, "base: live\napply: auto\nsteps:\n- id: one\n  checkpoint: true\n  run: cat a >seen\n- id: two\n  run: |\n    "+held+"\n")
	r.until(t, p.PlanID(), "second step", func(e events.Event) bool { return e.Kind() == events.TypeStepStarted && e.Data.Step == "two" })
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	r.until(t, p.PlanID(), "hand-over", ofKind(events.TypeInterrupted))
	<-stopped
	r.write(t, "a", "changed since\n")
	r.write(t, "hold", "go")
	r.worker(t, "w2")
	r.ends(t, p.PlanID(), events.StateApplied)
	r.has(t, "seen", "changed since\n")
}

// A copy is no live base: a worker that was told to copy refuses it.
func TestWorker_LiveBaseNeedsOverlay(t *testing.T) {
	r := newRig(t)
	cfg := r.config(t, "w1")
	cfg.Layers = "copy"
	w, err := New(t.Context(), cfg, r.fleet, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	run(t, w)
	p := r.submit(t, livePlan("auto", "echo two >>a"))
	d := r.ends(t, p.PlanID(), events.StateFailed)
	if d.Code != "unsupported" || !strings.Contains(d.Error, "--layers copy") {
		t.Errorf("got code %q: %s", d.Code, d.Error)
	}
	r.has(t, "a", "one\n")
}
