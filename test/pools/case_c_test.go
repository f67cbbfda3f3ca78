package pools

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// whereScript shows where a sandbox is: branch, commit, and a file that each commit changes.
const whereScript = "git symbolic-ref -q --short HEAD || echo detached; git rev-parse HEAD; cat v"

func where(branch, commit, v string) string { return branch + "\n" + commit + "\n" + v + "\n" }

// Case C1. The default branch is what the remote says at each sync, whatever it is called, was called, or others guess.
func TestCase_C1(t *testing.T) {
	t.Parallel()
	c := startRig(t, fleettest.Ordinary(t))
	c.Worker(t, "w")
	names := []string{"trunk", "release/1.x", "master"}
	ups := make([]*upstream, len(names))
	for i, name := range names {
		ups[i] = c.upstream(t, fmt.Sprint("c1-", i), "echo 1 >v")
		stale := "main"
		ups[i].Sh(t, ups[i].work, "git branch "+stale+"; git push -q origin "+stale)
		if name != "trunk" {
			ups[i].Sh(t, ups[i].work, "git checkout -q -b "+name+"; git push -q origin HEAD; git -C ../r.git symbolic-ref HEAD refs/heads/"+name+"; git push -q origin :trunk")
		}
		c.pool(t, fmt.Sprint("c1-", i), ups[i].url(), "target_size: 1")
	}
	for i, name := range names {
		pool, u := fmt.Sprint("c1-", i), ups[i]
		c.warm(t, pool, 1)
		commit := u.push(t, "echo 2 >v")
		got, claim := c.ran(t, planIn(pool), whereScript)
		if want := where(name, commit, "2"); got != want || claim.Source != events.SourceWarm || claim.Commit != commit {
			t.Errorf("%s: got %q, started %s at %s; want %q, warm", name, got, claim.Source, claim.Commit, want)
		}
		c.warm(t, pool, 1)
		next := fmt.Sprint("renamed/", i)
		u.Sh(t, u.work, "git checkout -q -b "+next+"; git push -q origin HEAD; git -C ../r.git symbolic-ref HEAD refs/heads/"+next+"; git push -q origin :"+name)
		commit = u.push(t, "echo 3 >v")
		got, claim = c.ran(t, planIn(pool), whereScript+"; git for-each-ref --format='%(refname)' refs/heads refs/remotes")
		want := where(next, commit, "3") + "refs/heads/" + next + "\nrefs/remotes/origin/HEAD\nrefs/remotes/origin/main\nrefs/remotes/origin/" + next + "\n"
		if got != want || claim.Source != events.SourceWarm {
			t.Errorf("%s renamed: got %q, started %s; want %q, warm", name, got, claim.Source, want)
		}
	}
	t.Run("Unknowable", func(t *testing.T) {
		u := ups[0]
		u.Sh(t, u.bare, "git symbolic-ref HEAD refs/heads/none")
		_, text := c.failed(t, c.Submit(t, c.Plan(t, planIn("c1-0"), "true")))
		if !strings.Contains(text, u.bare) {
			t.Errorf("error %q does not name the remote", text)
		}
	})
	t.Run("RemoteNotCalledOrigin", func(t *testing.T) { otherRemoteName(t, c) })
}

// otherRemoteName: nothing depends on what a user calls the remote of a local repository.
func otherRemoteName(t *testing.T, c *rig) {
	u := c.upstream(t, "c1-other", "echo 1 >v")
	u.Sh(t, u.work, "git checkout -q -b feat; git remote rename origin upstream 2>/dev/null; echo 2 >v; git add -A; "+fleettest.GitIdentity+"commit -qm two")
	commit, state := strings.TrimSpace(u.Sh(t, u.work, "git rev-parse HEAD")), c.GitState(t, u.work)
	for _, strategy := range []string{"copy_on_write", "git_worktree"} {
		got, _ := c.ran(t, "apply: never\nstrategy: "+strategy+"\n"+fleettest.Resource(u.work), "git rev-parse HEAD; cat v")
		if want := commit + "\n2\n"; got != want {
			t.Errorf("%s: got %q, want %q", strategy, got, want)
		}
	}
	c.pool(t, "c1-other", u.work, "target_size: 1")
	c.warm(t, "c1-other", 1)
	if got, claim := c.ran(t, planIn("c1-other"), whereScript); got != where("feat", commit, "2") || claim.Source != events.SourceWarm {
		t.Errorf("pool: got %q, started %s", got, claim.Source)
	}
	if after := c.GitState(t, u.work); after != state {
		t.Errorf("the repository was\n%s\nand is\n%s", state, after)
	}
}

