package isolate_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

// The program may lie where the sandbox's user can't go, and be nobody else's to execute.
func TestStart_PrivateProgram(t *testing.T) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []os.FileMode{0o755, 0o700} {
		name := filepath.Join(tempDir(t), "program")
		if err := os.WriteFile(name, self, mode); err != nil {
			t.Fatal(err)
		}
		b := newBox(t, isolate.Config{Binary: name})
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		if out, _ := b.sh("echo ok"); out != "ok\n" {
			t.Errorf("mode %o: got %q", mode, out)
		}
	}
	if _, err := isolate.Start(testContext(t), isolate.Config{Rung: rung(), Binary: "/no/such"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing program: got %v", err)
	}
	// A program that is no init ends without answering.
	if _, err := isolate.Start(testContext(t), isolate.Config{Rung: rung(), Binary: "/bin/false"}); err == nil {
		t.Error("foreign program: got no error")
	}
}
