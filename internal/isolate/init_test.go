package isolate_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/isolate/inside"
)

// Init survives every signal that a step can send, in every form.
func TestInit_SurvivesSignals(t *testing.T) {
	b := newBox(t, isolate.Config{})
	for sig := 1; sig <= 64; sig++ {
		b.sh(fmt.Sprintf("kill -%d 1 2>/dev/null; kill -%d 1 2>/dev/null", sig, sig))
	}
	// As sent by sigqueue: the Go runtime would take SIGSEGV with such a code for its own fault.
	queue := `use strict; for my $sig (1..64) { for my $code (-1, -2, -3, -6, -60) { my $info = pack("i3x4i2Q", $sig, 0, $code, $$, 1000, 0) . ("\0" x 128); syscall(129, 1, $sig, $info); } }`
	// A thread of init that is in the handler of SIGURG blocks everything meanwhile.
	flood := `(perl -e 'while (1) { kill "URG", 1 }' &); (perl -e 'while (1) { kill "URG", 1 }' &); `
	for range 3 {
		b.sh(flood + "perl -e '" + queue + "'")
	}
	b.sh("kill -TERM -1; kill -KILL -1; kill -STOP 1")
	b.sh("gdb -p 1 -batch; cat /proc/1/mem; strace -p 1 -o /dev/null & sleep 0.1")
	if out, r := b.sh("echo alive"); out != "alive\n" || r.Cause != isolate.CauseExit {
		t.Fatalf("got %q, %+v", out, r)
	}
	select {
	case <-b.Done():
		t.Fatal("init died")
	default:
	}
}

func TestInit_Lost(t *testing.T) {
	logged := make(chan string, 1)
	b := newBox(t, isolate.Config{Log: func(m string) { logged <- m }})
	began := time.Now()
	r, err := b.Exec(testContext(t), isolate.Command{
		Argv: []string{"/bin/sleep", "60"}, Started: func() { unix.Kill(b.Pid(), unix.SIGKILL) },
	})
	if !errors.Is(err, isolate.ErrLost) || r.Cause != isolate.CauseLost {
		t.Errorf("got %+v, %v; want lost", r, err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	if m := <-logged; !strings.Contains(m, strconv.Itoa(b.Pid())) {
		t.Errorf("log: got %q", m)
	}
	ctx := testContext(t)
	if _, _, err := b.ReadFile(ctx, "old", 10); !errors.Is(err, isolate.ErrLost) {
		t.Errorf("ReadFile: got %v, want ErrLost", err)
	}
	if err := b.Detach(ctx); !errors.Is(err, isolate.ErrLost) {
		t.Errorf("Detach: got %v, want ErrLost", err)
	}
	if r, err := b.Exec(ctx, isolate.Command{Argv: []string{"true"}}); !errors.Is(err, isolate.ErrLost) || r.Cause != isolate.CauseLost {
		t.Errorf("Exec: got %+v, %v; want ErrLost", r, err)
	}
	<-b.Done()
	// Its mounts are gone: the layers can be used at once.
	b.Init = start(t, isolate.Config{})
	b.attach()
}

func TestInit_Close(t *testing.T) {
	b := newBox(t, isolate.Config{})
	ended := make(chan isolate.Result)
	pids := make(chan []int, 1)
	go func() {
		r, _ := b.Exec(testContext(t), isolate.Command{
			Argv: []string{"/bin/sh", "-c", "setsid sleep 60 & sleep 60"}, Env: b.BaseEnv(),
			Started: func() { pids <- inside.Descendants(b.Pid()) },
		})
		ended <- r
	}()
	running := <-pids
	for range 2 {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	if r := <-ended; r.Cause != isolate.CauseLost {
		t.Errorf("running command: got %+v, want lost", r)
	}
	for _, pid := range running {
		if err := unix.Kill(pid, 0); err != unix.ESRCH {
			t.Errorf("process %d: got %v, want it gone", pid, err)
		}
	}
}

// The death of the worker takes everything along, mounts too.
func TestInit_DiesWithParent(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), modeVariable+"=parent", "TMPDIR="+tempDir(t)) // it is killed and can't clean up
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	tree := append(inside.Descendants(pid), pid)
	if len(tree) < 4 {
		t.Errorf("got a tree of %d processes, want at least 4", len(tree))
	}
	cmd.Process.Kill()
	cmd.Wait()
	for _, pid := range tree {
		eventually(t, fmt.Sprintf("death of process %d", pid), func() bool { return unix.Kill(pid, 0) == unix.ESRCH })
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), isolate.Workspace) {
		t.Errorf("mount table: %v\n%s", err, mounts)
	}
}

