package worker

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/events/eventstest"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

// A plan that asks for strong isolation gets it or is refused: in words that say what is missing, before anything runs.
func TestWorker_StrongOrNothing(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // no runsc
	held := isolate.Report{Rung: isolate.Rungs()[0]}
	for name, c := range map[string]struct {
		report isolate.Report
		plan   plan.Plan
		want   string // in the refusal; "": none
	}{
		"NotAsked":     {held, plan.Plan{Isolation: plan.IsolationRequired}, ""},
		"NotInstalled": {held, plan.Plan{Isolation: plan.IsolationStrong}, "runsc is not on the PATH"},
		"OfAPool":      {held, plan.Plan{Isolation: plan.IsolationStrong, Pool: "p"}, "--isolation strong"},
		"NoNamespaces": {isolate.Unisolated("a reason", "a fix"), plan.Plan{Isolation: plan.IsolationStrong}, "isolation bare"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &Worker{cfg: Config{Isolation: Required, StateDir: t.TempDir()}, report: c.report}
			err := w.tryStrong(t.Context(), &c.plan)
			var refused *refusal
			if c.want == "" && err != nil || c.want != "" && (!errors.As(err, &refused) || refused.code != "unmet_isolation" || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want a refusal with %q", err, c.want)
			}
		})
	}
}

// A worker that is to isolate strongly does not start where that does not work.
func TestWorker_StrongPolicyWithoutRunsc(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	w := &Worker{cfg: Config{Isolation: Strong}}
	if _, err := w.probe(t.Context(), t.TempDir()); !errors.Is(err, ErrNoStrong) || !strings.Contains(err.Error(), "docs/gvisor.md") {
		t.Errorf("got %v, want %v and what to do", err, ErrNoStrong)
	}
}

// A plan gets a kernel for its commands by its own wish or its worker's, and leaves what it changed like another.
func TestWorker_RunsStrongPlans(t *testing.T) {
	if path := os.Getenv("WARMFLEET_TEST_RUNSC"); path != "" {
		t.Setenv("PATH", filepath.Dir(path)+":"+os.Getenv("PATH"))
	}
	if _, err := isolate.FindRunsc(); err != nil {
		t.Skip("gVisor is not installed")
	}
	const steps = "apply: auto\nsteps: [{id: s, run: \"grep -q 'Linux version 4.4.0' /proc/version && echo strong >>a\", checkpoint: true}, {run: cat a >b}]\n"
	for policy, text := range map[Isolation]string{Strong: steps, Required: "isolation: strong\n" + steps} {
		t.Run(string(policy), func(t *testing.T) {
			r := newRig(t)
			cfg := r.config(t, "w1")
			cfg.Isolation = policy
			w, err := New(t.Context(), cfg, r.open(t, eventstest.Connect(t, r.server)), zerolog.Nop())
			if err != nil {
				t.Fatal(err)
			}
			defer run(t, w)()
			seen := r.until(t, r.submit(t, text).PlanID(), "its end", func(e events.Event) bool { return e.Data.Final })
			if last := seen[len(seen)-1].Data; last.Plan.State != events.StateApplied {
				t.Fatalf("%s: %s", last.Plan.State, last.Error)
			}
			r.has(t, "b", "one\nstrong\n")
			claimed := seen[slices.IndexFunc(seen, ofKind(events.TypeClaimed))].Data
			if claimed.Isolation != string(isolate.RungStrong) || claimed.Guarantees[isolate.KernelSurface] != string(isolate.Enforced) {
				t.Errorf("claimed with isolation %q, guarantees %v", claimed.Isolation, claimed.Guarantees)
			}
		})
	}
}