// Case C2. A branch becomes a directory of branches, and back: who waits gets the new one, the others do not notice.
func TestCase_C2(t *testing.T) {
	t.Parallel()
	c := startRig(t, fleettest.Ordinary(t))
	c.Worker(t, "w")
	u := c.upstream(t, "c2", "echo trunk >v")
	trunk := strings.TrimSpace(u.Sh(t, u.work, "git rev-parse HEAD; git checkout -q -b rel"))
	u.push(t, "echo rel >v")
	c.pool(t, "c2", u.url(), "target_size: 1")
	c.Do(t, "warmfleet", "pool", "apply", c.ofRef(t, "c2-rel", u.url(), "rel"))
	c.warm(t, "c2", 1)
	c.warm(t, "c2-rel", 1)
	on := func(ref, commit, v string) {
		t.Helper()
		got, claim := c.ran(t, planIn("c2")+"resource: {repo: "+fleettest.Quoted(u.url())+", ref: "+ref+"}", whereScript)
		if want := where(ref, commit, v); got != want || claim.Source != events.SourceWarm {
			t.Errorf("plan on %s: got %q, started %s; want %q, warm", ref, got, claim.Source, want)
		}
		c.warm(t, "c2", 1)
		if got, _ := c.ran(t, planIn("c2"), whereScript); got != where("trunk", trunk, "trunk") {
			t.Errorf("plan on the default branch: got %q", got)
		}
		c.warm(t, "c2", 1)
	}
	u.Sh(t, u.work, "git push -q origin :rel; git checkout -q --detach; git branch -D -q rel; git checkout -q -b rel/one")
	on("rel/one", u.push(t, "echo one >v"), "one")
	if _, text := c.failed(t, c.Submit(t, c.Plan(t, planIn("c2-rel"), "true"))); !strings.Contains(text, "rel") || !strings.Contains(text, "no longer available") {
		t.Errorf("plan on the branch that is gone: %q", text)
	}
	c.says(t, "c2-rel", "no longer available")
	u.Sh(t, u.work, "git push -q origin :rel/one; git checkout -q --detach; git branch -D -q rel/one; git checkout -q -b rel")
	commit := u.push(t, "echo back >v")
	on("rel", commit, "back")
	if got, _ := c.ran(t, planIn("c2-rel"), whereScript); got != where("rel", commit, "back") {
		t.Errorf("plan on the branch that is back: got %q", got)
	}
}

// ofRef writes the file of a pool of one sandbox that follows a ref.
func (c *rig) ofRef(t testing.TB, name, repo, ref string) string {
	t.Helper()
	file := c.poolFile(t, name, repo, "target_size: 1\nmax_staleness: 0s")
	c.Write(t, file, strings.Replace(fleettest.Read(t, file), "}", ", ref: "+fleettest.Quoted(ref)+"}", 1))
	return file
}

// Case C3. A tag that moves blocks nothing and moves in sandboxes too; those of a user's own repository stay.
func TestCase_C3(t *testing.T) {
	t.Parallel()
	c := startRig(t, fleettest.Ordinary(t))
	c.Worker(t, "w")
	u := c.upstream(t, "c3", "echo 1 >v")
	u.Sh(t, u.work, "git tag -f nightly; "+fleettest.GitIdentity+"tag -a -m annotated weekly; git tag gone; git push -q --tags")
	own := filepath.Join(filepath.Dir(u.bare), "own")
	u.Sh(t, filepath.Dir(u.bare), "git clone -q r.git own; cd own; echo own >own; git add -A; "+fleettest.GitIdentity+"commit -qm own; git tag -f nightly; git tag mine")
	c.pool(t, "c3", u.url(), "target_size: 1")
	c.pool(t, "c3-own", own, "target_size: 1")
	c.warm(t, "c3", 1)
	c.warm(t, "c3-own", 1)
	commit := u.push(t, "echo 2 >v")
	u.Sh(t, u.work, "git tag -f nightly; "+fleettest.GitIdentity+"tag -f -a -m again weekly; git tag -d gone; git push -qf --tags; git push -q origin :gone")
	tags := "; git rev-parse nightly 'weekly^{commit}'; git tag -l gone mine"
	got, claim := c.ran(t, planIn("c3"), whereScript+tags)
	if want := where("trunk", commit, "2") + commit + "\n" + commit + "\n"; got != want || claim.Source != events.SourceWarm {
		t.Errorf("got %q, started %s; want %q, warm", got, claim.Source, want)
	}
	mine := strings.TrimSpace(u.Sh(t, own, "git rev-parse HEAD"))
	u.Sh(t, own, "git fetch -q origin") // the branch moves; the tags stay as they are
	state := c.GitState(t, own)
	for _, head := range []string{planIn("c3-own"), "apply: never\nstrategy: git_worktree\n" + fleettest.Resource(own), "apply: auto\nstrategy: none\n" + fleettest.Resource(own)} {
		id := c.Submit(t, c.Plan(t, head, "git rev-parse HEAD; git rev-parse -q --verify nightly || git rev-parse HEAD")) // a checkout has no tags
		c.Ends(t, id)
		if got, want := c.Do(t, "warmfleet", "plan", "logs", id), mine+"\n"+mine+"\n"; got != want {
			t.Errorf("%q: got %q, want %q", head, got, want)
		}
	}
	if after := c.GitState(t, own); after != state {
		t.Errorf("the user's repository was\n%s\nand is\n%s", state, after)
	}
}
