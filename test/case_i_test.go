package test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// startBroker starts a fleet of scheduler and worker processes on a server of the test's own.
func startBroker(t *testing.T, maxPayload int32) *cluster {
	t.Helper()
	c := &cluster{place: newPlace(t, ordinary(t))}
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), MaxPayload: maxPayload, NoSigs: true, NoLog: true,
	})
	must(t, err)
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(patience) {
		t.Fatal("server is not ready")
	}
	c.place = c.with("NATS_URL=" + s.ClientURL())
	c.start(t, "scheduler", "scheduler").ready(t)
	c.connect(t, s.ClientURL())
	c.worker(t, "w")
	return c
}

func TestCase_I3(t *testing.T) {
	for _, limit := range []int32{1 << 20, 64 << 10} {
		t.Run(fmt.Sprintf("Limit%dkB", limit>>10), func(t *testing.T) {
			t.Parallel()
			c := startBroker(t, limit)
			dir := c.tree(t, "d", "echo x >f")
			t.Run("Outputs", func(t *testing.T) { largeOutputs(t, c, dir) })
			t.Run("ManyFiles", func(t *testing.T) { manyFiles(t, c, dir) })
			t.Run("Plans", func(t *testing.T) { largePlans(t, c, dir, int(limit)) })
			t.Run("Conflicts", func(t *testing.T) { manyConflicts(t, c, int(limit)) })
		})
	}
}

func largeOutputs(t *testing.T, c *cluster, dir string) {
	ids := map[string]string{}
	for _, size := range []int{900_000, 940_000, 970_000, 1_000_000, 1_050_000, 5_000_000} {
		for kind, from := range map[string]string{"letters": "x", "quotes": `"`, "control": `\001`} {
			file := c.plan(t, "apply: never\n"+resource(dir), fmt.Sprintf(`head -c %d /dev/zero | tr '\0' '%s'; exit 4`, size, from))
			ids[fmt.Sprint(kind, size)] = c.submit(t, file)
		}
	}
	for name, id := range ids {
		v := c.ended(t, id, events.StateFailed)
		if code := v.Steps[0].ExitCode; code == nil || *code != 4 {
			t.Errorf("%s: exit code %v, want 4", name, code)
		}
		if n := len(c.do(t, "warmfleet", "plan", "logs", id)); n < 900_000 {
			t.Errorf("%s: %d bytes are stored", name, n)
		}
	}
}

const manyCount = 20_000

// manyFiles lets a plan change more paths than any message could name.
func manyFiles(t *testing.T, c *cluster, dir string) {
	script := fmt.Sprintf("mkdir many; seq 0 %d | split -l 1 -a 5 -d - many/", manyCount-1)
	id := c.submit(t, c.plan(t, "apply: manual\n"+resource(dir), script))
	e := c.until(t, id, "awaiting approval", isType(events.TypeAwaitingApproval))
	if n := deref(e.Data.Changed); n != manyCount+1 {
		t.Errorf("changed %d paths, want %d", n, manyCount+1)
	}
	diff := c.do(t, "warmfleet", "plan", "diff", id)
	if shown := strings.Count("\n"+diff, "\ndiff --git "); shown < 1000 || !strings.Contains(diff, fmt.Sprintf("\n[diff cut: %d of %d changed paths left out", manyCount-shown, manyCount+1)) { // the directory shows in its files
		t.Errorf("the diff shows %d files and ends with %q, want a note on the rest", shown, tail(diff, 100))
	}
	c.do(t, "warmfleet", "plan", "reject", id)
	c.ended(t, id, events.StateRejected)
}

// largePlans submits plans around the limits: each is run, or refused with both numbers.
func largePlans(t *testing.T, c *cluster, dir string, limit int) {
	numbers := regexp.MustCompile(`\d{5,}`)
	for _, size := range []int{60_000, 400_000, 990_000, 1_200_000} {
		content := strings.Repeat("x", size)
		file := c.planOf(t, "apply: never\n"+resource(dir), "{write_file: {path: big, content: "+quoted(content)+"}}")
		r := c.warmfleet(t, "submit", file, "--wait")
		switch {
		case size < 64<<10-2048 || size < 512<<10 && limit >= 1<<20:
			r.exits(t, 0)
		default:
			r.exits(t, 2)
			if n := numbers.FindAllString(r.stderr, -1); len(n) < 2 || len(r.stderr) > 1000 || strings.Count(r.stderr, "\n") != 1 {
				t.Errorf("plan of %d bytes: %q is not one line with both numbers", size, r.stderr)
			}
		}
	}
}

// manyConflicts makes a conflict event that would not fit: the plan ends as well.
func manyConflicts(t *testing.T, c *cluster, limit int) {
	dir := c.tree(t, "conflicts", "echo x >f")
	script := fmt.Sprintf("seq %d | sed s/^/plan/ | split -l 1 -a 5 -d - %s", limit/220, strings.Repeat("a", 220))
	id := c.submit(t, c.plan(t, "apply: manual\n"+resource(dir), script))
	c.until(t, id, "awaiting approval", isType(events.TypeAwaitingApproval))
	c.sh(t, dir, strings.ReplaceAll(script, "plan", "user"))
	c.do(t, "warmfleet", "plan", "approve", "--detach", id)
	v := c.ended(t, id, events.StateConflict)
	if len(v.Conflicts) == 0 {
		t.Error("no conflict is shown")
	}
	if got := c.warmfleet(t, "plan", "show", id, "-o", "json").exits(t, 0).view(t); got.State != events.StateConflict {
		t.Errorf("shown as %s", got.State)
	}
}

