package plans

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// d2Script makes a repository with worktrees of its user's: one in use, one locked, and one whose directory is gone.
const d2Script = `
git init -q -b trunk repo; cd repo; mkdir -p many; for i in $(seq 600); do seq $i >many/$i; done; git add -A; ` + fleettest.GitIdentity + `commit -qm one
for n in used locked gone; do git worktree add -q ../$n -b $n; done
git worktree lock --reason mine ../locked; rm -r ../gone ../locked
git clone -q --bare . ../up.git`

// Case D2. What a killed worker leaves of a clone, a checkout, a copy or their removal blocks nothing, and nothing of the user's
// goes with it.
func TestCase_D2(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	w := c.Worker(t, "w")
	top := c.Tree(t, "d2", d2Script)
	repo := filepath.Join(top, "repo")
	before, state := fleettest.Snapshot(t, repo), c.GitState(t, repo)
	kinds := []string{
		"strategy: git_worktree\n" + fleettest.Resource(repo), "strategy: copy_on_write\n" + fleettest.Resource(repo),
		"strategy: git_worktree\nresource: {repo: " + fleettest.Quoted("file://"+filepath.Join(top, "up.git")) + "}",
	}
	plan := func(head string) string {
		return c.PlanOf(t, "max_attempts: 20\napply: never\n"+head,
			`{id: one, checkpoint: true, run: "git checkout -q -b mine; echo x >x"}`, `{id: two, checkpoint: true, run: "wc -l <many/600; git worktree list | wc -l"}`)
	}
	var ids []string
	for i, point := range killPoints() {
		var id string
		id, w = killedAt(t, c, point, w, plan(kinds[i%len(kinds)]))
		ids = append(ids, id)
	}
	for _, kind := range kinds {
		ids = append(ids, c.Submit(t, plan(kind)))
	}
	endedWell(t, c, ids)
	for _, id := range ids[len(ids)-len(kinds):] {
		if got := c.Do(t, "warmfleet", "plan", "logs", id, "--step", "two"); !strings.HasPrefix(got, "600\n") {
			t.Errorf("plan %s printed %q", id, got)
		}
	}
	fleettest.Unchanged(t, repo, before)
	if got := c.GitState(t, repo); got != state {
		t.Errorf("the repository was\n%s\nand is\n%s", state, got)
	}
	fleettest.Eventually(t, "what was under way to be swept", func() bool { return len(fleettest.Unfinished(t, c.Path("w"))) == 0 })
}

// Case D3. Checkouts with submodules are removed like all others, and the user's own are left alone. A step fills them from
// where they come from; the work tree begins without.
func TestCase_D3(t *testing.T) {
	t.Parallel()
	for _, a := range fleettest.Accounts(t) {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			filledSubmodules(t, fleettest.StartCluster(t, a))
		})
	}
}

func filledSubmodules(t *testing.T, c *fleettest.Cluster) {
	top := c.Tree(t, "d3", "git init -q -b trunk up; cd up; echo s >s; git add -A; "+fleettest.GitIdentity+"commit -qm up; cd ..\n"+fleettest.SubmoduleScript)
	repo := filepath.Join(top, "repo")
	before, state := fleettest.Snapshot(t, repo), c.GitState(t, repo)
	c.Worker(t, "w", "--expose", filepath.Join(top, "up"))
	head := "strategy: git_worktree\napply: never\n" + fleettest.Resource(repo)
	fill := "git config --global safe.directory '*'; git -c protocol.file.allow=always submodule --quiet update --init; cat sub/s; git submodule status; echo x >f"
	var ids []string
	for i := range 5 {
		ids = append(ids, c.Submit(t, c.Plan(t, head, fill, fmt.Sprintf("[ %d != 4 ] || until [ -e /never ]; do sleep 0.05; done", i))))
	}
	c.Until(t, ids[4], "second step", fleettest.All(fleettest.IsType(events.TypeStepStarted), fleettest.OfStep("step-2")))
	c.Do(t, "warmfleet", "plan", "cancel", ids[4])
	c.Ended(t, ids[4], events.StateCancelled)
	for _, id := range ids[:4] {
		c.Ended(t, id, events.StateExecuted)
		if got := c.Do(t, "warmfleet", "plan", "logs", id, "--step", "step-1"); !strings.HasPrefix(got, "s\n ") {
			t.Errorf("the submodule in the sandbox: %q", got)
		}
	}
	fleettest.Unchanged(t, repo, before)
	if got := c.GitState(t, repo); got != state {
		t.Errorf("the repository was\n%s\nand is\n%s", state, got)
	}
	fleettest.Eventually(t, "all sandboxes to be removed", func() bool { return len(c.LeftViews(t, "w")) == 0 })
}
