//go:build fault

package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// TestFull_EveryWrite lets each write of a scenario fail for lack of space, as if the disk were full at that moment.
func TestFull_EveryWrite(t *testing.T) {
	r := newCrashRig(t, fleettest.Self())
	swept := map[string]bool{}
	var fails []killing
	for _, s := range scenarios() {
		if s.approved || s.dies != "" {
			continue
		}
		rec := r.record(t, s)
		for _, p := range chosen(rec.points, swept) {
			if p.err {
				name := "full-" + s.name + "-" + s.strategy + "-" + strings.NewReplacer(":", "-", ".", "-").Replace(p.String())
				fails = append(fails, killing{rec, p, r.prepare(t, s, name)})
			}
		}
	}
	t.Run("Failed", func(t *testing.T) {
		for _, f := range fails {
			t.Run(f.run.worker, func(t *testing.T) {
				t.Parallel()
				f.run.fullAt(t, f.recorded, f.at)
			})
		}
	})
	r.wholeStore(t)
}

// fullAt runs a scenario in which one write fails, and then another plan on the same worker.
func (r *crashRun) fullAt(t *testing.T, rec recorded, p point) {
	w, ready := r.start(t, "WARMFLEET_FAULT="+p.String()+":enospc")
	if !ready {
		if !strings.Contains(w.Output.String(), "no space left") {
			t.Fatal("the worker does not start, and does not say why")
		}
		if w, ready = r.start(t); !ready {
			t.Fatal("the worker does not start again")
		}
	}
	r.begin(t)
	if !r.finished(t, w) {
		t.Fatal("the worker died")
	}
	r.serves(t)
	r.stop(t, w)
	r.endedForSpace(t, rec)
}

// serves fails the test unless another plan of the run's worker is done.
func (r *crashRun) serves(t *testing.T) {
	t.Helper()
	text, _, _ := strings.Cut(r.body(), "\nmax_attempts")
	next := r.submitText(t, text+"\napply: auto\nsteps: [{run: 'true'}]\n")
	r.Ended(t, next, events.StateApplied)
}

// endedForSpace judges a plan that may have failed for lack of space: then it says so, and the original is as before.
func (r *crashRun) endedForSpace(t *testing.T, rec recorded) {
	t.Helper()
	v := events.BuildView(r.Records(t, r.id))
	if v.State == rec.state && v.State != events.StateFailed {
		r.judge(t, rec)
		return
	}
	said := fleettest.Deref(v.Error) + r.Do(t, "warmfleet", "plan", "logs", r.id)
	named := strings.Contains(said, "space") || strings.Contains(said, "store is full") && strings.Contains(said, "more room")
	if v.State != events.StateFailed || !named && rec.state != events.StateFailed {
		t.Errorf("state %s, error %q, want failed for lack of space\n%s", v.State, fleettest.Deref(v.Error), r.Story(t, r.id))
	}
	o := layertest.Options{NoDirTimes: r.strategy != "none", NoHoles: r.strategy == "git_worktree"}
	if d := layertest.Diff(fleettest.Snapshot(t, r.dir), r.before, o); d != "" {
		t.Errorf("the original (-now +before):\n%s", fleettest.Tail(d, 4000))
	}
}

// onDisk gives a run's directory, its state or its original, a file system of its own.
func (r *crashRun) onDisk(t *testing.T, dir string, megabytes int) {
	t.Helper()
	fleettest.Must(t, os.MkdirAll(dir, 0o755))
	fleettest.Must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("mode=0755,size=%dm", megabytes)))
	r.mount = dir
	fleettest.UnmountAfter(t, dir)
}

// levels of free space move the failure from the first write to behind the last one.
var levels = []int64{0, 64 << 10, 1 << 20, 1200 << 10, 2 << 20, 2400 << 10, 3500 << 10, 8 << 20}

// Case B6, on file systems that really are full.
func TestFull_CaseB6SmallDisks(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	r := newCrashRig(t, fleettest.Self())
	s := scenarios()[0]
	rec := r.record(t, s)
	failed := 0
	for _, free := range levels {
		t.Run(fmt.Sprintf("State%dK", free>>10), func(t *testing.T) {
			run := r.prepare(t, s, fmt.Sprintf("state-%d", free))
			run.onDisk(t, run.state, 32)
			if run.withLittleRoom(t, run.state, free, rec) {
				failed++
			}
		})
	}
	if failed == 0 || failed == len(levels) {
		t.Errorf("%d of %d plans failed for lack of space, want some", failed, len(levels))
	}
	r.wholeStore(t)
}

// withLittleRoom runs the plan while so many bytes are free on a file system, lets go of the rest, and tells whether the plan failed.
func (r *crashRun) withLittleRoom(t *testing.T, at string, free int64, rec recorded) bool {
	t.Helper()
	w, ready := r.start(t)
	if !ready {
		t.Fatal("the worker does not start")
	}
	release := fleettest.FillTo(t, at, free)
	r.begin(t)
	if !r.finished(t, w) {
		t.Fatal("the worker died")
	}
	release()
	r.serves(t)
	r.stop(t, w)
	r.endedForSpace(t, rec)
	return r.failed(t)
}

func (r *crashRun) failed(t *testing.T) bool {
	return events.BuildView(r.Records(t, r.id)).State == events.StateFailed
}

// The original's file system is full when a plan is applied: its sandbox lies elsewhere.
func TestFull_CaseB6Original(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	r := newCrashRig(t, fleettest.Self())
	s := scenarios()[0]
	rec := r.record(t, s)
	failed := 0
	for _, free := range levels {
		t.Run(fmt.Sprintf("Free%dK", free>>10), func(t *testing.T) {
			run := r.prepareOn(t, s, fmt.Sprintf("original-%d", free), 32)
			if run.withLittleRoom(t, filepath.Dir(run.dir), free, rec) {
				failed++
			}
		})
	}
	if failed == 0 || failed == len(levels) {
		t.Errorf("%d of %d plans failed for lack of space, want some", failed, len(levels))
	}
}

// The object store has reached its limit.
func TestFull_CaseB6Store(t *testing.T) {
	r := newCrashRig(t, fleettest.Self())
	s := scenarios()[0]
	rec := r.record(t, s)
	run := r.prepare(t, s, "store")
	w, ready := run.start(t)
	if !ready {
		t.Fatal("the worker does not start")
	}
	r.limitStore(t, 1)
	run.begin(t)
	if !run.finished(t, w) {
		t.Fatal("the worker died")
	}
	if !run.failed(t) {
		t.Errorf("the plan did not fail:\n%s", r.Story(t, run.id))
	}
	r.limitStore(t, -1)
	run.serves(t)
	run.stop(t, w)
	run.endedForSpace(t, rec)
	r.wholeStore(t)
}

// limitStore lets the object store take so many bytes more; -1 is no limit.
func (r *crashRig) limitStore(t *testing.T, more int64) {
	t.Helper()
	stream, err := r.Fleet.JetStream.Stream(t.Context(), "OBJ_"+r.Fleet.Subjects.LayersBucket())
	fleettest.Must(t, err)
	info, err := stream.Info(t.Context())
	fleettest.Must(t, err)
	c := info.Config
	c.MaxBytes = -1
	if more >= 0 {
		c.MaxBytes, c.Discard = int64(info.State.Bytes)+more, jetstream.DiscardNew
	}
	_, err = r.Fleet.JetStream.UpdateStream(t.Context(), c)
	fleettest.Must(t, err)
}
