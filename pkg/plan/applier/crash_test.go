package applier

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// sweepScript has every kind of operation in it, over sweepBase.
const sweepBase = baseScript + `
mkdir ro; echo r>ro/r; chmod 555 ro`

const sweepScript = `
chmod 755 ro; rm -r ro; echo ro>ro
echo A>a; rm b; echo n>n; mkdir -p x/y; echo z>x/y/z; chmod 555 x/y; ln -sfn c link; rm -r d; echo d>d
rm c; mkdir c; echo i>c/i; chmod 600 run; chmod 700 empty; ln a hard`

var errInjected = errors.New("injected")

// failAt is a hook that fails the i-th step and no other.
func failAt(i int) (func(string) error, *bool) {
	n, fired := 0, false
	return func(point string) error {
		n++
		if n-1 != i {
			return nil
		}
		fired = true
		return fmt.Errorf("%w at %s", errInjected, point)
	}, &fired
}

// child is one apply, or recovery and apply, in a process of its own that kills itself at the step it is told.
func child(dir string) int {
	at, err := strconv.Atoi(os.Getenv("APPLIER_KILL"))
	if err != nil {
		at = -1
	}
	n := 0
	hook := func(string) error {
		if n == at {
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				panic(err)
			}
			select {}
		}
		n++
		return nil
	}
	conflicts, err := recoverAndApply(dir, os.Getenv("APPLIER_OURS"), hook)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if len(conflicts) > 0 {
		fmt.Println(strings.Join(kinds(conflicts), "\n"))
		return 9
	}
	return 0
}

// recoverAndApply does what a worker does with a redelivered apply.
func recoverAndApply(dir, ours string, hook func(string) error) ([]Conflict, error) {
	ctx := context.Background()
	root := filepath.Join(dir, "orig")
	s, err := Open(ctx, root, Options{Hook: hook})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if _, pending := s.Pending(); pending {
		d := Forward
		if os.Getenv("APPLIER_BACK") != "" {
			d = Back
		}
		out, err := s.Recover(ctx, d)
		if err != nil {
			return nil, err
		}
		if out == Applied {
			return nil, s.Finish(ctx)
		}
		return nil, s.Close()
	}
	tr := trees{base: filepath.Join(dir, "base"), orig: root, ours: filepath.Join(dir, ours)}
	req := tr.request(nopTB{})
	if os.Getenv("APPLIER_RESTORE") != "" {
		req.Restore, req.AllowSpecial = true, true
	}
	p, conflicts, err := s.Check(ctx, req)
	if err != nil || len(conflicts) > 0 {
		return conflicts, err
	}
	if err := s.Stage(ctx, p); err != nil {
		return nil, err
	}
	if err := s.Commit(ctx); err != nil {
		return nil, err
	}
	return nil, s.Finish(ctx)
}

// nopTB lets the helpers run outside a test; a failure panics.
type nopTB struct{ testing.TB }

func (nopTB) Helper()           {}
func (nopTB) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

func childCmd(dir, ours string, env ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "APPLIER_CHILD="+dir, "APPLIER_OURS="+ours)
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

// memDir is a directory on tmpfs where there is one: a sweep syncs hundreds of times.
func memDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "applier")
	if err != nil {
		dir, err = os.MkdirTemp("", "applier")
		must(t, err)
	}
	t.Cleanup(func() {
		sh(t, dir, "chmod -R u+rwx .; rm -rf ..?* .[!.]* *")
		must(t, os.Remove(dir))
	})
	return dir
}

// A kill -9 before every step, then recovery: exactly before or exactly after, nothing in between, nothing left.
func TestSession_CrashSweep(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a sweep that starts processes one after the other")
	}
	for _, back := range []string{"", "1"} {
		t.Run("back="+back, func(t *testing.T) {
			for i, killed := 0, true; killed; i++ {
				killed = crashOnce(t, i, "APPLIER_BACK="+back)
				if t.Failed() {
					t.Fatalf("at step %d", i)
				}
			}
		})
	}
}

// crashOnce kills an apply at step i, and its recovery at a step of its own, and reports whether there was a step i.
func crashOnce(t *testing.T, i int, env string) bool {
	t.Helper()
	dir := memDir(t)
	tr := treesIn(t, dir, script(t, sweepBase))
	sh(t, tr.ours, sweepScript)
	sh(t, tr.orig, `echo own>own`)
	before := snapshot(t, tr.orig)
	err := childCmd(dir, "ours", "APPLIER_KILL="+strconv.Itoa(i)).Run()
	sh(t, tr.ours, `echo own>own`)
	after := snapshot(t, tr.ours)
	if err == nil {
		sameTrees(t, "not killed", snapshot(t, tr.orig), after)
		return false
	}
	begun := journalStates(t, tr.orig)
	// The recovery is killed too, later each time, until it gets through.
	for j := i % 7; ; j += 7 {
		s, err := Open(context.Background(), tr.orig, Options{})
		must(t, err)
		_, pending := s.Pending()
		must(t, s.Close())
		if !pending {
			break
		}
		out, err := childCmd(dir, "ours", env, "APPLIER_KILL="+strconv.Itoa(j)).CombinedOutput()
		if code := (&exec.ExitError{}); err != nil && (!errors.As(err, &code) || code.ExitCode() != -1) {
			t.Fatalf("recovery killed at %d: %v: %s", j, err, out)
		}
	}
	want := before
	if slices.Contains(begun, stateDone) || slices.Contains(begun, stateApplying) && env == "APPLIER_BACK=" {
		want = after
	}
	if len(begun) == 0 && !cmp.Equal(snapshot(t, tr.orig), before) { // killed at the end of Finish
		want = after
	}
	sameTrees(t, fmt.Sprintf("recovered from %v", begun), snapshot(t, tr.orig), want)
	noJournal(t, tr.orig)
	return true
}

func journalStates(t *testing.T, root string) []journalState {
	t.Helper()
	var found []journalState
	for _, st := range []journalState{statePrepared, stateApplying, stateUndoing, stateDone} {
		if _, err := os.Stat(filepath.Join(root, layer.JournalDir, st.file())); err == nil {
			found = append(found, st)
		}
	}
	return found
}
