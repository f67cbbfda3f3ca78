package test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// gitState is what a plan must never change of a repository: refs, worktrees, configuration,
// hooks, stash and index.
func gitState(t testing.TB, p *place, dir string) string {
	t.Helper()
	return p.sh(t, dir, `
export GIT_OPTIONAL_LOCKS=0
git for-each-ref; git symbolic-ref -q HEAD || git rev-parse HEAD; git worktree list --porcelain; git stash list
sha256sum <"$(git rev-parse --git-dir)/index"; sha256sum <"$(git rev-parse --git-common-dir)/config"
ls "$(git rev-parse --git-common-dir)/hooks" "$(git rev-parse --git-common-dir)"; git diff --cached`)
}

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
	c := startCluster(t, ordinary(t))
	for i := range workers {
		c.worker(t, fmt.Sprint("w", i), "--slots", "6")
	}
	top := c.tree(t, "d1", "git init -q -b trunk up; cd up;"+sampleScript+"git add -A;"+gitIdentity+"commit -qm one; cd ..; git clone -q up repo")
	repo := filepath.Join(top, "repo")
	before := gitState(t, c.place, repo)
	file := c.plan(t, "strategy: git_worktree\napply: never\n"+resource(repo), "git checkout -q -b new; git branch evil; git config core.hooksPath /tmp/evil; echo x >mine; git status --porcelain")
	if locked {
		c.write(t, filepath.Join(repo, ".git", "config.lock"), "")
	}
	ids := make([]string, 12)
	together(len(ids), func(i int) { ids[i] = c.submit(t, file) })
	for i, id := range ids {
		c.ended(t, id, events.StateExecuted)
		if got := c.do(t, "warmfleet", "plan", "logs", id); got != "?? mine\n" {
			t.Errorf("plan %d printed %q", i, got)
		}
		c.once(t, id, 1)
	}
	if locked {
		must(t, os.Remove(filepath.Join(repo, ".git", "config.lock")))
	}
	if after := gitState(t, c.place, repo); after != before {
		t.Errorf("the repository was\n%s\nand is\n%s", before, after)
	}
}

// together calls do for 0 to n-1 at once and waits for all.
func together(n int, do func(int)) {
	done := make(chan struct{})
	for i := range n {
		go func() {
			defer func() { done <- struct{}{} }()
			do(i)
		}()
	}
	for range n {
		<-done
	}
}

const d4Script = `
git init -q -b trunk up; cd up; echo 0 >tracked; git add -A; ` + gitIdentity + `commit -qm base; cd ..
git clone -q up repo; cd repo; git checkout -q -b feat
for i in 1 2; do echo $i >tracked; ` + gitIdentity + `commit -qam feat$i; done
git tag v1 HEAD~1`

// The rule: none and copy_on_write see the directory as it is; git_worktree sees HEAD's commit
// and nothing uncommitted. The first event says which.
func TestCase_D4(t *testing.T) {
	eachAccount(t, func(t *testing.T, c *cluster) {
		for _, head := range []string{"feat", "v1"} {
			for _, strategy := range strategies {
				t.Run(head+"/"+strategy, func(t *testing.T) {
					top := c.tree(t, "d4-"+head+"-"+strategy, d4Script)
					repo := filepath.Join(top, "repo")
					c.sh(t, repo, "git checkout -q "+head+"; echo dirty >tracked; echo new >untracked")
					basedOn(t, c, repo, strategy, head)
				})
			}
		}
		t.Run("ExplicitRevision", func(t *testing.T) { explicitRevision(t, c) })
	})
}

func basedOn(t *testing.T, c *cluster, repo, strategy, head string) {
	commit := strings.TrimSpace(c.sh(t, repo, "git rev-parse HEAD"))
	state := gitState(t, c.place, repo)
	file := c.plan(t, "apply: auto\nstrategy: "+strategy,
		"git rev-parse HEAD; git symbolic-ref -q --short HEAD || echo detached; cat tracked; cat untracked 2>/dev/null || echo absent; echo result >result")
	v := c.warmfleet(t, "run", file, "--path", repo, "-o", "json").exits(t, 0).view(t)
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
	got := c.do(t, "warmfleet", "plan", "logs", v.ID)
	want := strings.Join([]string{commit, branch, tracked, untracked, ""}, "\n")
	if strategy == "git_worktree" {
		// A checkout has a branch of its own, whatever the original stands on.
		got, want = dropLine(got, 1), dropLine(want, 1)
	}
	if got != want {
		t.Errorf("the steps saw\n%s\nwant\n%s", got, want)
	}
	claimed := c.until(t, v.ID, "claimed", isType(events.TypeClaimed))
	if claimed.Data.Commit != commit {
		t.Errorf("the first event names commit %q, want %q", claimed.Data.Commit, commit)
	}
	if !slices.ContainsFunc(claimed.Data.Notes, func(n string) bool { return strings.Contains(n, note) }) {
		t.Errorf("the first event's notes %q do not say %q", claimed.Data.Notes, note)
	}
	if got := read(t, repo, "result") + read(t, repo, "tracked") + read(t, repo, "untracked"); got != "result\ndirty\nnew\n" {
		t.Errorf("result, tracked and untracked in the original: got %q", got)
	}
	if after := gitState(t, c.place, repo); after != state {
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
func explicitRevision(t *testing.T, c *cluster) {
	top := c.tree(t, "d4-ref", d4Script)
	repo := filepath.Join(top, "repo")
	file := c.plan(t, "apply: never\nresource: {path: "+quoted(repo)+", ref: v1}", "true")
	r := c.warmfleet(t, "submit", file).exits(t, 2)
	if !strings.Contains(r.stderr, "resource.ref") || !strings.Contains(r.stderr, ":4:") {
		t.Errorf("refusal %q names neither the field nor its line", r.stderr)
	}
	file = c.plan(t, "apply: never", "git rev-parse HEAD; cat tracked")
	v := c.warmfleet(t, "run", file, "--repo", "file://"+repo, "--ref", "v1", "-o", "json").exits(t, 0).view(t)
	got, want := c.do(t, "warmfleet", "plan", "logs", v.ID), c.sh(t, repo, "git rev-parse v1; echo 1")
	if got != want {
		t.Errorf("the steps saw %q, want %q", got, want)
	}
	commit, _, _ := strings.Cut(want, "\n")
	if e := c.until(t, v.ID, "claimed", isType(events.TypeClaimed)); e.Data.Commit != commit {
		t.Errorf("the first event names commit %q, want %q", e.Data.Commit, commit)
	}
}
