package worker

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/plan/applier"
)

// ghost claims a plan as a worker that will not be heard of again.
func (r *rig) ghost(t *testing.T, text string) *events.Writer {
	t.Helper()
	w := r.accept(t, text)
	if err := w.Claim(t.Context(), events.Data{Worker: "ghost"}); err != nil {
		t.Fatal(err)
	}
	return w
}

func TestWorker_NobodyIsAskedTwiceButEverybodyOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.ghost(t, "steps: [{run: echo new >a}]\n")
	changed := 1
	r.append(t, w, events.TypeExecuted, events.Data{Changed: &changed})
	r.command(t, events.VerbRun, w.PlanID())
	r.worker(t, "heir")
	r.ends(t, w.PlanID(), events.StateAwaitingApproval)
	r.has(t, "a", "one\n")
}

// leftInPlace is a plan of strategy none whose worker was lost while the original was changed.
func (r *rig) leftInPlace(t *testing.T, heir *Worker, text string) *events.Writer {
	t.Helper()
	w := r.ghost(t, "strategy: none\napply: auto\n"+text)
	base, err := heir.bases.FromPath(t.Context(), r.tree)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(base.Release)
	j := &job{id: w.PlanID(), plan: &plan.Plan{OnFailure: plan.Rollback}}
	if err := heir.mark(t.Context(), j, &target{path: r.tree, chain: base.Chain, index: base.Index}); err != nil {
		t.Fatal(err)
	}
	r.write(t, "a", "half done\n")
	return w
}

func TestWorker_LostInPlace(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		then  func(t *testing.T, r *rig, w *events.Writer)
		state string
		left  string
	}{
		{"RunsAgain", func(*testing.T, *rig, *events.Writer) {}, events.StateApplied, "one\nnew\n"},
		{"Cancelled", func(t *testing.T, r *rig, w *events.Writer) {
			r.append(t, w, events.TypeCancelRequested, events.Data{By: "test"})
		}, events.StateCancelled, "one\n"},
		{"LostTooOften", func(t *testing.T, r *rig, w *events.Writer) {
			for range 2 {
				if err := w.Claim(t.Context(), events.Data{Worker: "ghost"}); err != nil {
					t.Fatal(err)
				}
			}
		}, events.StateDead, "one\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			heir := r.make(t, "heir", r.fleet)
			w := r.leftInPlace(t, heir, "steps: [{run: echo new >>a}]\n")
			tc.then(t, r, w)
			r.command(t, events.VerbRun, w.PlanID())
			run(t, heir)
			d := r.ends(t, w.PlanID(), tc.state)
			if tc.state != events.StateApplied && d.RolledBack != "original" {
				t.Errorf("rolled back %q, want original", d.RolledBack)
			}
			r.has(t, "a", tc.left)
			r.unmarked(t, heir)
			if found, err := sign(r.tree); err != nil || found != "" {
				t.Errorf("the original is still marked by %q, %v", found, err)
			}
		})
	}
}

// A mark that came with a copy of an original says nothing about the copy.
func TestWorker_MarkOfAnotherPath(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.make(t, "w1", r.fleet)
	defer w.Close()
	r.leftInPlace(t, w, "steps: [{run: 'true'}]\n")
	found, err := sign(r.tree)
	if err != nil || found == "" {
		t.Skipf("extended attributes of %s cannot be read or kept: %v", r.tree, err)
	}
	copied := t.TempDir()
	if err := unix.Lsetxattr(copied, signName(), []byte(found), 0); err != nil {
		t.Fatal(err)
	}
	unlock, err := w.lockPath(t.Context(), copied, true)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	if found, err := sign(copied); err != nil || found != "" {
		t.Errorf("the copy is still marked by %q, %v", found, err)
	}
	r.has(t, "a", "half done\n") // untouched: its lock was not held
	if err := os.RemoveAll(r.tree); err != nil {
		t.Fatal(err)
	}
	if err := w.recoverInPlace(t.Context()); err != nil {
		t.Errorf("an original that is gone keeps the worker from starting: %v", err)
	}
}

