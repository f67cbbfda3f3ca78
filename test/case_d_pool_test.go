package test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// Case D1 on pools: twelve plans at once, on one worker and on three, each in a sandbox of its own.
func TestCase_D1Pool(t *testing.T) {
	for _, workers := range []int{1, 3} {
		t.Run(fmt.Sprint("Workers", workers), func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, ordinary(t))
			for i := range workers {
				c.worker(t, fmt.Sprint("w", i), "--slots", "6")
			}
			u := c.upstream(t, "d1", "echo 1 >v")
			state := bareState(t, u)
			c.pool(t, "d1", u.url(), "target_size: 3")
			c.warm(t, "d1", 3)
			const script = "test ! -e mine; git checkout -q -b new; git branch evil; git config core.hooksPath /tmp/evil; echo x >mine; git status --porcelain"
			warm, cold := c.plan(t, planIn("d1"), script), c.plan(t, planIn("d1")+"strategy: git_worktree", script)
			files := []string{warm, warm, warm, cold}
			ids := make([]string, 12)
			together(len(ids), func(i int) { ids[i] = c.submit(t, files[i%len(files)]) })
			boxes, sources := map[string]string{}, map[string]int{}
			for _, id := range ids {
				got, claim := c.printed(t, id)
				if got != "?? mine\n" || boxes[claim.SandboxID] != "" {
					t.Errorf("plan %s printed %q in sandbox %s, which plan %q had", id, got, claim.SandboxID, boxes[claim.SandboxID])
				}
				boxes[claim.SandboxID] = id
				sources[claim.Source]++
				c.once(t, id, 1)
			}
			if sources[events.SourceWarm] < 3 || sources[events.SourceWarm]+sources[events.SourceCold] != len(ids) {
				t.Errorf("sources %v, want at least three warm and the others cold", sources)
			}
			eventually(t, "its hits to be told", func() bool { return c.warm(t, "d1", 3).Hits == int64(sources[events.SourceWarm]) })
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
	c := startCluster(t, ordinary(t))
	w := c.worker(t, "w")
	u := c.upstream(t, "d2", "mkdir many; for i in $(seq 600); do seq $i >many/$i; done; echo 1 >v")
	state := c.path("w")
	c.do(t, "warmfleet", "pool", "apply", c.poolFile(t, "d2", u.url(), `max_staleness: 0s
target_size: 2
image: {setup: ["sleep 0.3; wc -l <many/600 >built"]}`))
	for _, moment := range []struct {
		name string
		is   func() bool
	}{
		{"Mirror", func() bool { return exists(filepath.Join(state, "worker", "repos", "mirrors")) }},
		{"Checkout", func() bool { return len(unfinished(t, state)) > 0 }},
		{"Build", func() bool { return c.named(t, "image", "building") > 1 }},
		{"Refill", func() bool { return c.named(t, "sandbox", "creating") > 0 }},
		{"Sync", func() bool { return c.named(t, "sandbox", "syncing") > 0 }},
		{"Warm", func() bool { p, err := c.Pool(t.Context(), "d2"); return err == nil && p.Warm == 2 }},
	} {
		eventually(t, moment.name, moment.is)
		w.kill(t)
		u.push(t, "echo "+moment.name+" >v")
		w = c.worker(t, "w")
	}
	c.warm(t, "d2", 2)
	commit := u.push(t, "echo 3 >v")
	got, claim := c.ran(t, planIn("d2"), whereScript+"; cat built; git status --porcelain --untracked-files=no; git fsck --no-dangling 2>&1")
	if want := where("trunk", commit, "3") + "600\n"; got != want || claim.Source != events.SourceWarm {
		t.Errorf("got %q, started %s; want %q, warm", got, claim.Source, want)
	}
	c.warm(t, "d2", 2)
	w.signal(t, 15)
	w.exit(t, patience)
	if left := leavings(t, state); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// named counts the events of a noun and type that were stored so far.
func (c *cluster) named(t testing.TB, noun, typ string) int {
	t.Helper()
	s, err := c.fleet.JetStream.Stream(t.Context(), c.fleet.Subjects.EventsStream())
	must(t, err)
	info, err := s.Info(t.Context(), jetstream.WithSubjectFilter("fleet.evt."+noun+".*."+typ))
	must(t, err)
	n := 0
	for _, count := range info.State.Subjects {
		n += int(count)
	}
	return n
}

// Case D3 on pools, and for checkouts of commits: what is not filled in is named in the first event, and a recipe that fills it keeps it filled.
func TestCase_D3Pool(t *testing.T) {
	t.Parallel()
	c := startCluster(t, ordinary(t))
	top := c.tree(t, "d3", "git init -q -b trunk up; cd up; echo s >s; git add -A; "+gitIdentity+"commit -qm up; cd ..\n"+d3Script)
	repo := filepath.Join(top, "repo")
	c.worker(t, "w", "--expose", filepath.Join(top, "up"))
	before, state := snapshot(t, repo), gitState(t, c.place, repo)
	fill := "export HOME=/tmp; git config --global safe.directory '*'; git -c protocol.file.allow=always submodule --quiet update --init"
	c.pool(t, "d3", repo, "target_size: 1")
	c.pool(t, "d3-filled", repo, "target_size: 1\nimage: {setup: ["+quoted(fill)+"]}")
	c.warm(t, "d3", 1)
	c.warm(t, "d3-filled", 1)
	for _, tc := range []struct{ name, head, want string }{
		{"Warm", planIn("d3"), "0\n"},
		{"Filled", planIn("d3-filled"), "1\n"},
		{"Cold", planIn("d3") + "strategy: git_worktree", "0\n"},
		{"Repo", "apply: never\nresource: {repo: " + quoted("file://"+repo) + "}", "0\n"},
		{"Checkout", "apply: never\nstrategy: git_worktree\n" + resource(repo), "0\n"},
		{"Copy", "apply: never\n" + resource(repo), "1\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, claim := c.ran(t, tc.head, "ls sub | wc -l; git status --porcelain")
			says := slices.ContainsFunc(claim.Notes, func(n string) bool { return strings.Contains(n, "submodule") })
			if got != tc.want || says == (tc.name == "Copy") {
				t.Errorf("printed %q, want %q; the first event's notes are %q", got, tc.want, claim.Notes)
			}
		})
	}
	unchanged(t, repo, before)
	if got := gitState(t, c.place, repo); got != state {
		t.Errorf("the repository was\n%s\nand is\n%s", state, got)
	}
}

// Case D4 on pools: a local repository's HEAD decides, on a branch or detached, its uncommitted files stay out, and a revision in
// the plan wins.
func TestCase_D4Pool(t *testing.T) {
	t.Parallel()
	c := startCluster(t, ordinary(t))
	c.worker(t, "w")
	top := c.tree(t, "d4", d4Script+"; echo dirty >tracked; echo new >untracked")
	repo := filepath.Join(top, "repo")
	state := gitState(t, c.place, repo)
	c.pool(t, "d4", repo, "target_size: 1")
	look := "git symbolic-ref -q --short HEAD || echo detached; git rev-parse HEAD; cat tracked; ls"
	saw := func(head, branch, rev, tracked string) {
		t.Helper()
		c.warm(t, "d4", 1)
		commit := strings.TrimSpace(c.sh(t, repo, "git rev-parse "+rev))
		got, claim := c.ran(t, planIn("d4")+head, look)
		if want := where(branch, commit, tracked) + "tracked\n"; got != want || claim.Commit != commit || claim.Source != events.SourceWarm {
			t.Errorf("%s %s: got %q at %s, started %s; want %q, warm", head, rev, got, claim.Commit, claim.Source, want)
		}
	}
	saw("", "feat", "feat", "2")
	saw("resource: {repo: "+quoted(repo)+", ref: v1}", "detached", "v1", "1")
	saw("resource: {repo: "+quoted(repo)+", ref: trunk}", "trunk", "trunk", "0")
	if got := gitState(t, c.place, repo); got != state {
		t.Errorf("the repository was\n%s\nand is\n%s", state, got)
	}
	c.sh(t, repo, "git stash -q; git checkout -q v1")
	saw("", "detached", "v1", "1")
	id := c.submit(t, c.plan(t, "apply: auto\npool: d4\ncommit: {message: by plan, branch: trunk}", "echo r >result"))
	c.ended(t, id, events.StateApplied)
	if got := c.sh(t, repo, "git log -1 --format=%s trunk; git show --name-only --format= trunk; git rev-parse --abbrev-ref HEAD"); got != "by plan\nresult\nHEAD\n" {
		t.Errorf("after a commit to trunk: %q", got)
	}
}
