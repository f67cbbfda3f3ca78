package worker

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/events/eventstest"
)

// What a step finds out: whose it is, what it sees of the host and of the network.
const rungPlan = `apply: auto
steps:
  - {run: "{ cat /etc/shadow || cat %[1]s/secret || echo x >%[1]s/new; } 2>/dev/null && exit 9; test $(id -u) != 0"}
  - {run: "exec 2>/dev/null; (exec 3<>/dev/tcp/127.0.0.1/%[2]s) && exit 9; sleep 300 & exit 0"}
`

// Every rung runs whole plans: with a retry, a checkpoint, an apply and a failure, kept from the host's files and network.
func TestWorker_RunsPlansOnEveryRung(t *testing.T) {
	t.Parallel()
	for _, rung := range isolate.Rungs() {
		t.Run(string(rung), func(t *testing.T) {
			r := newRig(t)
			cfg := r.config(t, "w1")
			cfg.StateDir, cfg.Rungs = passableDir(t), []isolate.Rung{rung}
			if rung == isolate.RungLandlock {
				cfg.Isolation = Preferred // it does not promise to find every process
			}
			w, err := New(t.Context(), cfg, r.open(t, eventstest.Connect(t, r.server)), zerolog.Nop())
			if err != nil {
				t.Fatal(err)
			}
			stop := run(t, w)
			defer stop()
			if w.report.Rung != rung {
				t.Fatalf("isolation %s (%s), want %s", w.report.Rung, w.report.RungWhy, rung)
			}
			r.ends(t, r.submit(t, layersPlan).PlanID(), events.StateApplied)
			r.ends(t, r.submit(t, layersFailing).PlanID(), events.StateFailed)
			for name, content := range map[string]string{"a": "one\nnew\n", "a2": "one\nnew\n", "d/c": "new\nmore\n", "d/b": "", "half": ""} {
				r.has(t, name, content)
			}
			outside := passableDir(t)
			err = errors.Join(os.Chmod(outside, 0o777), os.WriteFile(outside+"/secret", []byte("canary"), 0o644))
			if err != nil {
				t.Fatal(err)
			}
			_, port, _ := strings.Cut(strings.TrimPrefix(r.server.ClientURL(), "nats://"), ":")
			seen := r.until(t, r.submit(t, fmt.Sprintf(rungPlan, outside, port)).PlanID(), "its end", func(e events.Event) bool { return e.Data.Final })
			if last := seen[len(seen)-1].Data; last.Plan.State != events.StateApplied {
				t.Fatalf("a step saw of the host what it must not: %s %s", last.Plan.State, last.Error)
			}
			i := slices.IndexFunc(seen, ofKind(events.TypeClaimed))
			if got := seen[i].Data.Isolation; got != string(rung) {
				t.Errorf("claimed with isolation %q, want %q", got, rung)
			}
		})
	}
}

// What a rung can't promise and what it can't do is refused before anything runs.
func TestWorker_RefusesWhatARungLacks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cfg := r.config(t, "w1")
	cfg.StateDir, cfg.Rungs = passableDir(t), []isolate.Rung{isolate.RungLandlock}
	w, err := New(t.Context(), cfg, r.open(t, eventstest.Connect(t, r.server)), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer run(t, w)()
	if d := r.ends(t, r.submit(t, layersPlan).PlanID(), events.StateFailed); !strings.Contains(d.Error, isolate.TreeKill) {
		t.Errorf("where isolation is required: failed with %q, want the end of trees as what is missing", d.Error)
	}
	d := r.ends(t, r.submit(t, "network: [example.org]\nsteps: [{run: \"touch ran\"}]\n").PlanID(), events.StateFailed)
	if !strings.Contains(d.Error, "a list of hosts") || !strings.Contains(d.Error, "landlock") {
		t.Errorf("refused with %q", d.Error)
	}
}

// passableDir is a directory that its owner has to itself, with nothing closed above it.
func passableDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "worker-")
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