// A parent thread that ends must not take the sandbox along.
func TestInit_OutlivesStartingGoroutine(t *testing.T) {
	started := make(chan *isolate.Init)
	go func() {
		// A goroutine that ends while locked takes its thread with it.
		lockThread()
		started <- start(t, isolate.Config{})
	}()
	i := <-started
	for range 20 {
		var wg sync.WaitGroup
		wg.Go(lockThread)
		wg.Wait()
	}
	if _, err := i.Stat(testContext(t), "."); errors.Is(err, isolate.ErrLost) {
		t.Fatal(err)
	}
}

func TestInit_Many(t *testing.T) {
	const many = 20
	var wg sync.WaitGroup
	began := time.Now()
	boxes := make([]*box, many)
	for n := range many {
		wg.Go(func() { boxes[n] = newBox(t, isolate.Config{}) })
	}
	wg.Wait()
	t.Logf("%d sandboxes in %v", many, time.Since(began))
	for n, b := range boxes {
		wg.Go(func() {
			script := fmt.Sprintf("echo %d >mine; sleep 0.05; cat mine; pgrep -c sleep; true", n)
			if out, r := b.sh(script); out != fmt.Sprintf("%d\n0\n", n) || plainOf(r).Code != 0 {
				t.Errorf("sandbox %d: got %q, %+v", n, out, plainOf(r))
			}
		})
	}
	wg.Wait()
}

func TestInit_AttachDetach(t *testing.T) {
	b := newBox(t, isolate.Config{})
	ctx := testContext(t)
	var attached time.Duration
	for n := range 30 {
		b.sh(fmt.Sprintf("echo %d >>old; setsid tail -f old & cd dir; sleep 60 & mkdir -p d/%d", n, n))
		if err := b.Detach(ctx); err != nil {
			t.Fatal(err)
		}
		if _, _, err := b.ReadFile(ctx, "old", 1000); err == nil {
			t.Fatal("a file of a detached workspace could be read")
		}
		r, err := b.Exec(ctx, isolate.Command{Argv: []string{"true"}})
		if err != nil || r.Cause != isolate.CauseStart {
			t.Fatalf("command without workspace: got %+v, %v", r, err)
		}
		began := time.Now()
		b.attach()
		attached += time.Since(began)
	}
	t.Logf("mount and attach: %v", attached/30)
	if out, _ := b.sh("wc -l <old; ls dir/d | wc -l"); out != "31\n30\n" {
		t.Errorf("got %q, want every change", out)
	}
	if err := b.Detach(ctx); err != nil {
		t.Fatal(err)
	}
	if err := b.Detach(ctx); err == nil {
		t.Error("second Detach: got no error")
	}
}

func TestInit_Detach_KillsCommand(t *testing.T) {
	b := newBox(t, isolate.Config{})
	ctx, running := testContext(t), make(chan struct{})
	ended := make(chan isolate.Result)
	go func() {
		r, err := b.Exec(ctx, isolate.Command{
			Argv: []string{"/bin/bash", "-c", "trap '' TERM; exec 9>>old; sleep 60"}, Env: b.BaseEnv(), Started: func() { close(running) },
		})
		if err != nil {
			t.Error(err)
		}
		ended <- r
	}()
	<-running
	if err := b.Detach(ctx); err != nil {
		t.Fatal(err)
	}
	if got, want := plainOf(<-ended), (plain{Code: -1, Cause: isolate.CauseCancelled}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A copy of the mount that stays open is an error, not a lazy unmount.
func TestInit_Detach_Busy(t *testing.T) {
	b := newBox(t, isolate.Config{})
	ctx := testContext(t)
	if err := b.Detach(ctx); err != nil {
		t.Fatal(err)
	}
	mount, err := b.mounter.Overlay(ctx, b.overlay())
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Attach(ctx, mount); err != nil {
		t.Fatal(err)
	}
	if err := b.Detach(ctx); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("got %v, want EBUSY", err)
	}
	if err := b.Attach(ctx, mount); err == nil {
		t.Error("second workspace: got no error")
	}
	mount.Close()
	if out, _ := b.sh("cat old"); out != "old\n" {
		t.Errorf("still attached: got %q", out)
	}
	if err := b.Detach(ctx); err != nil {
		t.Error(err)
	}
}

// Commands start with every signal at its default, whatever the worker ignores.
func TestInit_CommandsHaveCleanSignals(t *testing.T) {
	ignored := []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGPIPE, unix.SIGTERM, unix.SIGUSR1, unix.SIGTSTP, syscall.Signal(40)}
	signal.Ignore(ignored...)
	defer signal.Reset(ignored...)
	b := newBox(t, isolate.Config{})
	out, _ := b.sh("", func(c *isolate.Command) {
		c.Argv = []string{"/bin/grep", "-E", "Sig(Ign|Blk)", "/proc/self/status"}
	})
	want := "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"
	if out != want {
		t.Errorf("got:\n%swant:\n%s", out, want)
	}
}
