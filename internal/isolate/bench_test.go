package isolate_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

// leanBinary builds the lean init once per benchmark, where a compiler is at hand.
func leanBinary(b *testing.B) string {
	name := filepath.Join(b.TempDir(), "warmfleet-init")
	cmd := exec.Command("go", "build", "-o", name, "github.com/warmfleet/warmfleet/cmd/warmfleet-init")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Skipf("the lean init can't be built here: %v: %s", err, out)
	}
	return name
}

func BenchmarkStart(b *testing.B) {
	for name, binary := range map[string]string{"Self": "", "Lean": leanBinary(b)} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				i, err := isolate.Start(b.Context(), isolate.Config{Rung: rung(), Binary: binary})
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				i.Close()
				b.StartTimer()
			}
		})
	}
}

func BenchmarkExec(b *testing.B) {
	i, err := isolate.Start(b.Context(), isolate.Config{Rung: rung(), Binary: leanBinary(b)})
	if err != nil {
		b.Fatal(err)
	}
	defer i.Close()
	dir := b.TempDir()
	if os.Getuid() == 0 {
		os.Chown(dir, isolate.HostID, isolate.HostID)
	}
	m, err := isolate.NewMounter(rung())
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	mount, err := m.Bind(b.Context(), isolate.Bind{Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	err = i.Attach(b.Context(), mount)
	mount.Close()
	if err != nil {
		b.Fatal(err)
	}
	b.Run("Sandbox", func(b *testing.B) {
		for b.Loop() {
			if r, err := i.Exec(b.Context(), isolate.Command{Argv: []string{"/bin/true"}}); err != nil || r.Cause != isolate.CauseExit {
				b.Fatal(r, err)
			}
		}
	})
	b.Run("Plain", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("/bin/true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("PlainFork", func(b *testing.B) {
		for b.Loop() {
			pid, err := syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{Files: []uintptr{0, 1, 2}})
			if err != nil {
				b.Fatal(err)
			}
			syscall.Wait4(pid, nil, 0, nil)
		}
	})
}
