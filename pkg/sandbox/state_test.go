package sandbox_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

func TestState_Next(t *testing.T) {
	all := []sandbox.State{
		sandbox.Pending, sandbox.Created, sandbox.Active, sandbox.Checkpointed,
		sandbox.RolledBack, sandbox.Committed, sandbox.Errored, sandbox.CleanedUp,
	}
	allowed := map[string]bool{}
	for _, line := range []string{
		"pending>created", "created>active", "active>committed", "committed>cleaned_up",
		"active>checkpointed", "checkpointed>active", "checkpointed>committed", "checkpointed>cleaned_up",
		"active>rolled_back", "rolled_back>active", "rolled_back>cleaned_up",
		"pending>errored", "created>errored", "active>errored", "errored>cleaned_up", "created>cleaned_up",
	} {
		allowed[line] = true
	}
	for _, from := range all {
		for _, to := range all {
			err := from.Next(to)
			if got, want := err == nil, allowed[string(from)+">"+string(to)]; got != want {
				t.Errorf("%s -> %s: allowed %v, want %v", from, to, got, want)
			}
			if err == nil {
				continue
			}
			if !errors.Is(err, sandbox.ErrTransition) || !strings.Contains(err.Error(), string(from)) || !strings.Contains(err.Error(), string(to)) {
				t.Errorf("%s -> %s: error %q does not name both states", from, to, err)
			}
		}
	}
}
