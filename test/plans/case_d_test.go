package plans

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

func TestCase_D1(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 3} {
		for _, locked := range []bool{false, true} {
			t.Run(fmt.Sprintf("Workers%d/ConfigLocked%v", workers, locked), func(t *testing.T) {
				manyWorktrees(t, workers, locked)
			})
		}
	}
}

// manyWorktrees starts 12 plans at once on one repository.
func manyWorktrees(t *testing.T, workers int, locked bool) {
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	for i := range workers {
		c.Worker(t, fmt.Sprint("w", i), "--slots", "6")
	}
	top := c.Tree(t, "d1", "git init -q -b trunk up; cd up;"+fleettest.SampleScript+"git add -A;"+fleettest.GitIdentity+"commit -qm one; cd ..; git clone -q up repo")
	repo := filepath.Join(top, "repo")
	before := c.GitState(t, repo)
	file := c.Plan(t, "strategy: git_worktree\napply: never\n"+fleettest.Resource(repo), "git checkout -q -b new; git branch evil; git config core.hooksPath /tmp/evil; echo x >mine; git status --porcelain")
	if locked {
		c.Write(t, filepath.Join(repo, ".git", "config.lock"), "")
	}
	ids := make([]string, 12)
	fleettest.Together(len(ids), func(i int) { ids[i] = c.Submit(t, file) })
	for i, id := range ids {
		c.Ended(t, id, events.StateExecuted)
		if got := c.Do(t, "warmfleet", "plan", "logs", id); got != "?? mine\n" {
			t.Errorf("plan %d printed %q", i, got)
		}
		c.Once(t, id, 1)
	}
	if locked {
		fleettest.Must(t, os.Remove(filepath.Join(repo, ".git", "config.lock")))
	}
	if after := c.GitState(t, repo); after != before {
		t.Errorf("the repository was\n%s\nand is\n%s", before, after)
	}
}

// The rule: none and copy_on_write see the directory as it is; git_worktree sees HEAD's commit
// and nothing uncommitted. The first event says which.
func TestCase_D4(t *testing.T) {
	t.Parallel()
	fleettest.EachAccount(t, func(t *testing.T, c *fleettest.Cluster) {
		for _, head := range []string{"feat", "v1"} {
			for _, strategy := range fleettest.Strategies() {
				t.Run(head+"/"+strategy, func(t *testing.T) {
					top := c.Tree(t, "d4-"+head+"-"+strategy, fleettest.BranchScript)
					repo := filepath.Join(top, "repo")
					c.Sh(t, repo, "git checkout -q "+head+"; echo dirty >tracked; echo new >untracked")
					basedOn(t, c, repo, strategy, head)
				})
			}
		}
		t.Run("ExplicitRevision", func(t *testing.T) { explicitRevision(t, c) })
	})
}

func basedOn(t *testing.T, c *fleettest.Cluster, repo, strategy, head string) {
	commit := strings.TrimSpace(c.Sh(t, repo, "git rev-parse HEAD"))
	state := c.GitState(t, repo)
	file := c.Plan(t, "apply: auto\nstrategy: "+strategy,
		"git rev-parse HEAD; git symbolic-ref -q --short HEAD || echo detached; cat tracked; cat untracked 2>/dev/null || echo absent; echo result >result")
	v := c.Warmfleet(t, "run", file, "--path", repo, "-o", "json").Exits(t, 0).View(t)
	branch, tracked, untracked, note := head, "dirty", "new", "uncommitted and untracked files included"
	if head == "v1" {
		branch = "detached"
	}
	switch strategy {
	case "git_worktree":
		tracked, untracked, note = map[string]string{"feat": "2", "v1": "1"}[head], "absent", "uncommitted and untracked files are not"
	case "none":
		note = "in place"
	}
	got := c.Do(t, "warmfleet", "plan", "logs", v.ID)
	want := strings.Join([]string{commit, branch, tracked, untracked, ""}, "\n")
	if strategy == "git_worktree" {
		// A checkout has a branch of its own, whatever the original stands on.
		got, want = dropLine(got, 1), dropLine(want, 1)
	}
	if got != want {
		t.Errorf("the steps saw\n%s\nwant\n%s", got, want)
	}
	claimed := c.Until(t, v.ID, "claimed", fleettest.IsType(events.TypeClaimed))
	if claimed.Data.Commit != commit {
		t.Errorf("the first event names commit %q, want %q", claimed.Data.Commit, commit)
	}
	if !slices.ContainsFunc(claimed.Data.Notes, func(n string) bool { return strings.Contains(n, note) }) {
		t.Errorf("the first event's notes %q do not say %q", claimed.Data.Notes, note)
	}
	if got := fleettest.Read(t, repo, "result") + fleettest.Read(t, repo, "tracked") + fleettest.Read(t, repo, "untracked"); got != "result\ndirty\nnew\n" {
		t.Errorf("result, tracked and untracked in the original: got %q", got)
	}
	if after := c.GitState(t, repo); after != state {
		t.Errorf("the repository was\n%s\nand is\n%s", state, after)
	}
}

func dropLine(text string, i int) string {
	lines := strings.Split(text, "\n")
	if i < len(lines) {
		lines = slices.Delete(lines, i, i+1)
	}
	return strings.Join(lines, "\n")
}

// explicitRevision: a path is used as it stands, so a revision beside it is refused; of a
// repository it decides.
func explicitRevision(t *testing.T, c *fleettest.Cluster) {
	top := c.Tree(t, "d4-ref", fleettest.BranchScript)
	repo := filepath.Join(top, "repo")
	file := c.Plan(t, "apply: never\nresource: {path: "+fleettest.Quoted(repo)+", ref: v1}", "true")
	r := c.Warmfleet(t, "submit", file).Exits(t, 2)
	if !strings.Contains(r.Stderr, "resource.ref") || !strings.Contains(r.Stderr, ":4:") {
		t.Errorf("refusal %q names neither the field nor its line", r.Stderr)
	}
	file = c.Plan(t, "apply: never", "git rev-parse HEAD; cat tracked")
	v := c.Warmfleet(t, "run", file, "--repo", "file://"+repo, "--ref", "v1", "-o", "json").Exits(t, 0).View(t)
	got, want := c.Do(t, "warmfleet", "plan", "logs", v.ID), c.Sh(t, repo, "git rev-parse v1; echo 1")
	if got != want {
		t.Errorf("the steps saw %q, want %q", got, want)
	}
	commit, _, _ := strings.Cut(want, "\n")
	if e := c.Until(t, v.ID, "claimed", fleettest.IsType(events.TypeClaimed)); e.Data.Commit != commit {
		t.Errorf("the first event names commit %q, want %q", e.Data.Commit, commit)
	}
}
