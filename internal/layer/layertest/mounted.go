package layertest

import (
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// overlayChild, in the environment, makes the test binary mount a view, run a step in it, and report.
const overlayChild = "WARMFLEET_LAYER_TEST_CHILD"

// childJob is what the child has to do; childReport is what it saw in the mount afterwards.
type childJob struct {
	Overlay Overlay
	Step    string
	At, Out string
}

type childReport struct {
	Snapshot Snapshot
	Err      string
}

// Main is what TestMain of a package with views calls: it runs the tests, or, in a process that InOverlay started, one step
// in its mount, by do.
func Main(m *testing.M, do func(step, dir string) error) int {
	if job := os.Getenv(overlayChild); job != "" {
		if err := runChild(job, do); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	return m.Run()
}

func runChild(file string, do func(step, dir string) error) error {
	var job childJob
	if err := readGob(file, &job); err != nil {
		return err
	}
	if err := job.Overlay.Mount(job.At); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	var report childReport
	if job.Step != "" {
		if err := do(job.Step, job.At); err != nil {
			report.Err = err.Error()
		}
	}
	snap, err := Take(job.At)
	if err != nil {
		return err
	}
	report.Snapshot = snap
	return errors.Join(writeGob(job.Out, report), unix.Unmount(job.At, 0))
}

// InOverlay mounts an overlay in a process of its own, runs a step in it, unless that is "", and gives what the mount showed before it went. As an
// ordinary user, or where o is not trusted, the process has a user namespace. The package needs a TestMain that calls Main.
func InOverlay(t testing.TB, o Overlay, step string) Snapshot {
	t.Helper()
	dir := t.TempDir()
	job := childJob{Overlay: o, Step: step, At: filepath.Join(dir, "m"), Out: filepath.Join(dir, "out")}
	must(t, os.Mkdir(job.At, 0o755))
	must(t, writeGob(filepath.Join(dir, "job"), job))
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.Command(exe)
	// Under the race detector a process waits a second before it ends, unless told otherwise.
	cmd.Env = append(os.Environ(), overlayChild+"="+filepath.Join(dir, "job"), "GORACE=atexit_sleep_ms=0")
	cmd.SysProcAttr = Namespaces(o.Trusted)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("run %q in overlay: %v\n%s", step, err, out)
	}
	var r childReport
	must(t, readGob(job.Out, &r))
	if r.Err != "" {
		t.Fatalf("step %q: %s", step, r.Err)
	}
	return r.Snapshot
}

func readGob(file string, v any) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return gob.NewDecoder(f).Decode(v)
}

func writeGob(file string, v any) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(gob.NewEncoder(f).Encode(v), f.Close())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
