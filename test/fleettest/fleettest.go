// Package fleettest runs a fleet as people do, in processes of their own, for the tests of the packages beside it. A Place
// is somebody's home on the machine, a Cluster a fleet there, a Process one of its programs. Everything that a test starts
// ends with it. What plans, pools or checkpoints are to do is the tests' business.
//
// A package that uses it has a TestMain:
//
//	func TestMain(m *testing.M) { fleettest.Main(m) }
package fleettest

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

const (
	module = "github.com/warmfleet/warmfleet"
	// binEnv names a directory with the programs; without it they are built once per package.
	binEnv = "WARMFLEET_TEST_BIN"
	// Patience bounds every wait for something that has to happen, on a busy machine.
	Patience = 60 * time.Second
	// commandLimit ends a command that hangs.
	commandLimit = 120 * time.Second
	// atOnce is how many tests run at once unless -parallel says so: they wait for processes more than they compute.
	atOnce = 4
)

// Main runs the tests of a package and ends the process. It is the package's TestMain, since the test program is also what
// its sandboxes start.
func Main(m *testing.M) {
	isolate.Main()
	if err := flag.Set("test.parallel", strconv.Itoa(max(atOnce, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	flag.Parse() // the command line wins
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	if os.Getenv(binEnv) != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "warmfleet-bin-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	os.Setenv(binEnv, dir)
	return m.Run()
}

// programs returns the directory of the programs, and builds them if they are not there.
var programs = sync.OnceValues(func() (string, error) {
	dir := os.Getenv(binEnv)
	if _, err := os.Stat(filepath.Join(dir, "worker")); err == nil {
		return dir, nil
	}
	return dir, build(dir)
})

// faultyPrograms is programs for those built with fault points.
var faultyPrograms = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(os.Getenv(binEnv), "faulty")
	return dir, build(dir, "-tags", "fault")
})

func build(dir string, flags ...string) error {
	if os.Getenv(binEnv) == "" {
		return errors.New("fleettest: build the programs: the package's TestMain does not call Main")
	}
	cmd := exec.Command("go", append(append([]string{"build", "-o", dir + "/"}, flags...), module+"/cmd/...")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("fleettest: build the programs: %w\n%s", err, out)
	}
	return os.Chmod(dir, 0o755)
}

// Bin is the directory of the programs as people run them.
func Bin(t testing.TB) string {
	t.Helper()
	dir, err := programs()
	Must(t, err)
	return dir
}

// FaultyBin is the directory of the programs with fault points.
func FaultyBin(t testing.TB) string {
	t.Helper()
	dir, err := faultyPrograms()
	Must(t, err)
	return dir
}

// Eventually waits until cond holds.
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(Patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited %s for: %s", Patience, what)
		}
	}
}

// Must ends the test at an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Together calls do for 0 to n-1 at once and waits for all.
func Together(n int, do func(int)) {
	done := make(chan struct{})
	for i := range n {
		go func() {
			defer func() { done <- struct{}{} }()
			do(i)
		}()
	}
	for range n {
		<-done
	}
}

// Deref is the value, or the zero value where there is none.
func Deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// RemoveAll also removes directories that nobody may write to.
func RemoveAll(t testing.TB, dir string) {
	t.Helper()
	err := os.RemoveAll(dir)
	if err == nil {
		return
	}
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			os.Chmod(path, 0o700)
		}
		return nil
	})
	if err := os.RemoveAll(dir); err != nil {
		t.Errorf("clean up: %v", err)
	}
}

// Tail is the last n bytes of s, marked where something is left out.
func Tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return "..." + s[len(s)-n:]
}
