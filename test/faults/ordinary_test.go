package faults

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/warmfleet/warmfleet/test/fleettest"
)

// Programs that people run hold nothing that could make them fail on request.
func TestFault_OrdinaryProgramsHaveNone(t *testing.T) {
	for _, name := range []string{"warmfleet", "worker", "scheduler", "warmfleet-init"} {
		b, err := os.ReadFile(filepath.Join(fleettest.Bin(t), name))
		fleettest.Must(t, err)
		if bytes.Contains(b, []byte("WARMFLEET_FAULT")) || bytes.Contains(b, []byte("WARMFLEET_BROKEN")) {
			t.Errorf("%s looks for faults in its environment", name)
		}
	}
}
