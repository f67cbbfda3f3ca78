package plans

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// Case B1. Special files are never opened; what cannot be kept is listed; what a step made goes at the rollback.
func TestCase_B1(t *testing.T) {
	t.Parallel()
	fleettest.EachAccount(t, func(t *testing.T, c *fleettest.Cluster) {
		for _, strategy := range fleettest.Strategies() {
			t.Run(strategy, func(t *testing.T) { specialFiles(t, c, strategy) })
		}
	})
}

func specialFiles(t *testing.T, c *fleettest.Cluster, strategy string) {
	dir := c.Tree(t, "b1-"+strategy, "git init -q -b trunk .; echo one >f; git add -A; "+fleettest.GitIdentity+"commit -qm one; mkfifo p; mkdir sub; mkfifo -m 600 sub/p")
	socket(t, c, filepath.Join(dir, "s.sock"))
	if c.UID == 0 {
		fleettest.Must(t, syscall.Mknod(filepath.Join(dir, "null"), syscall.S_IFCHR|0o666, 1<<8|3))
	}
	before := fleettest.Snapshot(t, dir)
	ensure := "[ -p p ] || mkfifo p; ls; echo two >g"
	makes := `mkdir new; mkfifo new/q; rm p; echo file >p
perl -e 'use Socket; socket(S, AF_UNIX, SOCK_STREAM, 0); bind(S, sockaddr_un("new/t.sock")) or die $!'`
	file := c.PlanOf(t, "timeout: 60s\nstrategy: "+strategy+"\n"+applyFor(strategy), "{id: ensure, checkpoint: true, run: "+fleettest.Quoted(ensure)+"}", twice(makes))
	v := c.Warmfleet(t, "run", file, "--path", dir, "-o", "json").Exits(t, 3).View(t)
	tries := listings(t, c, v.ID)
	if tries[0] != tries[1] {
		t.Errorf("the second try began with\n%s\nthe first with\n%s", tries[1], tries[0])
	}
	fleettest.Unchanged(t, dir, before)
	// What the sandbox starts with is on the first checkpoint; a checkout starts with nothing of the kind.
	listed := c.Do(t, "warmfleet", "checkpoint", "show", v.Checkpoints[0].ID, "-o", "json")
	if whole := strategy != "git_worktree"; strings.Contains(listed, `"s.sock"`) != whole {
		t.Errorf("pre_execute lists the socket: %v, want %v\n%s", !whole, whole, listed)
	}
}

// socket binds a socket that outlives whoever listens on it.
func socket(t *testing.T, c *fleettest.Cluster, path string) {
	t.Helper()
	short := filepath.Join(c.Dir, "s") // the path of a socket is at most 107 bytes
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	fleettest.Must(t, err)
	l.SetUnlinkOnClose(false)
	fleettest.Must(t, errors.Join(l.Close(), os.Rename(short, path)))
	c.Own(t, path)
}

// Case B2. Directories without write permission are back as they were, and go with their sandbox.
func TestCase_B2(t *testing.T) {
	t.Parallel()
	fleettest.EachAccount(t, func(t *testing.T, c *fleettest.Cluster) {
		for _, strategy := range fleettest.Strategies() {
			t.Run(strategy, func(t *testing.T) { sealedDirectories(t, c, strategy) })
		}
		fleettest.Eventually(t, "all sandboxes to be removed", func() bool { return len(c.LeftViews(t, "w")) == 0 })
	})
}

func sealedDirectories(t *testing.T, c *fleettest.Cluster, strategy string) {
	dir := c.Tree(t, "b2-"+strategy, `git init -q -b trunk .; mkdir -p d/e; echo one >d/f; echo two >d/e/f
git add -A; `+fleettest.GitIdentity+`commit -qm one; chmod 444 d/f d/e/f; chmod 555 d/e d`)
	before := fleettest.Snapshot(t, dir)
	ensure := "chmod 444 d/f d/e/f; chmod 555 d/e d; echo 1 >g"
	file := c.PlanOf(t, "strategy: "+strategy+"\n"+applyFor(strategy), "{id: ensure, checkpoint: true, run: "+fleettest.Quoted(ensure)+"}",
		twice("chmod 755 d d/e; rm -f d/f d/e/f; echo new >d/new; chmod 555 d/e d"))
	v := c.Warmfleet(t, "run", file, "--path", dir, "-o", "json").Exits(t, 3).View(t)
	tries := listings(t, c, v.ID)
	if tries[0] != tries[1] || !strings.Contains(tries[1], "./d dir 555\n") || !strings.Contains(tries[1], "./d/f file 444 ") {
		t.Errorf("the second try began with\n%s\nthe first with\n%s", tries[1], tries[0])
	}
	fleettest.Unchanged(t, dir, before)
	exported := c.Export(t, stepCheckpoint(t, v))
	if got := c.Sh(t, exported, listScript+"list"); got != tries[0] {
		t.Errorf("exported checkpoint\n%s\nthe tree it was taken of\n%s", got, tries[0])
	}
}

