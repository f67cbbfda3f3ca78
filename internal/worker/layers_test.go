package worker

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/layer/layertest"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/events/eventstest"
)

// A whole plan, with a step that is tried again, a checkpoint that the next step starts from, and an apply; then
// one that fails.
const (
	layersPlan = `apply: auto
steps:
  - {run: "echo half >half; rm -r d; test -e $HOME/tried || { touch $HOME/tried; exit 75; }", retry: {limit: 1, on: ["exit:75"]}}
  - {run: "mkdir d; echo new >d/c; cat d/c >>a; ln a a2; rm half", checkpoint: true}
  - {run: "cmp a a2; echo more >>d/c"}
`
	layersFailing = "apply: auto\nsteps: [{run: \"rm -r d; exit 3\"}]\n"
)

func TestWorker_RunsPlansOnEveryDriver(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, layers, fs, driver, why string }{
		{"Auto", "auto", "", "overlay", ""},
		{"Overlay", "overlay", "", "overlay", ""},
		{"Copy", "copy", "", "copy", "overlay: not asked for; reflink: not asked for"},
		{"ReflinkXFS", "reflink", "xfs", "reflink", "overlay: not asked for"},
		{"ReflinkBtrfs", "reflink", "btrfs", "reflink", "overlay: not asked for"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			cfg := r.config(t, "w1")
			cfg.Layers = tc.layers
			if tc.fs != "" {
				cfg.StateDir = filepath.Join(layertest.Loop(t, tc.fs), "state")
			}
			w, err := New(t.Context(), cfg, r.open(t, eventstest.Connect(t, r.server)), zerolog.Nop())
			if err != nil {
				t.Fatal(err)
			}
			stop := run(t, w)
			defer stop() // before its file system goes
			id := r.submit(t, layersPlan).PlanID()
			seen := r.until(t, id, "its end", func(e events.Event) bool { return e.Data.Final })
			for _, e := range seen {
				if e.Kind() == events.TypeClaimed && (e.Data.Driver != tc.driver || e.Data.DriverWhy != tc.why) {
					t.Errorf("claimed with driver %q, %q; want %q, %q", e.Data.Driver, e.Data.DriverWhy, tc.driver, tc.why)
				}
			}
			if last := seen[len(seen)-1]; last.Data.Plan.State != events.StateApplied {
				t.Fatalf("state %s: %s", last.Data.Plan.State, last.Data.Error)
			}
			id = r.submit(t, layersFailing).PlanID()
			r.ends(t, id, events.StateFailed)
			r.has(t, "a", "one\nnew\n")
			r.has(t, "a2", "one\nnew\n")
			r.has(t, "d/c", "new\nmore\n")
			r.has(t, "d/b", "")
			r.has(t, "half", "")
		})
	}
}

// Where a driver that was asked for does not work the worker does not start, and says why.
func TestNew_DriverThatDoesNotWork(t *testing.T) {
	r := newRig(t)
	cfg := r.config(t, "w1")
	cfg.StateDir, cfg.Layers = shm(t), "reflink"
	_, err := New(t.Context(), cfg, r.fleet, zerolog.Nop())
	if !errors.Is(err, layer.ErrDriver) || !strings.Contains(err.Error(), "cannot share blocks") {
		t.Fatalf("error %v, want one that says why", err)
	}
}

// shm is a directory on a file system without shared blocks.
func shm(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "worker")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := layer.RemoveTree(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
