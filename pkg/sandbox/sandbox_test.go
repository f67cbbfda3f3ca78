package sandbox_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/sandboxtest"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

func TestMain(m *testing.M) {
	isolate.Main()
	os.Exit(m.Run())
}

func original(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	sandboxtest.Write(t, dir, map[string]string{"a": "one\n", "d/b": "two\n"})
	return dir
}

func TestSandbox_FreezeAndReset(t *testing.T) {
	bed := sandboxtest.New(t)
	chain, _ := bed.Base(t, original(t))
	s := bed.Sandbox(t, chain)
	sandboxtest.Run(t, s, "echo 1 >f; rm d/b")
	first, err := s.Freeze(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sandboxtest.Run(t, s, "echo 2 >f; mkdir -p x/y; echo z >x/y/z; rm -r d; ln -s a d")
	if err := s.Reset(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	got := sandboxtest.Run(t, s, "cat f; find . | sort; ls d | wc -l")
	if want := "1\n.\n./a\n./d\n./f\n0\n"; got != want {
		t.Errorf("after reset:\n%s\nwant:\n%s", got, want)
	}
	if err := s.Reset(t.Context(), chain); err != nil {
		t.Fatal(err)
	}
	if got, want := sandboxtest.Run(t, s, "cat a d/b; ls"), "one\ntwo\na\nd\n"; got != want {
		t.Errorf("at the base: %q, want %q", got, want)
	}
}

func TestSandbox_FailedSwapLeavesTheTree(t *testing.T) {
	bed := sandboxtest.New(t)
	chain, _ := bed.Base(t, original(t))
	s := bed.Sandbox(t, chain)
	sandboxtest.Run(t, s, "echo 1 >f; rm d/b")
	if err := s.Reset(t.Context(), nil); err == nil {
		t.Fatal("reset to an empty chain succeeded")
	}
	if got, want := sandboxtest.Run(t, s, "cat f; ls d"), "1\n"; got != want {
		t.Errorf("after a failed reset: %q, want %q", got, want)
	}
	frozen, err := s.Freeze(t.Context())
	if err != nil || len(frozen) != len(chain)+1 {
		t.Errorf("freeze after a failed reset: %d layers, %v, want %d", len(frozen), err, len(chain)+1)
	}
}

func TestSandbox_States(t *testing.T) {
	bed := sandboxtest.New(t)
	var moves []string
	bed.Host.Notify = func(c sandbox.Change) { moves = append(moves, string(c.From)+">"+string(c.To)) }
	chain, _ := bed.Base(t, original(t))
	s := bed.Sandbox(t, chain)
	sandboxtest.Run(t, s, "echo 1 >f")
	if _, err := s.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	want := []string{"pending>created", "created>active", "active>checkpointed", "checkpointed>active", "active>committed", "committed>cleaned_up"}
	if d := cmp.Diff(want, moves); d != "" {
		t.Errorf("moves (-want +got):\n%s", d)
	}
	if _, err := s.Exec(t.Context(), isolate.Command{Argv: []string{"true"}}); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("exec after close: %v, want %v", err, sandbox.ErrClosed)
	}
	if err := s.Commit(); !errors.Is(err, sandbox.ErrTransition) {
		t.Errorf("commit after close: %v, want %v", err, sandbox.ErrTransition)
	}
}

func TestSandbox_FreezeKillsWhatRuns(t *testing.T) {
	bed := sandboxtest.New(t)
	chain, _ := bed.Base(t, original(t))
	s := bed.Sandbox(t, chain)
	started, ended := make(chan struct{}), make(chan isolate.Result, 1)
	go func() {
		res, err := s.Exec(context.WithoutCancel(t.Context()), isolate.Command{
			Argv: []string{"/bin/sh", "-c", "while :; do echo x >>f; done"}, Env: s.BaseEnv(), Started: func() { close(started) },
		})
		if err != nil {
			t.Error(err)
		}
		ended <- res
	}()
	<-started
	if _, err := s.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-ended; got.Cause != isolate.CauseCancelled {
		t.Errorf("the running command ended by %q, want %q", got.Cause, isolate.CauseCancelled)
	}
}

func TestNew_InPlace(t *testing.T) {
	bed := sandboxtest.New(t)
	dir := original(t)
	chain, idx := bed.Base(t, dir)
	s, err := sandbox.New(t.Context(), bed.Host, sandbox.Spec{ID: events.NewID(), Strategy: sandbox.None, Chain: chain, Network: isolate.NetworkNone, Path: dir, Index: idx})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	sandboxtest.Run(t, s, "echo changed >a; rm -r d; echo new >n")
	if b, err := os.ReadFile(filepath.Join(dir, "n")); err != nil || string(b) != "new\n" {
		t.Fatalf("in place: %q, %v", b, err)
	}
	if err := s.Reset(t.Context(), chain); err != nil {
		t.Fatal(err)
	}
	if got, want := sandboxtest.Run(t, s, "cat a d/b; ls"), "one\ntwo\na\nd\n"; got != want {
		t.Errorf("rolled back: %q, want %q", got, want)
	}
	if _, err := os.Stat(filepath.Join(dir, "n")); !os.IsNotExist(err) {
		t.Errorf("what the steps added is still there: %v", err)
	}
}

func TestNew_ErrorCleansUp(t *testing.T) {
	bed := sandboxtest.New(t)
	chain, _ := bed.Base(t, original(t))
	broken := errors.New("no init")
	bed.Host.Init = func(context.Context, string, bool) (*isolate.Init, error) { return nil, broken }
	var last sandbox.State
	bed.Host.Notify = func(c sandbox.Change) { last = c.To }
	_, err := sandbox.New(t.Context(), bed.Host, sandbox.Spec{ID: "box", Strategy: sandbox.CopyOnWrite, Chain: chain})
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "box") {
		t.Errorf("error %v, want one that names the sandbox and its cause", err)
	}
	if last != sandbox.CleanedUp {
		t.Errorf("state %s, want %s", last, sandbox.CleanedUp)
	}
}