// Case B3. What still writes while a checkpoint is taken: processes that a step left are dead by then, and whoever writes to
// the original meanwhile makes no broken archive: a plan says what would not stand still, or has it whole.
func TestCase_B3(t *testing.T) {
	t.Parallel()
	fleettest.EachAccount(t, func(t *testing.T, c *fleettest.Cluster) {
		for _, strategy := range fleettest.Strategies() {
			t.Run(strategy, func(t *testing.T) { leftWriters(t, c, strategy) })
		}
		t.Run("OriginalMoves", func(t *testing.T) { movingOriginal(t, c) })
	})
}

// writers append, truncate and delete without end; the word finds them.
const writers = `
echo start >log; echo start >t; echo start >v
(sh -c 'while :; do echo line >>log; done' %[1]s & sh -c 'while :; do : >t; seq 200 >t; done' %[1]s & setsid sh -c 'while :; do rm -f v; seq 50 >v; done' %[1]s &) >/dev/null 2>&1
until [ $(wc -c <log) -gt 100 ]; do :; done
`

func leftWriters(t *testing.T, c *fleettest.Cluster, strategy string) {
	const rounds = 7 // with three strategies some twenty checkpoints
	dir := c.Tree(t, "b3-"+strategy, "git init -q -b trunk .; echo one >f; git add -A; "+fleettest.GitIdentity+"commit -qm one")
	word := fmt.Sprintf("603.%d", time.Now().UnixNano()%1e9)
	var steps []string
	for i := range rounds {
		steps = append(steps, fmt.Sprintf("{id: s%d, checkpoint: true, run: %s}", i, fleettest.Quoted(fmt.Sprintf(writers, word))))
	}
	v := c.Warmfleet(t, "run", c.PlanOf(t, "strategy: "+strategy+"\n"+applyFor(strategy), steps...), "--path", dir, "-o", "json").Exits(t, 0).View(t)
	if n := fleettest.Running(word); n != 0 {
		t.Errorf("%d writers are left", n)
	}
	if got := wholeArchives(t, c, v.ID); got < rounds {
		t.Errorf("%d stored checkpoints of steps, want %d", got, rounds)
	}
}

// wholeArchives reads every stored checkpoint of a plan to its end, and counts them.
func wholeArchives(t *testing.T, c *fleettest.Cluster, plan string) int {
	t.Helper()
	cps, err := checkpoint.All(t.Context(), c.Fleet.Checkpoints)
	fleettest.Must(t, err)
	n := 0
	for _, cp := range cps {
		if cp.PlanID != plan || cp.Phase == checkpoint.PreExecute {
			continue
		}
		n++
		if err := readArchive(t.Context(), c, cp); err != nil {
			t.Errorf("checkpoint %s (%s): %v", cp.ID, cp.Phase, err)
		}
	}
	return n
}

func readArchive(ctx context.Context, c *fleettest.Cluster, cp checkpoint.Checkpoint) error {
	r, w := io.Pipe()
	go func() { w.CloseWithError(checkpoint.Export(ctx, cp, c.Fleet.Store, w)) }()
	defer r.Close()
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, r)
			return err
		}
		if err != nil {
			return err
		}
		if n, err := io.Copy(io.Discard, archive); err != nil || n != h.Size {
			return fmt.Errorf("%s: %d of %d bytes: %w", h.Name, n, h.Size, err)
		}
	}
}

func movingOriginal(t *testing.T, c *fleettest.Cluster) {
	dir := c.Tree(t, "b3-moving", "echo start >log; echo start >t; echo start >v; seq 100000 >still")
	word := fmt.Sprintf("604.%d", time.Now().UnixNano()%1e9)
	q := *c.Place
	q.Cwd = dir
	script := strings.NewReplacer(") >/dev/null 2>&1", "wait)", "setsid ", "").Replace(fmt.Sprintf(writers, word))
	outside := q.Start(t, "writers", "setsid", "sh", "-c", script)
	t.Cleanup(func() {
		syscall.Kill(-outside.Cmd.Process.Pid, syscall.SIGKILL)
		fleettest.Eventually(t, "the writers to end", func() bool { return fleettest.Running(word) == 0 })
	})
	fleettest.Eventually(t, "the writers to write", func() bool { return fleettest.Running(word) == 3 && len(fleettest.Read(t, dir, "log")) > 100 })
	for range 3 {
		r := c.Warmfleet(t, "run", c.Plan(t, "apply: never", "cat log t >both; wc -l still"), "--path", dir, "-o", "json")
		v := r.View(t)
		if failed := v.State == events.StateFailed; failed && !strings.ContainsAny(fleettest.Deref(v.Error), "ltv") || !failed && v.State != events.StateExecuted {
			t.Errorf("state %s, error %q: want it executed, or failed for a file that moved", v.State, fleettest.Deref(v.Error))
		} else if failed {
			t.Logf("failed: %s", fleettest.Deref(v.Error))
		}
		wholeArchives(t, c, v.ID)
	}
}
