package pools

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// Case D1 on pools: twelve plans at once, on one worker and on three, each in a sandbox of its own.
func TestCase_D1Pool(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 3} {
		t.Run(fmt.Sprint("Workers", workers), func(t *testing.T) {
			t.Parallel()
			c := startRig(t, fleettest.Ordinary(t))
			for i := range workers {
				c.Worker(t, fmt.Sprint("w", i), "--slots", "6")
			}
			u := c.upstream(t, "d1", "echo 1 >v")
			state := bareState(t, u)
			c.pool(t, "d1", u.url(), "target_size: 3")
			c.warm(t, "d1", 3)
			const script = "test ! -e mine; git checkout -q -b new; git branch evil; git config core.hooksPath /tmp/evil; echo x >mine; git status --porcelain"
			warm, cold := c.Plan(t, planIn("d1"), script), c.Plan(t, planIn("d1")+"strategy: git_worktree", script)
			files := []string{warm, warm, warm, cold}
			ids := make([]string, 12)
			fleettest.Together(len(ids), func(i int) { ids[i] = c.Submit(t, files[i%len(files)]) })
			boxes, sources := map[string]string{}, map[string]int{}
			for _, id := range ids {
				got, claim := c.printed(t, id)
				if got != "?? mine\n" || boxes[claim.SandboxID] != "" {
					t.Errorf("plan %s printed %q in sandbox %s, which plan %q had", id, got, claim.SandboxID, boxes[claim.SandboxID])
				}
				boxes[claim.SandboxID] = id
				sources[claim.Source]++
				c.Once(t, id, 1)
			}
			if sources[events.SourceWarm] < 3 || sources[events.SourceWarm]+sources[events.SourceCold] != len(ids) {
				t.Errorf("sources %v, want at least three warm and the others cold", sources)
			}
			fleettest.Eventually(t, "its hits to be told", func() bool { return c.warm(t, "d1", 3).Hits == int64(sources[events.SourceWarm]) })
			if after := bareState(t, u); after != state {
				t.Errorf("the remote was\n%s\nand is\n%s", state, after)
			}
		})
	}
}

// Case D2 on pools: whatever a killed worker leaves of a mirror, an image or a warm sandbox, the next one serves the pool and
// nothing of it remains.
func TestCase_D2Pool(t *testing.T) {
	t.Parallel()
	c := startRig(t, fleettest.Ordinary(t))
	w := c.Worker(t, "w")
	u := c.upstream(t, "d2", "mkdir many; for i in $(seq 600); do seq $i >many/$i; done; echo 1 >v")
	state := c.Path("w")
	c.Do(t, "warmfleet", "pool", "apply", c.poolFile(t, "d2", u.url(), `max_staleness: 0s
target_size: 2
image: {setup: ["sleep 0.3; wc -l <many/600 >built"]}`))
	for _, moment := range []struct {
		name string
		is   func() bool
	}{
		{"Mirror", func() bool { return fleettest.Exists(filepath.Join(state, "worker", "repos", "mirrors")) }},
		{"Checkout", func() bool { return len(fleettest.Unfinished(t, state)) > 0 }},
		{"Build", func() bool { return c.named(t, "image", "building") > 1 }},
		{"Refill", func() bool { return c.named(t, "sandbox", "creating") > 0 }},
		{"Sync", func() bool { return c.named(t, "sandbox", "syncing") > 0 }},
		{"Warm", func() bool { p, err := c.Client.Pool(t.Context(), "d2"); return err == nil && p.Warm == 2 }},
	} {
		fleettest.Eventually(t, moment.name, moment.is)
		w.Kill(t)
		u.push(t, "echo "+moment.name+" >v")
		w = c.Worker(t, "w")
	}
	c.warm(t, "d2", 2)
	commit := u.push(t, "echo 3 >v")
	got, claim := c.ran(t, planIn("d2"), whereScript+"; cat built; git status --porcelain --untracked-files=no; git fsck --no-dangling 2>&1")
	if want := where("trunk", commit, "3") + "600\n"; got != want || claim.Source != events.SourceWarm {
		t.Errorf("got %q, started %s; want %q, warm", got, claim.Source, want)
	}
	c.warm(t, "d2", 2)
	w.Signal(t, 15)
	w.Exit(t, fleettest.Patience)
	if left := leavings(t, state); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// named counts the events of a noun and type that were stored so far.
func (c *rig) named(t testing.TB, noun, typ string) int {
	t.Helper()
	s, err := c.Fleet.JetStream.Stream(t.Context(), c.Fleet.Subjects.EventsStream())
	fleettest.Must(t, err)
	info, err := s.Info(t.Context(), jetstream.WithSubjectFilter("fleet.evt."+noun+".*."+typ))
	fleettest.Must(t, err)
	n := 0
	for _, count := range info.State.Subjects {
		n += int(count)
	}
	return n
}

// Case D3 on pools, and for checkouts of commits: a pool whose file lists where they come from has its submodules filled, without a network in the
// sandbox; else what is not filled in is named in the first event, and a recipe that fills it keeps it filled.
func TestCase_D3Pool(t *testing.T) {
	t.Parallel()
	c := startRig(t, fleettest.Ordinary(t))
	top := c.Tree(t, "d3", "git init -q -b trunk up; cd up; echo s >s; git add -A; "+fleettest.GitIdentity+"commit -qm up; cd ..\n"+fleettest.SubmoduleScript)
	repo := filepath.Join(top, "repo")
	c.Worker(t, "w", "--expose", filepath.Join(top, "up"))
	before, state := fleettest.Snapshot(t, repo), c.GitState(t, repo)
	fill := "export HOME=/tmp; git config --global safe.directory '*'; git -c protocol.file.allow=always submodule --quiet update --init"
	c.pool(t, "d3", repo, "target_size: 1")
	c.pool(t, "d3-filled", repo, "target_size: 1\nimage: {setup: ["+fleettest.Quoted(fill)+"]}")
	c.pool(t, "d3-listed", repo, "target_size: 1\nsubmodules: ["+fleettest.Quoted(filepath.Join(top, "up"))+"]")
	c.warm(t, "d3", 1)
	c.warm(t, "d3-listed", 1)
	c.warm(t, "d3-filled", 1)
	for _, tc := range []struct{ name, head, want string }{
		{"Warm", planIn("d3"), "0\n"},
		{"Filled", planIn("d3-filled"), "1\n"},
		{"Cold", planIn("d3") + "strategy: git_worktree", "0\n"},
		{"Listed", planIn("d3-listed"), "1\n"},
		{"ListedCold", planIn("d3-listed") + "strategy: git_worktree", "1\n"},
		{"Repo", "apply: never\nresource: {repo: " + fleettest.Quoted("file://"+repo) + "}", "0\n"},
		{"Checkout", "apply: never\nstrategy: git_worktree\n" + fleettest.Resource(repo), "0\n"},
		{"Copy", "apply: never\n" + fleettest.Resource(repo), "1\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, claim := c.ran(t, tc.head, "ls sub | wc -l; git status --porcelain")
			says := slices.ContainsFunc(claim.Notes, func(n string) bool { return strings.Contains(n, "submodule") })
			if got != tc.want || says == (tc.name == "Copy" || strings.HasPrefix(tc.name, "Listed")) {
				t.Errorf("printed %q, want %q; the first event's notes are %q", got, tc.want, claim.Notes)
			}
		})
	}
	fleettest.Unchanged(t, repo, before)
	if got := c.GitState(t, repo); got != state {
		t.Errorf("the repository was\n%s\nand is\n%s", state, got)
	}
}

