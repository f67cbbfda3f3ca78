package fleets

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// startBroker starts a fleet of scheduler and worker processes on a server of the test's own.
func startBroker(t *testing.T, maxPayload int32) *fleettest.Cluster {
	t.Helper()
	c := &fleettest.Cluster{Place: fleettest.NewPlace(t, fleettest.Ordinary(t))}
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), MaxPayload: maxPayload, NoSigs: true, NoLog: true,
	})
	fleettest.Must(t, err)
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(fleettest.Patience) {
		t.Fatal("server is not ready")
	}
	c.Place = c.With("NATS_URL=" + s.ClientURL())
	c.Start(t, "scheduler", "scheduler").Ready(t)
	c.Connect(t, s.ClientURL())
	c.Worker(t, "w")
	return c
}

func TestCase_I3(t *testing.T) {
	t.Parallel()
	for _, limit := range []int32{1 << 20, 64 << 10} {
		t.Run(fmt.Sprintf("Limit%dkB", limit>>10), func(t *testing.T) {
			t.Parallel()
			c := startBroker(t, limit)
			dir := c.Tree(t, "d", "echo x >f")
			t.Run("Outputs", func(t *testing.T) { largeOutputs(t, c, dir) })
			t.Run("ManyFiles", func(t *testing.T) { manyFiles(t, c, dir) })
			t.Run("Plans", func(t *testing.T) { largePlans(t, c, dir, int(limit)) })
			t.Run("Conflicts", func(t *testing.T) { manyConflicts(t, c, int(limit)) })
		})
	}
}

func largeOutputs(t *testing.T, c *fleettest.Cluster, dir string) {
	ids := map[string]string{}
	for _, size := range []int{900_000, 940_000, 970_000, 1_000_000, 1_050_000, 5_000_000} {
		for kind, from := range map[string]string{"letters": "x", "quotes": `"`, "control": `\001`} {
			file := c.Plan(t, "apply: never\n"+fleettest.Resource(dir), fmt.Sprintf(`head -c %d /dev/zero | tr '\0' '%s'; exit 4`, size, from))
			ids[fmt.Sprint(kind, size)] = c.Submit(t, file)
		}
	}
	for name, id := range ids {
		v := c.Ended(t, id, events.StateFailed)
		if code := v.Steps[0].ExitCode; code == nil || *code != 4 {
			t.Errorf("%s: exit code %v, want 4", name, code)
		}
		if n := len(c.Do(t, "warmfleet", "plan", "logs", id)); n < 900_000 {
			t.Errorf("%s: %d bytes are stored", name, n)
		}
	}
}

const manyCount = 20_000

// manyFiles lets a plan change more paths than any message could name.
func manyFiles(t *testing.T, c *fleettest.Cluster, dir string) {
	script := fmt.Sprintf("mkdir many; seq 0 %d | split -l 1 -a 5 -d - many/", manyCount-1)
	id := c.Submit(t, c.Plan(t, "apply: manual\n"+fleettest.Resource(dir), script))
	e := c.Until(t, id, "awaiting approval", fleettest.IsType(events.TypeAwaitingApproval))
	if n := fleettest.Deref(e.Data.Changed); n != manyCount+1 {
		t.Errorf("changed %d paths, want %d", n, manyCount+1)
	}
	diff := c.Do(t, "warmfleet", "plan", "diff", id)
	if shown := strings.Count("\n"+diff, "\ndiff --git "); shown < 1000 || !strings.Contains(diff, fmt.Sprintf("\n[diff cut: %d of %d changed paths left out", manyCount-shown, manyCount+1)) { // the directory shows in its files
		t.Errorf("the diff shows %d files and ends with %q, want a note on the rest", shown, fleettest.Tail(diff, 100))
	}
	c.Do(t, "warmfleet", "plan", "reject", id)
	c.Ended(t, id, events.StateRejected)
}

// largePlans submits plans around the limits: each is run, or refused with both numbers.
func largePlans(t *testing.T, c *fleettest.Cluster, dir string, limit int) {
	numbers := regexp.MustCompile(`\d{5,}`)
	for _, size := range []int{60_000, 400_000, 990_000, 1_200_000} {
		content := strings.Repeat("x", size)
		file := c.PlanOf(t, "apply: never\n"+fleettest.Resource(dir), "{write_file: {path: big, content: "+fleettest.Quoted(content)+"}}")
		r := c.Warmfleet(t, "submit", file, "--wait")
		switch {
		case size < 64<<10-2048 || size < 512<<10 && limit >= 1<<20:
			r.Exits(t, 0)
		default:
			r.Exits(t, 2)
			if n := numbers.FindAllString(r.Stderr, -1); len(n) < 2 || len(r.Stderr) > 1000 || strings.Count(r.Stderr, "\n") != 1 {
				t.Errorf("plan of %d bytes: %q is not one line with both numbers", size, r.Stderr)
			}
		}
	}
}