// Case I4 with defaults only: the directory is the user's, and what is in it survives.
func TestCase_I4(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T){
		"Survives": stateSurvives, "SecondCopy": secondCopyIsRefused, "FullDisk": startsOnAFullDisk, "ReadOnly": startsReadOnly,
	} {
		t.Run(name, test)
	}
}

func stateSurvives(t *testing.T) {
	p := newPlace(t, ordinary(t))
	dir := p.tree(t, "d", "echo x >f")
	made := p.warmfleet(t, "run", p.plan(t, "apply: never", "echo y >g"), "--path", dir, "-o", "json").exits(t, 0).view(t)
	up := p.start(t, "up", "warmfleet", "up", "--workers", "0").ready(t)
	state := p.path("state", "warmfleet")
	if fi, err := os.Stat(state); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("state directory: %v, %v, want mode 0700", fi.Mode(), err)
	}
	if !strings.Contains(up.output.String(), state) {
		t.Errorf("the start does not show %s:\n%s", state, up.output.String())
	}
	var ids []string
	for range 5 {
		ids = append(ids, strings.TrimSpace(p.do(t, "warmfleet", "submit", p.plan(t, "apply: never\n"+resource(dir), "echo z >h"))))
	}
	up.kill(t)

	must(t, os.RemoveAll(p.path("tmp")))
	must(t, os.Mkdir(p.path("tmp2"), 0o755))
	p.own(t, p.path("tmp2"))
	p = p.with("TMPDIR=" + p.path("tmp2"))
	p.cwd = "/"
	p.start(t, "up again", "warmfleet", "up", "--allow-path", p.path("work")).ready(t)
	for _, id := range ids {
		eventually(t, "a plan that waited to be run", func() bool {
			return p.warmfleet(t, "plan", "show", id, "-o", "json").exits(t, 0).view(t).State == events.StateExecuted
		})
	}
	if v := p.warmfleet(t, "plan", "show", made.ID, "-o", "json").exits(t, 0).view(t); v.State != events.StateExecuted {
		t.Errorf("the earlier plan is %s", v.State)
	}
	last := made.Checkpoints[len(made.Checkpoints)-1].ID
	if tar := p.do(t, "warmfleet", "checkpoint", "export", last); !strings.Contains(tar, "y\n") {
		t.Errorf("the earlier checkpoint's tree of %d bytes lacks the file", len(tar))
	}
}

func secondCopyIsRefused(t *testing.T) {
	p := newPlace(t, ordinary(t))
	cmds := []*process{p.start(t, "one", "warmfleet", "up", "--workers", "0"), p.start(t, "two", "warmfleet", "up", "--workers", "0")}
	var loser *process
	select {
	case <-cmds[0].ended:
		loser = cmds[0]
	case <-cmds[1].ended:
		loser = cmds[1]
	case <-time.After(patience):
		t.Fatal("both go on")
	}
	if code := loser.cmd.ProcessState.ExitCode(); code < 1 || code > 2 || !strings.Contains(loser.output.String(), "--state-dir") {
		t.Errorf("the second ended with %d: %q", code, loser.output.String())
	}
	for _, w := range cmds {
		if w != loser {
			w.ready(t)
		}
	}
	p.do(t, "warmfleet", "plan", "ls")
	r := p.warmfleet(t, "up", "--workers", "0", "--state-dir", p.path("other"), "--listen", strings.TrimPrefix(readEnv(t, p.path("state", "warmfleet", "nats.env"))["NATS_URL"], "nats://"))
	if r.code != 1 && r.code != 2 || !strings.Contains(r.stderr, "--listen") {
		t.Errorf("a taken port: exit code %d, %q", r.code, r.stderr)
	}
}

func startsOnAFullDisk(t *testing.T) {
	p := newPlace(t, ordinary(t))
	disk := smallDisk(t, p, "1m")
	fill(t, disk)
	r := p.warmfleet(t, "up", "--workers", "0", "--state-dir", filepath.Join(disk, "state"))
	if r.code != 1 && r.code != 2 || !strings.Contains(r.stderr, "no space") || !strings.Contains(r.stderr, "state-dir") {
		t.Errorf("exit code %d, stderr %q: want what is full and what to do", r.code, r.stderr)
	}
}

// smallDisk mounts a file system of a size for the place's account.
func smallDisk(t *testing.T, p *place, size string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	dir := p.path("disk")
	must(t, os.Mkdir(dir, 0o755))
	must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755,size="+size))
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
			syscall.Unmount(dir, syscall.MNT_DETACH)
		}
	})
	p.own(t, dir)
	return dir
}

// fill leaves no room on a file system.
func fill(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	must(t, err)
	defer f.Close()
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
}

func startsReadOnly(t *testing.T) {
	p := newPlace(t, ordinary(t))
	must(t, os.Mkdir(p.path("sealed"), 0o555))
	p.own(t, p.path("sealed"))
	for _, dir := range []string{p.path("sealed", "state"), "/proc/state"} {
		r := p.warmfleet(t, "up", "--workers", "0", "--state-dir", dir).exits(t, 2)
		if !strings.Contains(r.stderr, "--state-dir") || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%s: %q is not one line that says what to do", dir, r.stderr)
		}
	}
}
