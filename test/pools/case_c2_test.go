package pools

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/internal/remotetest"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// Case C4. A repository without a commit: strategies that can work on it do, the other says why it cannot before any step, and a pool
// waits for the first commit. Commit-back is TestCase_C4Commit.
func TestCase_C4(t *testing.T) {
	t.Parallel()
	c := startRig(t, fleettest.Ordinary(t))
	c.Worker(t, "w")
	for _, strategy := range fleettest.Strategies() {
		t.Run(strategy, func(t *testing.T) { unborn(t, c, strategy) })
	}
	t.Run("Pool", func(t *testing.T) { poolOfAnUnborn(t, c) })
}

func unborn(t *testing.T, c *rig, strategy string) {
	dir := c.Tree(t, "c4-"+strategy, "git init -q -b dev .; echo u >untracked")
	before := fleettest.Snapshot(t, dir)
	apply := "apply: manual"
	if strategy == "none" {
		apply = "apply: auto"
	}
	id := c.Submit(t, c.PlanOf(t, apply+"\nstrategy: "+strategy+"\n"+fleettest.Resource(dir), `{checkpoint: true, run: "cat untracked; echo r >result; git status --porcelain --branch"}`))
	switch strategy {
	case "git_worktree":
		if _, text := c.failed(t, id); !strings.Contains(text, "without a commit") || !strings.Contains(text, dir) {
			t.Errorf("error %q, want it to name the directory, and that it has no commit", text)
		}
		if n := c.Count(t, id, fleettest.IsType(events.TypeStepStarted)); n != 0 {
			t.Errorf("%d steps were started", n)
		}
		fleettest.Unchanged(t, dir, before)
		return
	case "copy_on_write":
		c.Until(t, id, "awaiting approval", fleettest.IsType(events.TypeAwaitingApproval))
		fleettest.Unchanged(t, dir, before)
		c.Do(t, "warmfleet", "plan", "approve", "--detach", id)
	}
	c.Ended(t, id, events.StateApplied)
	if got, want := c.Do(t, "warmfleet", "plan", "logs", id), "u\n## No commits yet on dev\n?? result\n?? untracked\n"; got != want {
		t.Errorf("the step printed %q, want %q", got, want)
	}
	if got := fleettest.Read(t, dir, "result"); got != "r\n" {
		t.Errorf("result: got %q", got)
	}
}

// poolOfAnUnborn: it says what it waits for, other pools do not notice, and after the first commit all is well by itself.
func poolOfAnUnborn(t *testing.T, c *rig) {
	top := c.Tree(t, "c4-pool", "git init -q --bare -b dev r.git; git init -q -b dev work")
	u := &upstream{c.Place, filepath.Join(top, "r.git"), filepath.Join(top, "work")}
	good := c.upstream(t, "c4-good", "echo 1 >v")
	c.pool(t, "c4", u.url(), "target_size: 1")
	c.pool(t, "c4-good", good.url(), "target_size: 1")
	c.says(t, "c4", "no commit yet")
	id := c.Submit(t, c.Plan(t, planIn("c4"), whereScript))
	e := c.Until(t, id, "a reason to wait", fleettest.IsType(events.TypeWaiting))
	if !strings.Contains(e.Data.Reason, "c4") || !strings.Contains(e.Data.Reason, "no commit yet") {
		t.Errorf("the plan waits for %q", e.Data.Reason)
	}
	if _, err := c.Client.StartSession(t.Context(), api.SessionStart{Pool: "c4"}); err == nil || !strings.Contains(err.Error(), "no commit yet") || strings.Contains(err.Error(), "\n") {
		t.Errorf("session: got %v, want one line with the reason", err)
	}
	c.warm(t, "c4-good", 1)
	u.Sh(t, u.work, "git remote add origin ../r.git")
	commit := u.push(t, "echo 1 >v")
	if got, _ := c.printed(t, id); got != where("dev", commit, "1") {
		t.Errorf("after the first commit: got %q", got)
	}
	c.warm(t, "c4", 1)
}

