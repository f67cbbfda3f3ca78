package isolate_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

// What runs, detached or not, does nothing between Pause and Resume, and goes on afterwards; what had been stopped before stays so.
func TestInit_Pause(t *testing.T) {
	t.Run("Namespaces", func(t *testing.T) {
		b := newBox(t, isolate.Config{})
		testPause(t, b.Init, b.path("upper"))
	})
	t.Run("Bare", func(t *testing.T) {
		i, dir := newBare(t)
		testPause(t, i, dir)
	})
	eachFence(t, func(t *testing.T, r isolate.Rung) {
		i, dir := newFenced(t, isolate.Config{Rung: r})
		testPause(t, i, dir)
	})
}

func testPause(t *testing.T, i *isolate.Init, dir string) {
	t.Helper()
	ctx := testContext(t)
	read := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(dir, name))
		return string(b)
	}
	startDetached(t, i, "n=0; while :; do n=$((n+1)); echo $n >>n; done")
	ended, stop := foreground(t, i, "echo x >began; while :; do echo x >>front; sh -c 'echo x >>front'; done")
	startDetached(t, i, "(setsid sh -c 'while :; do echo x >>forked; /bin/true; done' &); echo $$ >stopped; kill -STOP $$; echo x >continued")
	eventually(t, "their work", func() bool {
		return read("n") != "" && read("front") != "" && read("stopped") != "" && read("forked") != ""
	})
	for range 3 {
		if err := i.Pause(ctx); err != nil {
			t.Fatal(err)
		}
		all := func() string { return read("n") + read("forked") + read("front") }
		before := all()
		for range 200 {
			if all() != before {
				t.Fatal("something runs while everything is stopped")
			}
		}
		if err := i.Resume(ctx); err != nil {
			t.Fatal(err)
		}
		eventually(t, "they go on", func() bool { return len(all()) > len(before) })
	}
	if got := read("continued"); got != "" {
		t.Errorf("a process that was stopped before went on: %q", got)
	}
	stop()
	if r := <-ended; r.Cause != isolate.CauseCancelled {
		t.Errorf("the command: got %+v, want it cancelled", r)
	}
	if out, _ := runScript(t, i, "echo still here"); out != "still here\n" {
		t.Errorf("a command afterwards: got %q", out)
	}
	if err := i.Detach(ctx); err != nil { // they would fill what is removed
		t.Error(err)
	}
}

// foreground runs a script beside the test until stop.
func foreground(t *testing.T, i *isolate.Init, script string) (ended <-chan isolate.Result, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(testContext(t))
	t.Cleanup(cancel)
	results := make(chan isolate.Result, 1)
	go func() {
		r, err := i.Exec(ctx, isolate.Command{Argv: []string{"/bin/sh", "-c", script}, Env: i.BaseEnv(), Grace: 100 * time.Millisecond})
		if err != nil {
			t.Error(err)
		}
		results <- r
	}()
	return results, cancel
}

// A command that is told to end during a Pause ends after it, whatever passes meanwhile, and one that is asked for then begins
// after it.
func TestInit_PauseHoldsEndsAndBeginnings(t *testing.T) {
	b := newBox(t, isolate.Config{})
	ctx := testContext(t)
	ended, stop := foreground(t, b.Init, "trap 'echo x >told; exit 3' TERM; echo x >began; while :; do /bin/true; done")
	exists := func(name string) bool {
		_, err := os.Stat(filepath.Join(b.path("upper"), name))
		return err == nil
	}
	eventually(t, "its beginning", func() bool { return exists("began") })
	if err := b.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	stop()
	next, _ := foreground(t, b.Init, "echo x >next")
	select {
	case r := <-ended:
		t.Fatalf("ended while everything is stopped: %+v", r)
	case r := <-next:
		t.Fatalf("began while everything is stopped: %+v", r)
	case <-time.After(300 * time.Millisecond): // three times its grace
	}
	if exists("told") || exists("next") {
		t.Error("something was done while everything is stopped")
	}
	if err := b.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	if r := <-ended; r.Cause != isolate.CauseCancelled || !exists("told") {
		t.Errorf("got %+v, told %v; want it cancelled by a SIGTERM that it saw", r, exists("told"))
	}
	if r := <-next; r.Cause != isolate.CauseExit || !exists("next") {
		t.Errorf("the next: got %+v", r)
	}
	if err := b.Pause(ctx); err != nil { // while nothing runs
		t.Fatal(err)
	}
	last, _ := foreground(t, b.Init, "echo x >last")
	select {
	case r := <-last:
		t.Fatalf("began while everything is stopped: %+v", r)
	case <-time.After(100 * time.Millisecond):
	}
	if exists("last") {
		t.Error("something was begun while everything is stopped")
	}
	if err := b.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	if r := <-last; r.Cause != isolate.CauseExit || !exists("last") {
		t.Errorf("the last: got %+v", r)
	}
}