// An apply that another worker left complete but unrecorded is recorded first, as that plan's.
func TestWorker_RecordsAnInterruptedApplyOfAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lost := r.ghost(t, "apply: auto\nsteps: [{run: echo x >made}]\n")
	changed := 1
	r.append(t, lost, events.TypeExecuted, events.Data{Changed: &changed})
	r.append(t, lost, events.TypeApplyIntent, events.Data{})
	r.leaveJournal(t, lost.PlanID())
	r.worker(t, "heir")
	w := r.submit(t, "apply: auto\nsteps: [{run: cat made; echo new >a}]\n")
	r.until(t, w.PlanID(), "another try", ofKind(events.TypeRetrying))
	r.command(t, events.VerbApply, w.PlanID()) // as a scheduler does
	r.ends(t, w.PlanID(), events.StateApplied)
	if d := r.ends(t, lost.PlanID(), events.StateApplied); d.Reason != "recovered" {
		t.Errorf("reason %q, want recovered", d.Reason)
	}
	r.has(t, "a", "new\n")
	r.has(t, "made", "x\n")
}

// What an apply left in the original goes also when its plan has ended: nobody else may come by.
func TestWorker_TidiesAfterALostApply(t *testing.T) {
	t.Parallel()
	changed := 1
	for _, tc := range []struct{ name, end string }{
		{"Recorded", events.TypeApplied},
		{"NeverBegun", events.TypeCancelled},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			lost := r.ghost(t, "apply: auto\nsteps: [{run: echo x >made}]\n")
			r.append(t, lost, events.TypeExecuted, events.Data{Changed: &changed})
			if tc.end == events.TypeApplied {
				r.append(t, lost, events.TypeApplyIntent, events.Data{})
				r.leaveJournal(t, lost.PlanID())
			} else {
				r.write(t, layer.JournalDir+"/"+lost.PlanID()+".1/000000", "staged")
				if err := os.Chmod(filepath.Join(r.tree, layer.JournalDir), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			r.append(t, lost, tc.end, events.Data{Changed: &changed})
			r.command(t, events.VerbRun, lost.PlanID())
			r.worker(t, "heir")
			r.tidied(t)
			if tc.end == events.TypeApplied {
				r.has(t, "made", "x\n")
			}
		})
	}
}

// tidied waits until nothing of an apply is left in the original.
func (r *rig) tidied(t *testing.T) {
	t.Helper()
	await(t, "end of the journal's directory", func() bool {
		_, err := os.Lstat(filepath.Join(r.tree, layer.JournalDir))
		return os.IsNotExist(err) || os.IsPermission(err) // gone, or nothing can be in it
	})
}

// closed waits until the owner of the original may not write in it.
func (r *rig) closed(t *testing.T) {
	t.Helper()
	await(t, "closed root", func() bool {
		fi, err := os.Stat(r.tree)
		return err == nil && fi.Mode().Perm()&0o200 == 0
	})
}

// unmarked waits until a worker has no marker left.
func (r *rig) unmarked(t *testing.T, w *Worker) {
	t.Helper()
	await(t, "end of the markers", func() bool {
		left, err := os.ReadDir(filepath.Join(w.cfg.StateDir, "inplace"))
		return err == nil && len(left) == 0
	})
}

func await(t *testing.T, what string, reached func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(patience); !reached(); {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("no %s", what)
		}
	}
}

// A step that works in place can write anything into the original, but no journal that an apply would follow.
func TestWorker_InPlaceLeavesNoJournal(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, step, state string }{
		{"Applied", "mkdir -m 700 .warmfleet-apply; echo forged >.warmfleet-apply/journal.applying", events.StateApplied},
		{"Link", "ln -s /etc .warmfleet-apply", events.StateApplied},
		{"Failed", "mkdir -m 000 .warmfleet-apply; exit 1", events.StateFailed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.worker(t, "w1")
			w := r.submit(t, "strategy: none\napply: auto\nsteps: [{run: \""+tc.step+"\"}]\n")
			r.ends(t, w.PlanID(), tc.state)
			r.tidied(t)
			w = r.submit(t, "apply: auto\nsteps: [{run: echo new >a}]\n")
			r.ends(t, w.PlanID(), events.StateApplied)
		})
	}
}