// manyConflicts makes a conflict event that would not fit: the plan ends as well.
func manyConflicts(t *testing.T, c *fleettest.Cluster, limit int) {
	dir := c.Tree(t, "conflicts", "echo x >f")
	script := fmt.Sprintf("seq %d | sed s/^/plan/ | split -l 1 -a 5 -d - %s", limit/220, strings.Repeat("a", 220))
	id := c.Submit(t, c.Plan(t, "apply: manual\n"+fleettest.Resource(dir), script))
	c.Until(t, id, "awaiting approval", fleettest.IsType(events.TypeAwaitingApproval))
	c.Sh(t, dir, strings.ReplaceAll(script, "plan", "user"))
	c.Do(t, "warmfleet", "plan", "approve", "--detach", id)
	v := c.Ended(t, id, events.StateConflict)
	if len(v.Conflicts) == 0 {
		t.Error("no conflict is shown")
	}
	if got := c.Warmfleet(t, "plan", "show", id, "-o", "json").Exits(t, 0).View(t); got.State != events.StateConflict {
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
	p := fleettest.NewPlace(t, fleettest.Ordinary(t))
	dir := p.Tree(t, "d", "echo x >f")
	made := p.Warmfleet(t, "run", p.Plan(t, "apply: never", "echo y >g"), "--path", dir, "-o", "json").Exits(t, 0).View(t)
	up := p.Start(t, "up", "warmfleet", "up", "--workers", "0").Ready(t)
	state := p.Path("state", "warmfleet")
	if fi, err := os.Stat(state); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("state directory: %v, %v, want mode 0700", fi.Mode(), err)
	}
	if !strings.Contains(up.Output.String(), state) {
		t.Errorf("the start does not show %s:\n%s", state, up.Output.String())
	}
	var ids []string
	for range 5 {
		ids = append(ids, strings.TrimSpace(p.Do(t, "warmfleet", "submit", p.Plan(t, "apply: never\n"+fleettest.Resource(dir), "echo z >h"))))
	}
	up.Kill(t)

	fleettest.Must(t, os.RemoveAll(p.Path("tmp")))
	fleettest.Must(t, os.Mkdir(p.Path("tmp2"), 0o755))
	p.Own(t, p.Path("tmp2"))
	p = p.With("TMPDIR=" + p.Path("tmp2"))
	p.Cwd = "/"
	p.Start(t, "up again", "warmfleet", "up", "--allow-path", p.Path("work")).Ready(t)
	for _, id := range ids {
		fleettest.Eventually(t, "a plan that waited to be run", func() bool {
			return p.Warmfleet(t, "plan", "show", id, "-o", "json").Exits(t, 0).View(t).State == events.StateExecuted
		})
	}
	if v := p.Warmfleet(t, "plan", "show", made.ID, "-o", "json").Exits(t, 0).View(t); v.State != events.StateExecuted {
		t.Errorf("the earlier plan is %s", v.State)
	}
	last := made.Checkpoints[len(made.Checkpoints)-1].ID
	if tar := p.Do(t, "warmfleet", "checkpoint", "export", last); !strings.Contains(tar, "y\n") {
		t.Errorf("the earlier checkpoint's tree of %d bytes lacks the file", len(tar))
	}
}

func secondCopyIsRefused(t *testing.T) {
	p := fleettest.NewPlace(t, fleettest.Ordinary(t))
	cmds := []*fleettest.Process{p.Start(t, "one", "warmfleet", "up", "--workers", "0"), p.Start(t, "two", "warmfleet", "up", "--workers", "0")}
	var loser *fleettest.Process
	select {
	case <-cmds[0].Ended:
		loser = cmds[0]
	case <-cmds[1].Ended:
		loser = cmds[1]
	case <-time.After(fleettest.Patience):
		t.Fatal("both go on")
	}
	if code := loser.Cmd.ProcessState.ExitCode(); code < 1 || code > 2 || !strings.Contains(loser.Output.String(), "--state-dir") {
		t.Errorf("the second ended with %d: %q", code, loser.Output.String())
	}
	for _, w := range cmds {
		if w != loser {
			w.Ready(t)
		}
	}
	p.Do(t, "warmfleet", "plan", "ls")
	r := p.Warmfleet(t, "up", "--workers", "0", "--state-dir", p.Path("other"), "--listen", strings.TrimPrefix(fleettest.ReadEnv(t, p.Path("state", "warmfleet", "nats.env"))["NATS_URL"], "nats://"))
	if r.Code != 1 && r.Code != 2 || !strings.Contains(r.Stderr, "--listen") {
		t.Errorf("a taken port: exit code %d, %q", r.Code, r.Stderr)
	}
}

func startsOnAFullDisk(t *testing.T) {
	p := fleettest.NewPlace(t, fleettest.Ordinary(t))
	disk := p.SmallDisk(t, "1m")
	fleettest.FillDisk(t, disk)
	r := p.Warmfleet(t, "up", "--workers", "0", "--state-dir", filepath.Join(disk, "state"))
	if r.Code != 1 && r.Code != 2 || !strings.Contains(r.Stderr, "no space") || !strings.Contains(r.Stderr, "state-dir") {
		t.Errorf("exit code %d, stderr %q: want what is full and what to do", r.Code, r.Stderr)
	}
}

func startsReadOnly(t *testing.T) {
	p := fleettest.NewPlace(t, fleettest.Ordinary(t))
	fleettest.Must(t, os.Mkdir(p.Path("sealed"), 0o555))
	p.Own(t, p.Path("sealed"))
	for _, dir := range []string{p.Path("sealed", "state"), "/proc/state"} {
		r := p.Warmfleet(t, "up", "--workers", "0", "--state-dir", dir).Exits(t, 2)
		if !strings.Contains(r.Stderr, "--state-dir") || strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("%s: %q is not one line that says what to do", dir, r.Stderr)
		}
	}
}