// Case D4 on pools: a local repository's HEAD decides, on a branch or detached, its uncommitted files stay out, and a revision in
// the plan wins.
func TestCase_D4Pool(t *testing.T) {
	t.Parallel()
	c := startRig(t, fleettest.Ordinary(t))
	c.Worker(t, "w")
	top := c.Tree(t, "d4", fleettest.BranchScript+"; echo dirty >tracked; echo new >untracked")
	repo := filepath.Join(top, "repo")
	state := c.GitState(t, repo)
	c.pool(t, "d4", repo, "target_size: 1")
	look := "git symbolic-ref -q --short HEAD || echo detached; git rev-parse HEAD; cat tracked; ls"
	saw := func(head, branch, rev, tracked string) {
		t.Helper()
		c.warm(t, "d4", 1)
		commit := strings.TrimSpace(c.Sh(t, repo, "git rev-parse "+rev))
		got, claim := c.ran(t, planIn("d4")+head, look)
		if want := where(branch, commit, tracked) + "tracked\n"; got != want || claim.Commit != commit || claim.Source != events.SourceWarm {
			t.Errorf("%s %s: got %q at %s, started %s; want %q, warm", head, rev, got, claim.Commit, claim.Source, want)
		}
	}
	saw("", "feat", "feat", "2")
	saw("resource: {repo: "+fleettest.Quoted(repo)+", ref: v1}", "detached", "v1", "1")
	saw("resource: {repo: "+fleettest.Quoted(repo)+", ref: trunk}", "trunk", "trunk", "0")
	if got := c.GitState(t, repo); got != state {
		t.Errorf("the repository was\n%s\nand is\n%s", state, got)
	}
	c.Sh(t, repo, "git stash -q; git checkout -q v1")
	saw("", "detached", "v1", "1")
	id := c.Submit(t, c.Plan(t, "apply: auto\npool: d4\ncommit: {message: by plan, branch: trunk}\nidentity: {name: By, email: by@example.com}", "echo r >result"))
	c.Ended(t, id, events.StateApplied)
	if got := c.Sh(t, repo, "git log -1 --format=%s trunk; git show --name-only --format= trunk; git rev-parse --abbrev-ref HEAD"); got != "by plan\nresult\nHEAD\n" {
		t.Errorf("after a commit to trunk: %q", got)
	}
}
