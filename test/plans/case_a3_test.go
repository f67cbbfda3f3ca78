package plans

import (
	"path/filepath"
	"testing"

	"github.com/warmfleet/warmfleet/test/fleettest"
)

// nestedScript makes a repository with a submodule, an inner repository of its own history and one without any commit.
const nestedScript = `
git init -q -b trunk sub; cd sub; echo s >s; git add -A; ` + fleettest.GitIdentity + `commit -qm sub; cd ..
git init -q -b trunk repo; cd repo; echo v1 >f; git -c protocol.file.allow=always submodule --quiet add ../sub sub
git add -A; ` + fleettest.GitIdentity + `commit -qm one
git init -q -b trunk inner; cd inner; echo i >i; git add -A; ` + fleettest.GitIdentity + `commit -qm inner; echo dirty >i; echo new >untracked; cd ..
git init -q -b trunk unborn; echo u >unborn/f; mkdir -p deep/unborn; git init -q deep/unborn`

// nestedState is what people see of the repositories.
const nestedState = `
export GIT_OPTIONAL_LOCKS=0
for r in . sub inner unborn deep/unborn; do echo "== $r"; git -C $r status --porcelain; git -C $r log --format=%s 2>/dev/null || echo unborn; done
find . -name '.git*' | LC_ALL=C sort`

// Case A3. Inner repositories are files like any other: nothing is renamed aside, so no kill leaves one broken.
func TestCase_A3(t *testing.T) {
	t.Parallel()
	fleettest.EachAccount(t, func(t *testing.T, c *fleettest.Cluster) {
		for _, strategy := range fleettest.Strategies() {
			t.Run(strategy, func(t *testing.T) { unbornComesBack(t, c, strategy) })
		}
	})
	t.Run("Killed", func(t *testing.T) {
		t.Parallel()
		killedAmongNested(t, fleettest.StartCluster(t, fleettest.Ordinary(t)))
	})
}

func unbornComesBack(t *testing.T, c *fleettest.Cluster, strategy string) {
	repo := filepath.Join(c.Tree(t, "a3-"+strategy, nestedScript), "repo")
	before, state := fleettest.Snapshot(t, repo), c.Sh(t, repo, nestedState)
	ensure := `[ -e unborn/f ] || { git init -q unborn; echo u >unborn/f; }; git -C unborn status --porcelain; echo 2 >g`
	file := c.PlanOf(t, "strategy: "+strategy+"\n"+applyFor(strategy), "{id: ensure, checkpoint: true, run: "+fleettest.Quoted(ensure)+"}",
		twice(`echo changed >unborn/f; git -C unborn add f; rm -rf inner; [ ! -e sub/s ] || echo changed >sub/s`))
	v := c.Warmfleet(t, "run", file, "--path", repo, "-o", "json").Exits(t, 3).View(t)
	tries := listings(t, c, v.ID)
	if tries[0] != tries[1] {
		t.Errorf("the second try began with\n%s\nthe first with\n%s", tries[1], tries[0])
	}
	fleettest.Unchanged(t, repo, before)
	exported := c.Export(t, stepCheckpoint(t, v))
	if got := c.Sh(t, exported, listScript+"list"); got != tries[0] {
		t.Errorf("exported checkpoint\n%s\nthe tree it was taken of\n%s", got, tries[0])
	}
	if got := c.Sh(t, repo, nestedState); got != state {
		t.Errorf("the repositories were\n%s\nand are\n%s", state, got)
	}
}

func killedAmongNested(t *testing.T, c *fleettest.Cluster) {
	w := c.Worker(t, "killed")
	var ids, repos []string
	state := ""
	for i, point := range killPoints()[1:] {
		strategy := fleettest.Strategies()[i%len(fleettest.Strategies())]
		repo := filepath.Join(c.Tree(t, "a3-killed-"+point.name, nestedScript), "repo")
		state = c.Sh(t, repo, nestedState)
		file := c.PlanOf(t, "max_attempts: 20\nstrategy: "+strategy+"\n"+applyFor(strategy)+"\n"+fleettest.Resource(repo),
			`{id: one, checkpoint: true, run: "echo x >sub-x; rm sub-x"}`, `{id: two, checkpoint: true, run: "git status >/dev/null; echo y >f; echo v1 >f"}`)
		var id string
		id, w = killedAt(t, c, point, w, file)
		ids, repos = append(ids, id), append(repos, repo)
	}
	endedWell(t, c, ids)
	for i, repo := range repos {
		c.Sh(t, repo, "git submodule status >/dev/null; git fsck; git -C inner fsck; git -C sub fsck")
		if got := c.Sh(t, repo, nestedState); got != state {
			t.Errorf("%s: the repositories were\n%s\nand are\n%s", killPoints()[i+1].name, state, got)
		}
	}
}
