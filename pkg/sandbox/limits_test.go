package sandbox_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/sandboxtest"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

// limited is a sandbox with limits; tests of what this machine can't bound are skipped.
func limited(t *testing.T, l isolate.Limits, needs string, state isolate.State) *sandbox.Sandbox {
	t.Helper()
	bed := sandboxtest.New(t)
	if g := bed.Host.Report.Guarantees[needs]; g.State != state && state == isolate.Enforced {
		t.Skipf("%s is not bounded here: %s", needs, g.Why)
	}
	// What this machine could enforce is given up where less is to be tried.
	bed.Host.Report.Guarantees[needs] = isolate.Guarantee{State: state}
	if state == isolate.BestEffort {
		bed.Host.Report.ProcessLimit = false
		ungrouped(bed)
	}
	return boxOf(t, bed, l)
}

// ungrouped gives up the groups of the inits to come.
func ungrouped(bed *sandboxtest.Bed) {
	bed.Host.Init = func(ctx context.Context, network string, _ bool) (*isolate.Init, error) {
		return isolate.Start(ctx, isolate.Config{Rung: bed.Host.Report.Rung, Network: network})
	}
}

func boxOf(t *testing.T, bed *sandboxtest.Bed, l isolate.Limits) *sandbox.Sandbox {
	t.Helper()
	dir := t.TempDir()
	sandboxtest.Write(t, dir, map[string]string{"a": "a"})
	chain, _ := bed.Base(t, dir)
	s, err := sandbox.New(t.Context(), bed.Host, sandbox.Spec{
		ID: events.NewID(), Strategy: sandbox.CopyOnWrite, Chain: chain, Network: isolate.NetworkNone, Limits: l,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func script(t *testing.T, s *sandbox.Sandbox, text string, timeout time.Duration) isolate.Result {
	t.Helper()
	res, err := s.Exec(t.Context(), isolate.Command{Argv: []string{"/bin/sh", "-euc", text}, Env: s.BaseEnv(), Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// goesOn fails the test unless the sandbox can be rolled back and used again.
func goesOn(t *testing.T, s *sandbox.Sandbox) {
	t.Helper()
	if err := s.Reset(t.Context(), s.Chain()); err != nil {
		t.Fatal(err)
	}
	if got := sandboxtest.Run(t, s, "ls; cat a"); got != "a\na" {
		t.Errorf("after the limit: %q, want the tree as it was", got)
	}
}

func TestSandbox_MemoryLimit(t *testing.T) {
	s := limited(t, isolate.Limits{Memory: 64 << 20}, isolate.Memory, isolate.Enforced)
	for name, hog := range map[string]string{
		"Only":  "x=$(head -c 150M /dev/zero | tr '\\0' x); echo ${#x}",
		"Child": "head -c 200M /dev/zero | tail -c 150M >/dev/null; sleep 60",
		"Mild":  "(head -c 200M /dev/zero | tail -c 150M >/dev/null) || true",
	} {
		t.Run(name, func(t *testing.T) {
			if got := script(t, s, hog, 20*time.Second); got.Cause != isolate.CauseOOM {
				t.Errorf("cause %q, want oom: %+v", got.Cause, got)
			}
			goesOn(t, s)
		})
	}
}

// A command that is given secrets is in a compartment of its own, and bounded as others are.
func TestSandbox_LimitsWithSecrets(t *testing.T) {
	s := limited(t, isolate.Limits{Memory: 64 << 20, PIDs: 32}, isolate.Memory, isolate.Enforced)
	for cause, text := range map[isolate.Cause]string{
		isolate.CauseOOM:  "head -c 200M /dev/zero | tail -c 150M >/dev/null; sleep 60",
		isolate.CausePIDs: bomb,
	} {
		res, err := s.Exec(t.Context(), isolate.Command{
			Argv: []string{"/bin/sh", "-euc", text}, Env: s.BaseEnv(), Timeout: 20 * time.Second, Secrets: map[string][]byte{"S": []byte("secret")},
		})
		if err != nil || res.Cause != cause {
			t.Errorf("%+v, %v, want cause %s", res, err, cause)
		}
	}
}

// bomb starts more processes than a limit of 32 lets it.
const bomb = "i=0; while [ $i -lt 64 ]; do sleep 60 & i=$((i+1)); done; wait"

// Without control groups the kernel bounds processes of the sandbox's user, which it has to itself.
func TestSandbox_ProcessLimit(t *testing.T) {
	bed := sandboxtest.New(t)
	bed.Host.Report.ProcessLimit = true
	ungrouped(bed)
	most := 0
	var in *isolate.Init
	start := bed.Host.Init
	bed.Host.Init = func(ctx context.Context, network string, noSetuid bool) (*isolate.Init, error) {
		var err error
		in, err = start(ctx, network, noSetuid)
		return in, err
	}
	s := boxOf(t, bed, isolate.Limits{PIDs: 32})
	stop := make(chan struct{})
	counted := make(chan int)
	go func() {
		for {
			select {
			case <-stop:
				counted <- most
				return
			case <-time.After(time.Millisecond):
				n, _ := in.Usage()
				most = max(most, n)
			}
		}
	}()
	// The shell gives up at the first refusal; another goes on.
	for text, cause := range map[string]isolate.Cause{bomb: isolate.CausePIDs, "while ! sh -c '" + bomb + "'; do :; done": isolate.CauseTimeout} {
		if got := script(t, s, text, 2*time.Second); got.Cause != cause {
			t.Errorf("%q: cause %q, want %s: %+v", text, got.Cause, cause, got)
		}
	}
	close(stop)
	if got := <-counted; got < 16 || got > 40 {
		t.Errorf("%d processes at once, want about 32", got)
	}
	goesOn(t, s)
	if got := script(t, s, "i=0; while [ $i -lt 28 ]; do sleep 60 & i=$((i+1)); done", 20*time.Second); got.Cause != isolate.CauseExit {
		t.Errorf("29 processes: %+v, want them allowed", got)
	}
	if got := script(t, s, "exit 3", 20*time.Second); got.Cause != isolate.CauseExit {
		t.Errorf("a failure of its own: %+v, want exit", got)
	}
}

func TestSandbox_PIDLimit(t *testing.T) {
	s := limited(t, isolate.Limits{PIDs: 32}, isolate.Pids, isolate.Enforced)
	got := script(t, s, "i=0; while [ $i -lt 64 ]; do sleep 60 & i=$((i+1)); done; wait", 20*time.Second)
	if got.Cause != isolate.CausePIDs || got.ExitCode == nil {
		t.Errorf("cause %q, want pids: %+v", got.Cause, got)
	}
	goesOn(t, s)
	if got := script(t, s, "i=0; while [ $i -lt 30 ]; do sleep 60 & i=$((i+1)); done", 20*time.Second); got.Cause != isolate.CauseExit {
		t.Errorf("31 processes: %+v, want them allowed", got)
	}
}

// Without control groups memory and processes are counted while the step runs.
func TestSandbox_CountedLimits(t *testing.T) {
	s := limited(t, isolate.Limits{Memory: 64 << 20}, isolate.Memory, isolate.BestEffort)
	hog := "x=$(head -c 150M /dev/zero | tr '\\0' x); sleep 60"
	if got := script(t, s, hog, 20*time.Second); got.Cause != isolate.CauseOOM {
		t.Errorf("hog: cause %q, want oom: %+v", got.Cause, got)
	}
	goesOn(t, s)
	s = limited(t, isolate.Limits{PIDs: 32}, isolate.Pids, isolate.BestEffort)
	got := script(t, s, "i=0; while [ $i -lt 64 ]; do sleep 60 & i=$((i+1)); done; wait", 20*time.Second)
	if got.Cause != isolate.CausePIDs {
		t.Errorf("64 processes: cause %q, want pids: %+v", got.Cause, got)
	}
	goesOn(t, s)
}

// Programs count the cores that a plan may use, not those of the machine.
func TestSandbox_CoresEnv(t *testing.T) {
	bed := sandboxtest.New(t)
	for _, c := range []struct {
		cpus float64
		want string
	}{{0.5, "1 1 1"}, {0, "  none"}, {1024, "  none"}} {
		s := boxOf(t, bed, isolate.Limits{CPUs: c.cpus})
		got := sandboxtest.Run(t, s, `echo "${GOMAXPROCS-} ${CARGO_BUILD_JOBS-} $([ "${OMP_NUM_THREADS-}" ] && nproc || echo none)"`)
		if got != c.want+"\n" && got != c.want {
			t.Errorf("%v cores: %q, want %q", c.cpus, got, c.want)
		}
	}
}

func TestSandbox_CPULimit(t *testing.T) {
	bed := sandboxtest.New(t)
	if g := bed.Host.Report.Guarantees[isolate.CPU]; g.State == isolate.Absent {
		t.Skipf("cpu is not bounded here: %s", g.Why)
	}
	in, err := bed.Host.Init(t.Context(), isolate.NetworkNone, false)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	throttled := func() uint64 {
		e, err := in.Group().Exhausted()
		if err != nil {
			t.Fatal(err)
		}
		return e.Throttled
	}
	if err := in.Group().Set(isolate.Limits{CPUs: 0.1}); err != nil {
		t.Fatal(err)
	}
	before := throttled()
	mount, err := bed.Host.Mounter.Bind(t.Context(), isolate.Bind{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	err = in.Attach(t.Context(), mount)
	mount.Close()
	if err != nil {
		t.Fatal(err)
	}
	res, err := in.Exec(t.Context(), isolate.Command{Argv: []string{"/bin/sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"}})
	if err != nil || res.Cause != isolate.CauseExit {
		t.Fatalf("burn: %+v, %v", res, err)
	}
	if got := throttled(); got <= before {
		t.Errorf("throttled %d times, want more than %d", got, before)
	}
}

// fills go beyond a limit of 20 MiB, each in its way, and are ended for it.
func fills() map[string]string {
	return map[string]string{
		"One":     "dd if=/dev/zero of=fill bs=1M count=60 2>/dev/null; sleep 60",
		"Many":    "i=0; while [ $i -lt 60 ]; do head -c 1M /dev/zero >f$i; i=$((i+1)); done; sleep 60",
		"Rewrite": "head -c 10M /dev/zero >>a; dd if=/dev/zero of=fill bs=1M count=60 2>/dev/null; sleep 60",
	}
}

// Where sandboxes can have no disk of their own, what is written is measured.
func TestSandbox_DiskLimitMeasured(t *testing.T) {
	bed := sandboxtest.New(t)
	bed.Host.Disks = nil
	s := boxOf(t, bed, isolate.Limits{Disk: 20 << 20})
	for name, fill := range fills() {
		t.Run(name, func(t *testing.T) {
			if got := script(t, s, fill, 20*time.Second); got.Cause != isolate.CauseDisk {
				t.Errorf("cause %q, want disk: %+v", got.Cause, got)
			}
			goesOn(t, s)
		})
	}
	if got := script(t, s, "head -c 10M /dev/zero >some", 20*time.Second); got.Cause != isolate.CauseExit {
		t.Errorf("half of the limit: %+v, want it allowed", got)
	}
}

// A sandbox with a disk of its own is refused what is beyond its limit, even what no look could see, and goes on.
func TestSandbox_DiskLimit(t *testing.T) {
	bed := sandboxtest.New(t)
	if bed.Host.Disks == nil {
		t.Skip("no disk can be made here: needs root and loop devices")
	}
	const limit = 20 << 20
	s := boxOf(t, bed, isolate.Limits{Disk: limit})
	more := fills()
	more["Deleted"] = "exec 3>gone; rm gone; dd if=/dev/zero bs=1M count=60 >&3 2>/dev/null; sleep 60"
	more["Refused"] = "dd if=/dev/zero of=fill bs=1M count=60; exit 1"
	more["Names"] = "i=0; while : >n$i; do i=$((i+1)); done; sleep 60"
	for name, fill := range more {
		t.Run(name, func(t *testing.T) {
			if got := script(t, s, fill, 60*time.Second); got.Cause != isolate.CauseDisk {
				t.Errorf("cause %q, want disk: %+v", got.Cause, got)
			}
			upper, err := layer.Layer{Dir: filepath.Dir(filepath.Dir(s.Chain()[0].Dir))}.DiskSize(layer.Allocated)
			if err != nil || upper > limit/2 {
				t.Errorf("the worker's own directory got %d bytes, %v, want hardly any", upper, err)
			}
			goesOn(t, s)
		})
	}
	if got := script(t, s, "head -c 19M /dev/zero >some", 20*time.Second); got.Cause != isolate.CauseExit {
		t.Errorf("nearly the limit: %+v, want it allowed", got)
	}
}

// A disk that is full takes a checkpoint: the next layer has all the room again.
func TestSandbox_CheckpointOfAFullDisk(t *testing.T) {
	bed := sandboxtest.New(t)
	if bed.Host.Disks == nil {
		t.Skip("no disk can be made here: needs root and loop devices")
	}
	s := boxOf(t, bed, isolate.Limits{Disk: 20 << 20})
	for _, name := range []string{"first", "second"} {
		if got := script(t, s, "cat /dev/zero >"+name, 20*time.Second); got.Cause != isolate.CauseDisk {
			t.Fatalf("cause %q, want disk: %+v", got.Cause, got)
		}
		if _, err := s.Freeze(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := sandboxtest.Run(t, s, "for f in first second; do [ $(stat -c %s $f) -ge 20000000 ]; done; head -c 15M /dev/zero >third; rm first; ls"); got != "a\nsecond\nthird\n" {
		t.Errorf("got %q", got)
	}
	chain, err := s.Freeze(t.Context())
	if err != nil || len(chain) != 4 {
		t.Errorf("got a chain of %d layers, %v, want 4", len(chain), err)
	}
}

// A file call beyond the limit is refused whole, and what is there stays; both where the limit is the disk's and where
// what is written is measured.
func TestSandbox_FilesKeepToTheDiskLimit(t *testing.T) {
	for _, name := range []string{"OwnDisk", "Measured"} {
		t.Run(name, func(t *testing.T) {
			bed := sandboxtest.New(t)
			switch {
			case name == "Measured":
				bed.Host.Disks = nil
			case bed.Host.Disks == nil:
				t.Skip("no disk can be made here: needs root and loop devices")
			}
			s := boxOf(t, bed, isolate.Limits{Disk: 20 << 20})
			write := func(path string, size int) error {
				return s.WriteFile(t.Context(), isolate.FileWrite{Path: path, Content: make([]byte, size)})
			}
			if err := write("first", 12<<20); err != nil {
				t.Fatal(err)
			}
			for what, err := range map[string]error{
				"New":     write("second", 12<<20),
				"Over":    write("a", 12<<20),
				"Changes": s.ChangeFiles(t.Context(), []isolate.FileChange{{Path: "a", Content: []byte("b")}, {Path: "second", Content: make([]byte, 12<<20)}}),
			} {
				if !errors.Is(err, isolate.ErrFull) {
					t.Errorf("%s: got %v, want %v", what, err, isolate.ErrFull)
				}
			}
			if got := sandboxtest.Run(t, s, "ls -A; cat a"); got != "a\nfirst\na" {
				t.Errorf("got %q, want nothing of what was refused", got)
			}
			sandboxtest.Run(t, s, "rm first")
			if err := write("second", 12<<20); err != nil {
				t.Errorf("with room again: %v", err)
			}
		})
	}
}