// A plan may close the original even to its owner, and is done with all the same.
func TestWorker_OriginalClosedToItsOwner(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, plan, state string }{
		{"Applied", "apply: auto\nsteps: [{run: chmod 555 .}]\n", events.StateApplied},
		{"InPlace", "strategy: none\napply: auto\nsteps: [{run: chmod 0 .}]\n", events.StateApplied},
		{"InPlaceFailed", "strategy: none\napply: auto\nsteps: [{run: rm a; chmod 0 .; exit 1}]\n", events.StateFailed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			w, _ := r.worker(t, "w1")
			p := r.submit(t, tc.plan)
			r.ends(t, p.PlanID(), tc.state)
			r.tidied(t)
			r.unmarked(t, w)
			if tc.state == events.StateFailed {
				r.has(t, "a", "one\n")
				return
			}
			r.closed(t)
			if err := os.Chmod(r.tree, 0o755); err != nil { // for the end of the test
				t.Fatal(err)
			}
		})
	}
}

// A worker that was lost after a step closed the original starts again, and opens it.
func TestWorker_LostInClosedOriginal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	heir := r.make(t, "heir", r.fleet)
	defer heir.Close()
	r.leftInPlace(t, heir, "steps: [{run: chmod 0 .}]\n")
	if err := os.Chmod(r.tree, 0); err != nil {
		t.Fatal(err)
	}
	if err := heir.recoverInPlace(t.Context()); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(r.tree, 0o755); err != nil {
		t.Fatal(err)
	}
	r.has(t, "a", "one\n")
}

// An apply that was interrupted is settled before a plan works in place.
func TestWorker_InPlaceAfterALostApply(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lost := r.ghost(t, "apply: auto\nsteps: [{run: echo x >made}]\n")
	changed := 1
	r.append(t, lost, events.TypeExecuted, events.Data{Changed: &changed})
	r.append(t, lost, events.TypeApplyIntent, events.Data{})
	r.leaveJournal(t, lost.PlanID())
	r.worker(t, "heir")
	w := r.submit(t, "strategy: none\napply: auto\nsteps: [{run: cat made}]\n")
	r.until(t, w.PlanID(), "another try", ofKind(events.TypeRetrying))
	r.ends(t, w.PlanID(), events.StateApplied)
	r.ends(t, lost.PlanID(), events.StateApplied)
	r.tidied(t)
}

// oneFile is the content of whatever it is asked for.
type oneFile string

func (f oneFile) Open(layer.Path) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(string(f))), nil
}

// leaveJournal adds a file `made` to the original as an apply whose worker was lost before it
// could record that.
func (r *rig) leaveJournal(t *testing.T, planID string) {
	t.Helper()
	s, err := applier.Open(t.Context(), r.tree, applier.Options{Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	after := layer.Entry{Path: "made", Type: layer.File, Mode: 0o644, UID: layer.Self, GID: layer.Self, Size: 2, Digest: "sha256:73cb3858a687a8494ca3323053016282f3dad39d42cf62ca4e79dda2aac7d9ac"}
	p, found, err := s.Check(t.Context(), applier.Request{
		Plan: planID, Epoch: 1, Changes: []layer.Change{{Path: "made", After: &after}}, Content: oneFile("x\n"),
	})
	if err == nil && len(found) > 0 {
		t.Fatalf("conflicts: %v", found)
	}
	if err == nil {
		err = s.Stage(t.Context(), p)
	}
	if err == nil {
		err = s.Commit(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// The mark of work in place is no change of the original.
func TestWorker_InPlaceMarkIsNoChange(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.worker(t, "w1")
	w := r.submit(t, "strategy: none\napply: auto\nsteps: [{run: 'true'}]\n")
	end := r.ends(t, w.PlanID(), events.StateApplied)
	if end.Changed == nil || *end.Changed != 0 {
		t.Errorf("changed %v, want 0", end.Changed)
	}
}

// What a killed rollback had staged in the original goes without a trace in the times of its root.
func TestWorker_LostInRollbackInPlace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	then := time.Date(2001, 2, 3, 4, 5, 6, 123456789, time.UTC)
	if err := os.Chtimes(r.tree, then, then); err != nil {
		t.Fatal(err)
	}
	heir := r.make(t, "heir", r.fleet)
	defer heir.Close()
	r.leftInPlace(t, heir, "steps: [{run: 'true'}]\n")
	r.write(t, layer.JournalDir+"/restore-01/0", "staged")
	if err := heir.recoverInPlace(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.has(t, "a", "one\n")
	r.tidied(t)
	if fi, err := os.Stat(r.tree); err != nil || !fi.ModTime().Equal(then) {
		t.Errorf("root's time %v, %v, want %v", fi.ModTime(), err, then)
	}
}
