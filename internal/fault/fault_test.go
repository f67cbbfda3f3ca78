//go:build !fault

package fault

import (
	"os"
	"testing"
)

// An ordinary program has no points and all its guards, whatever its environment says.
func TestPoints_OrdinaryBuildHasNone(t *testing.T) {
	trace := t.TempDir() + "/trace"
	t.Setenv("WARMFLEET_FAULT", "a.b:1+:kill")
	t.Setenv("WARMFLEET_FAULT_TRACE", trace)
	t.Setenv("WARMFLEET_BROKEN", "a.b")
	At("a.b")
	AtEach("a", "b")
	for _, err := range []error{Err("a.b"), Hook("a")("b 1")} {
		if err != nil {
			t.Errorf("error %v, want none", err)
		}
	}
	if Enabled || Off("a.b") {
		t.Error("a guard is left out")
	}
	if _, err := os.Lstat(trace); !os.IsNotExist(err) {
		t.Errorf("trace: %v, want no file", err)
	}
}