// Case C5. What was asked for is gone when it is to run: a branch is followed, a commit is had or clearly refused, and the
// default branch goes on.
func TestCase_C5(t *testing.T) {
	t.Parallel()
	for _, depth := range []string{"Full", "Depth1"} {
		t.Run(depth, func(t *testing.T) {
			t.Parallel()
			c := startRig(t, fleettest.Ordinary(t))
			u := c.upstream(t, "c5", "echo trunk >v")
			u.Sh(t, u.work, "git checkout -q -b f")
			for i := range 3 {
				u.push(t, fmt.Sprintf("echo f%d >v", i))
			}
			publish := func() { u.Sh(t, u.bare, "git reflog expire --expire=all --all; git gc -q --prune=now") }
			if depth == "Depth1" {
				u.Sh(t, filepath.Dir(u.bare), "mv r.git full.git; git -C work remote set-url origin ../full.git")
				publish = func() {
					u.Sh(t, filepath.Dir(u.bare), "rm -rf r.git; git clone -q --bare --depth=1 --no-single-branch file://$PWD/full.git r.git")
				}
			}
			publish()
			w := c.Worker(t, "w")
			c.pool(t, "c5", u.url(), "target_size: 1")
			c.warm(t, "c5", 1)
			rewritten(t, c, u, w, publish)
		})
	}
}

// rewritten rewrites history under plans that wait for a worker.
func rewritten(t *testing.T, c *rig, u *upstream, w *fleettest.Process, publish func()) {
	trunk := strings.TrimSpace(u.Sh(t, u.bare, "git rev-parse trunk"))
	amend := func() string {
		return strings.TrimSpace(u.Sh(t, u.work, "echo amended >v; "+fleettest.GitIdentity+"commit -qa --amend -m amended; git push -qf origin HEAD; git rev-parse HEAD"))
	}
	rewind := func() string {
		return strings.TrimSpace(u.Sh(t, u.work, "git reset -q --hard HEAD~2; git push -qf origin HEAD; git rev-parse HEAD"))
	}
	gone := func() string { u.Sh(t, u.work, "git push -q origin :f"); return "" }
	for _, step := range []struct {
		name string
		do   func() string
	}{{"Amended", amend}, {"Rewound", rewind}, {"Deleted", gone}} {
		w.Signal(t, 15)
		w.Exit(t, fleettest.Patience)
		pinned := strings.TrimSpace(u.Sh(t, u.bare, "git rev-parse f"))
		of := func(ref string) string {
			return c.Submit(t, c.Plan(t, planIn("c5")+"resource: {repo: "+fleettest.Quoted(u.url())+", ref: "+fleettest.Quoted(ref)+"}", "git rev-parse HEAD"))
		}
		branch, commit, unheard, main := of("f"), of(pinned), of(strings.Repeat("5", 40)), c.Submit(t, c.Plan(t, planIn("c5"), "git rev-parse HEAD"))
		want := step.do()
		publish()
		w = c.Worker(t, "w")
		if got, _ := c.printed(t, main); got != trunk+"\n" {
			t.Errorf("%s: plan on the default branch: got %q, want %q", step.name, got, trunk)
		}
		if want != "" {
			if got, _ := c.printed(t, branch); got != want+"\n" {
				t.Errorf("%s: plan on the branch: got %q, want %q", step.name, got, want)
			}
		} else {
			c.unavailable(t, branch)
		}
		if v := c.Ends(t, commit); v.State == events.StateExecuted {
			if got := c.Do(t, "warmfleet", "plan", "logs", commit); got != pinned+"\n" {
				t.Errorf("%s: plan on the commit: got %q, want %q", step.name, got, pinned)
			}
		} else {
			c.unavailable(t, commit)
		}
		c.unavailable(t, unheard)
	}
}

// unavailable fails the test unless a plan failed at once for a revision that is gone.
func (c *rig) unavailable(t *testing.T, id string) {
	t.Helper()
	if _, text := c.failed(t, id); !strings.Contains(text, "revision no longer available") {
		t.Errorf("plan %s: error %q, want revision no longer available", id, text)
	}
	c.Once(t, id, 1)
}

// stallLimit is how long a remote may give no sign of life here.
const stallLimit = 8 * time.Second

