package isolate_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/isolate/inside"
)

// runscVariable is gVisor's program for tests, where it is not on the PATH.
const runscVariable = "WARMFLEET_TEST_RUNSC"

// needRunsc has gVisor's program found, or skips.
func needRunsc(t *testing.T) {
	t.Helper()
	if path := os.Getenv(runscVariable); path != "" {
		t.Setenv("PATH", filepath.Dir(path)+":"+os.Getenv("PATH"))
	}
	if _, err := isolate.FindRunsc(); err != nil {
		t.Skipf("gVisor is not installed (%s names its runsc): %v", runscVariable, err)
	}
}

func newStrong(t *testing.T, c isolate.Config) *box {
	t.Helper()
	needRunsc(t)
	c.Rung = isolate.RungStrong
	return newBox(t, c)
}

// Without gVisor's program nothing is started on its rung, and nothing else in its place.
func TestStart_StrongWithoutRunsc(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := isolate.Start(testContext(t), isolate.Config{Rung: isolate.RungStrong}); !errors.Is(err, isolate.ErrNoStrong) {
		t.Errorf("Start: got %v, want %v", err, isolate.ErrNoStrong)
	}
	if _, err := isolate.ProbeStrong(testContext(t), tempDir(t)); !errors.Is(err, isolate.ErrNoStrong) {
		t.Errorf("ProbeStrong: got %v, want %v", err, isolate.ErrNoStrong)
	}
}

// A program of that name that does not work is no reason to do with less.
func TestProbeStrong_BrokenRunsc(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "runsc"), []byte("#!/bin/sh\necho no such luck >&2\nexit 128\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	_, err := isolate.ProbeStrong(testContext(t), tempDir(t))
	if !errors.Is(err, isolate.ErrNoStrong) || !strings.Contains(err.Error(), "start gVisor: no such luck") {
		t.Errorf("got %v, want %v and what the program said", err, isolate.ErrNoStrong)
	}
}

func TestProbeStrong(t *testing.T) {
	needRunsc(t)
	r, err := isolate.ProbeStrong(testContext(t), tempDir(t))
	if err != nil || r.Rung != isolate.RungStrong || !r.Overlay || len(r.Unmet(isolate.NetworkNone)) > 0 {
		t.Errorf("got %+v, %v", r, err)
	}
	if got := r.Guarantees[isolate.KernelSurface].State; got != isolate.Enforced {
		t.Errorf("%s: got %s", isolate.KernelSurface, got)
	}
}

