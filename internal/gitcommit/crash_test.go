package gitcommit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/plan/applier"
)

// child is one apply, or recovery, in a process of its own that kills itself at the step it is told.
func child(dir string) int {
	kill, err := strconv.Atoi(os.Getenv("GITCOMMIT_KILL"))
	if err != nil {
		kill = -1
	}
	n := 0
	hook := func(string) error {
		if n == kill {
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				panic(err)
			}
			select {}
		}
		n++
		return nil
	}
	out, err := at(dir).apply(context.Background(), "", hook)
	if err != nil || out.conflicts != nil {
		fmt.Fprintln(os.Stderr, err, out.conflicts)
		return 1
	}
	return 0
}

func childCmd(dir string, env ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), "GITCOMMIT_CHILD="+dir), env...)
	return cmd
}

// memDir is a directory on tmpfs where there is one: a sweep syncs hundreds of times.
func memDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "gitcommit")
	if err != nil {
		dir, err = os.MkdirTemp("", "gitcommit")
		must(t, err)
	}
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}

const sweepPlan = "echo A>a; rm b; mkdir n; echo n>n/n; rm -r d; echo d>d"

const sweepUser = "echo mine>c; echo s>st; git add st; echo u>u"

// A kill -9 before every step of files, index and branch, then recovery in either direction: exactly before or exactly after,
// what the user had staged and not committed is there, and no lock of ours is left.
func TestRepository_CrashSweep(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a sweep that starts processes one after the other")
	}
	reached := map[string]bool{}
	for _, back := range []string{"", "1"} {
		t.Run("back="+back, func(t *testing.T) {
			for i, killed := 0, true; killed; i++ {
				killed = crashOnce(t, i, back, reached)
				if t.Failed() {
					t.Fatalf("at step %d", i)
				}
			}
		})
	}
	if !reached["before"] || !reached["after"] {
		t.Errorf("outcomes that were seen: %v", reached)
	}
}

// crashOnce kills an apply at step i, and its recovery at a step of its own, and reports whether there was a step i.
func crashOnce(t *testing.T, i int, back string, reached map[string]bool) bool {
	t.Helper()
	r := rigIn(t, memDir(t), baseScript, sweepPlan)
	sh(t, r.orig, sweepUser)
	before := r.state(t)
	out, err := childCmd(r.dir, "GITCOMMIT_KILL="+strconv.Itoa(i)).CombinedOutput()
	if code := (&exec.ExitError{}); err != nil && (!errors.As(err, &code) || code.ExitCode() != -1) {
		t.Fatalf("apply: %v: %s", err, out)
	}
	begun := begun(r.orig)
	for j := i % 5; pending(t, r.orig); j += 5 { // the recovery is killed too, later each time, until it gets through
		out, err := childCmd(r.dir, "GITCOMMIT_BACK="+back, "GITCOMMIT_KILL="+strconv.Itoa(j)).CombinedOutput()
		if code := (&exec.ExitError{}); err != nil && (!errors.As(err, &code) || code.ExitCode() != -1) {
			t.Fatalf("recovery killed at %d: %v: %s", j, err, out)
		}
	}
	// Without a journal nothing had begun, and what is left goes when the next one looks.
	if out, err := childCmd(r.dir, "GITCOMMIT_RECOVER=1").CombinedOutput(); err != nil {
		t.Fatalf("tidy up: %v: %s", err, out)
	}
	after := "u@example.com"
	if got := strings.TrimSpace(sh(t, r.orig, "git log -1 --format=%ae")); got != after {
		after = "p@example.com"
	}
	switch {
	case after == "u@example.com":
		reached["before"] = true
		if got := r.state(t); got != before {
			t.Errorf("recovered from %s (-got +before):\n%s\n%s", begun, got, before)
		}
	default:
		reached["after"] = true
		isAfter(t, r)
	}
	if begun == "done" && after == "u@example.com" || begun == "applying" && back == "" && after == "u@example.com" || begun == "prepared" && after != "u@example.com" {
		t.Errorf("recovered from %s to the wrong side", begun)
	}
	if got := sh(t, r.orig, "ls .git/*.lock .git/*warmfleet* .warmfleet-apply 2>/dev/null || true"); got != "" {
		t.Errorf("left behind: %s", got)
	}
	return err != nil
}

func isAfter(t *testing.T, r rig) {
	t.Helper()
	want := " M c\nA  st\n?? u\n"
	if got := sh(t, r.orig, "git status --porcelain"); got != want {
		t.Errorf("status: got %q, want %q", got, want)
	}
	if got, want := sh(t, r.orig, "cat a d n/n c st u; ls; git rev-list --count trunk; git fsck --no-dangling 2>&1"), "A\nd\nn\nmine\ns\nu\na\nc\nd\nlink\nn\nrun\nst\nu\n2\n"; got != want {
		t.Errorf("after: got %q, want %q", got, want)
	}
}

// begun is how far the journal says that an apply got.
func begun(root string) string {
	for _, st := range []string{"prepared", "applying", "undoing", "done"} {
		if _, err := os.Stat(filepath.Join(root, layer.JournalDir, "journal."+st)); err == nil {
			return st
		}
	}
	return "nothing"
}

func pending(t *testing.T, root string) bool {
	t.Helper()
	b := begun(root)
	return b != "nothing" && b != "prepared"
}

// An index lock that somebody removed after a kill, and a git that worked since, are met by the recovery.
func TestRepository_RecoveryAfterTheUserWentOn(t *testing.T) {
	for _, tc := range []struct {
		name, point, user string
		blocked           bool
		want              string
	}{
		{name: "CommitBeforeTheIndex", point: "do extra .git/index", user: "echo Z>run; git commit -qm own run", want: "own\n"},
		{name: "StagedAfterTheIndex", point: "do extra refs/heads/trunk", user: "echo z>z; git add z", want: "by plan\n"},
		{name: "BranchMoved", point: "do extra refs/heads/trunk", user: "git update-ref refs/heads/trunk $(git commit-tree -p HEAD -m own HEAD^{tree})", blocked: true, want: "own\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, baseScript, "echo A>a; echo n>n")
			stop := errors.New("stop")
			dead := false // from the point on nothing more is done, as after a kill
			_, err := r.apply(t.Context(), "", func(p string) error {
				if dead = dead || p == tc.point; dead {
					return stop
				}
				return nil
			})
			if !errors.Is(err, stop) {
				t.Fatalf("got %v, want the apply to be stopped", err)
			}
			sh(t, r.orig, "rm .git/index.lock; "+tc.user)
			_, err = r.apply(t.Context(), "", nil)
			var blocked *applier.Blocked
			if errors.As(err, &blocked) != tc.blocked || err != nil && !tc.blocked {
				t.Errorf("recovery: got %v, want blocked: %v", err, tc.blocked)
			}
			if got := sh(t, r.orig, "git log -1 --format=%s"); got != tc.want {
				t.Errorf("the branch is at %q, want %q", got, tc.want)
			}
		})
	}
}