// Case C6. A remote that accepts and says nothing holds nobody: reads go on, writes end within the limit, other repositories do
// not notice, and no git outlives its worker.
func TestCase_C6(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"http", "git"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			c := startRig(t, fleettest.Ordinary(t))
			w := c.Worker(t, "w", "--remote-stall", stallLimit.String())
			u, other := c.upstream(t, "c6", "echo 1 >v"), c.upstream(t, "c6-other", "echo other >v")
			relay := remotetest.Between(t, served(t, protocol, filepath.Dir(u.bare)))
			c.pool(t, "c6", relay.URL+"/r.git", "target_size: 1")
			c.pool(t, "c6-other", other.url(), "target_size: 1")
			c.warm(t, "c6", 1)
			c.warm(t, "c6-other", 1)
			relay.Silence()
			stalledSession(t, c)
			go c.Client.StartSession(t.Context(), api.SessionStart{Pool: "c6"}) // which asks the remote
			fleettest.Eventually(t, "a git that waits for the remote", func() bool { return len(remotetest.Gits(c.Path("w"))) > 0 })
			w.Kill(t)
			remotetest.WantNoGit(t, c.Path("w"))
		})
		t.Run(protocol+"/Slow", func(t *testing.T) {
			t.Parallel()
			c := startRig(t, fleettest.Ordinary(t))
			c.Worker(t, "w", "--remote-stall", "1s")
			u := c.upstream(t, "c6", "echo 1 >v")
			relay := remotetest.Between(t, served(t, protocol, filepath.Dir(u.bare)))
			c.pool(t, "c6", relay.URL+"/r.git", "target_size: 1")
			c.warm(t, "c6", 1)
			relay.Rate.Store(50 << 10)
			commit := u.push(t, "head -c 300000 /dev/urandom >noise; echo 2 >v")
			began := time.Now()
			if got, claim := c.ran(t, planIn("c6"), whereScript); got != where("trunk", commit, "2") || claim.Source != events.SourceWarm {
				t.Errorf("got %q, started %s", got, claim.Source)
			}
			if took := time.Since(began); took < 3*time.Second {
				t.Errorf("it took %v: the remote was not slow", took)
			}
		})
	}
}

// served serves what is below a directory by a protocol and returns the URL.
func served(t *testing.T, protocol, dir string) string {
	if protocol == "git" {
		return remotetest.Daemon(t, dir)
	}
	return remotetest.Serve(t, dir, "").URL
}

// stalledSession uses a session whose remote is silent, and beside it another pool.
func stalledSession(t *testing.T, c *rig) {
	began, id := time.Now(), events.NewID()
	go c.Client.StartSession(t.Context(), api.SessionStart{ID: id, Pool: "c6"}) // whose answer comes when it is in sync
	fleettest.Eventually(t, "an active session", func() bool {
		s, err := c.Client.Session(t.Context(), id)
		return err == nil && s.State == events.SessionActive
	})
	wrote := make(chan error, 1)
	go func() { wrote <- c.Client.WriteFile(t.Context(), id, "w", 0o644, strings.NewReader("w")) }()
	var out bytes.Buffer
	fleettest.Must(t, c.Client.ReadFile(t.Context(), id, api.SessionRead{Path: "v"}, &out))
	if out.String() != "1\n" || len(wrote) > 0 {
		t.Errorf("read %q, writes ended before: %d", out.String(), len(wrote))
	}
	if got, claim := c.ran(t, planIn("c6-other"), "cat v"); got != "other\n" || claim.Source != events.SourceWarm || len(wrote) > 0 {
		t.Errorf("the other pool: got %q, started %s; writes to the silent one ended before: %d", got, claim.Source, len(wrote))
	}
	var err error
	select {
	case err = <-wrote:
	case <-time.After(3 * stallLimit): // one that was asked before may be waited for first
		t.Fatalf("a write has not ended after %v", time.Since(began))
	}
	if err == nil || !strings.Contains(err.Error(), "stalled") || strings.Contains(err.Error(), "\n") {
		t.Errorf("write: got %v, want one line with the reason", err)
	}
	c.says(t, "c6", "stalled")
}