func TestStrong_Identity(t *testing.T) {
	b := newStrong(t, isolate.Config{})
	out, r := b.sh(`pwd; id -u; id -g; grep -o 'Linux version 4.4.0' /proc/version; echo x >made; stat -c %u:%g made old; umask; ulimit -c
grep -c '^CapEff:.0*$' /proc/self/status; grep Seccomp /proc/self/status; ls /run/strong; echo x 2>/dev/null >/usr/x || echo read-only; cat /proc/1/environ 2>/dev/null || echo hidden; exit 7`)
	want := "/workspace\n1000\n1000\nLinux version 4.4.0\n1000:1000\n1000:1000\n0022\n0\n1\nSeccomp:\t2\nread-only\nhidden\n"
	if out != want || plainOf(r) != (plain{Code: 7, Cause: isolate.CauseExit}) {
		t.Errorf("got %q, %+v; want %q", out, plainOf(r), want)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(b.path("upper/made"), &st); err != nil || int(st.Uid) != hostID() {
		t.Errorf("on the host: owner %d, %v; want %d", st.Uid, err, hostID())
	}
}

func TestStrong_Results(t *testing.T) {
	b := newStrong(t, isolate.Config{})
	for script, want := range map[string]plain{
		"exit 137":                           {Code: 137, Cause: isolate.CauseExit},
		"kill -9 $$":                         {Code: -1, Signal: "KILL", Cause: isolate.CauseSignal},
		"kill -SEGV $$":                      {Code: -1, Signal: "SEGV", Cause: isolate.CauseSignal},
		"kill -TERM 1; kill -HUP 1; exit 3":  {Code: 3, Cause: isolate.CauseExit},
		"setsid sleep 60 & (sleep 60 &) & :": {Cause: isolate.CauseExit},
	} {
		if out, r := b.sh(script); plainOf(r) != want || out != "" {
			t.Errorf("%s: got %+v, %q; want %+v", script, plainOf(r), out, want)
		}
		if left := inside.Descendants(b.Pid()); len(left) != 0 {
			t.Errorf("%s: %d processes left", script, len(left))
		}
	}
	_, r := b.sh("", func(c *isolate.Command) { c.Argv = []string{"no-such-program"} })
	if r.Cause != isolate.CauseStart || r.StartError != `start "no-such-program": no such program` {
		t.Errorf("got %+v", r)
	}
}

// SIGTERM reaches all that the command started; then nothing is left.
func TestStrong_Timeout(t *testing.T) {
	b := newStrong(t, isolate.Config{})
	out, r := b.sh(`(trap 'echo child; exit' TERM; while :; do sleep 0.1; done) & trap 'wait; echo bye; exit 4' TERM; echo ready; sleep 60 & wait`,
		func(c *isolate.Command) { c.Timeout, c.Grace, c.Stderr = 8*time.Second, 20*time.Second, nil })
	if out != "ready\nchild\nbye\n" || plainOf(r) != (plain{Code: 4, Cause: isolate.CauseTimeout}) {
		t.Errorf("got %q, %+v", out, plainOf(r))
	}
	_, r = b.sh("trap '' TERM; while :; do sleep 1; done", func(c *isolate.Command) { c.Timeout, c.Grace = 2*time.Second, time.Second })
	if plainOf(r) != (plain{Code: -1, Cause: isolate.CauseTimeout}) {
		t.Errorf("got %+v", plainOf(r))
	}
	if left := inside.Descendants(b.Pid()); len(left) != 0 {
		t.Errorf("%d processes left", len(left))
	}
}

// The death of the init, as of its worker, is the end of the kernel and of what serves it.
func TestStrong_Lost(t *testing.T) {
	b := newStrong(t, isolate.Config{})
	var pids []int
	r, err := b.Exec(testContext(t), isolate.Command{Argv: []string{"/bin/sleep", "60"}, Started: func() {
		pids = inside.Descendants(b.Pid())
		unix.Kill(b.Pid(), unix.SIGKILL)
	}})
	if !errors.Is(err, isolate.ErrLost) || r.Cause != isolate.CauseLost {
		t.Errorf("got %+v, %v", r, err)
	}
	if len(pids) < 3 {
		t.Errorf("%d processes of a running command, want its host, gVisor's program and the kernel at least", len(pids))
	}
	for _, pid := range pids {
		if unix.Kill(pid, 0) == nil {
			t.Errorf("process %d is still there", pid)
		}
	}
}

// What serves the kernel is no way out of the limit of time either: it dies, and with it the command, by SIGKILL.
func TestStrong_KernelDies(t *testing.T) {
	b := newStrong(t, isolate.Config{})
	r, err := b.Exec(testContext(t), isolate.Command{Argv: []string{"/bin/sleep", "60"}, Started: func() {
		for _, pid := range inside.Descendants(b.Pid()) {
			if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && strings.HasPrefix(string(name), "runsc-sandbox") {
				unix.Kill(pid, unix.SIGKILL)
			}
		}
	}})
	if err != nil || plainOf(r) != (plain{Code: -1, Signal: "KILL", Cause: isolate.CauseSignal}) {
		t.Errorf("got %+v, %v", plainOf(r), err)
	}
	if out, _ := b.sh("echo on"); out != "on\n" {
		t.Errorf("the next command: got %q", out)
	}
}

func TestStrong_Network(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	connect := fmt.Sprintf("exec 3<>/dev/tcp/127.0.0.1/%d", listener.Addr().(*net.TCPAddr).Port)
	b := newStrong(t, isolate.Config{})
	if out, r := b.sh(connect); plainOf(r).Code == 0 {
		t.Errorf("without network: got %q", out)
	}
	b = newStrong(t, isolate.Config{Network: isolate.NetworkAllow})
	if out, r := b.sh(connect); plainOf(r).Code != 0 {
		t.Errorf("with network: got %q", out)
	}
}

func TestStrong_SecretsAndFiles(t *testing.T) {
	b := newStrong(t, isolate.Config{})
	secret := func(c *isolate.Command) { c.Secrets = map[string][]byte{"A": []byte("canary")} }
	if out, _ := b.sh("cat $WARMFLEET_SECRETS/A; stat -c ' %a' $WARMFLEET_SECRETS/A; echo kept >/tmp/kept", secret); out != "canary 400\n" {
		t.Errorf("got %q", out)
	}
	if out, _ := b.sh("ls /run/secrets; cat /tmp/kept"); out != "kept\n" {
		t.Errorf("the next command: got %q", out)
	}
	ctx := testContext(t)
	waits := func(c *isolate.Command) {
		c.Started = func() {
			if err := b.WriteFile(ctx, isolate.FileWrite{Path: "told", Content: []byte("from outside\n")}); err != nil {
				t.Error(err)
			}
		}
	}
	if out, _ := b.sh("until cat told 2>/dev/null; do sleep 0.05; done", waits); out != "from outside\n" {
		t.Errorf("a file that came meanwhile: got %q", out)
	}
}

func TestStrong_Detached(t *testing.T) {
	b := newStrong(t, isolate.Config{})
	ctx := testContext(t)
	d := startDetached(t, b.Init, "echo out; exec sleep 60")
	eventually(t, "its output", func() bool { out, _ := b.sh("cat " + d.Log); return out == "out\n" })
	if got := detached(t, b.Init); got != 1 {
		t.Errorf("got %d detached processes, want 1", got)
	}
	if err := b.Detach(ctx); err != nil {
		t.Error(err)
	}
	if left := inside.Descendants(b.Pid()); len(left) != 0 {
		t.Errorf("%d processes left", len(left))
	}
}
