package test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// Programs that people run hold nothing that could make them fail on request.
func TestFault_OrdinaryProgramsHaveNone(t *testing.T) {
	for _, name := range []string{"warmfleet", "worker", "scheduler", "warmfleet-init"} {
		b, err := os.ReadFile(filepath.Join(bin(t), name))
		must(t, err)
		if bytes.Contains(b, []byte("WARMFLEET_FAULT")) || bytes.Contains(b, []byte("WARMFLEET_BROKEN")) {
			t.Errorf("%s looks for faults in its environment", name)
		}
	}
}
