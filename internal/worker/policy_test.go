package worker

import (
	"errors"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

// Sandboxes of pools, builds and sessions come with no plan that could require anything:
// what the worker requires holds for them all the same, before anything is started.
func TestWorker_RequiresForEverySandbox(t *testing.T) {
	none := isolate.Unisolated("a reason", "a fix")
	for _, c := range []struct {
		policy  Isolation
		plan    plan.Isolation
		sandbox bool // whether one may be started for nobody's plan
		runs    bool // whether the plan may
	}{
		{Required, "", false, false},
		{Required, plan.IsolationPreferred, false, false},
		{Preferred, "", true, true},
		{Preferred, plan.IsolationRequired, true, false},
		{Off, plan.IsolationRequired, true, false},
		{Off, "", true, true},
	} {
		t.Run(string(c.policy)+"/"+string(c.plan), func(t *testing.T) {
			w := &Worker{cfg: Config{Isolation: c.policy}, report: none}
			if !c.sandbox {
				_, err := w.startInit(t.Context(), isolate.NetworkNone, false)
				var refused *refusal
				if !errors.As(err, &refused) || refused.code != "unmet_isolation" {
					t.Errorf("startInit: %v, want it refused", err)
				}
			}
			if err := w.holds(isolate.NetworkNone); (err == nil) != c.sandbox {
				t.Errorf("holds: %v, want %v", err, c.sandbox)
			}
			err := w.meets(&plan.Plan{Isolation: c.plan, Network: &plan.Network{Mode: plan.NetworkNone}})
			if (err == nil) != c.runs {
				t.Fatalf("meets: %v, want %v", err, c.runs)
			}
			if err != nil && (!strings.Contains(err.Error(), "writes (a reason; a fix)") || !strings.Contains(err.Error(), "isolation")) {
				t.Errorf("meets: %v, want what is missing, why and what to do", err)
			}
		})
	}
}
