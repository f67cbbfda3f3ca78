package applies

import (
	"fmt"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/layer/layertest"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// byPlan makes a plan commit on trunk; byNobody does not say who the commit is by.
const (
	byNobody = "commit: {message: by plan, branch: trunk}\n"
	byPlan   = byNobody + somebody
	somebody = "identity: {name: By, email: by@example.com}\n"
)

// commitState is what a plan that commits elsewhere, or not at all, must not change: also HEAD and what is staged.
func commitState(t testing.TB, p *fleettest.Place, dir string) string {
	t.Helper()
	return p.GitState(t, dir) + p.Sh(t, dir, "export GIT_OPTIONAL_LOCKS=0; git status --porcelain --ignored; git ls-files -s --debug | grep -v flags")
}

// settled waits until a worker is done with an original: it removes its journal after the plan's last event.
func settled(t testing.TB, dir string) {
	t.Helper()
	fleettest.Eventually(t, "the journal to go", func() bool { return !fleettest.Exists(filepath.Join(dir, layer.JournalDir)) })
}

// saneRepo fails the test if git, or who comes next, would not like what is left.
func saneRepo(t testing.TB, p *fleettest.Place, dir string) {
	t.Helper()
	settled(t, dir)
	if got := p.Sh(t, dir, `git fsck --no-dangling 2>&1; ls "$(git rev-parse --git-dir)"/*.lock .warmfleet-apply 2>/dev/null || true`); got != "" {
		t.Errorf("left in the repository: %s", got)
	}
}

func TestCase_E1Commit(t *testing.T) {
	t.Parallel()
	fleettest.EachAccount(t, func(t *testing.T, c *fleettest.Cluster) {
		for _, strategy := range copying {
			for _, plan := range []struct {
				name, script string
				conflicts    []string
			}{
				{"OtherFile", "echo plan >e", nil},
				{"IgnoredFile", "echo plan >d; echo plan >e", nil}, // git would not commit it
				{"All", "for f in a b c e; do echo plan >$f; done", []string{"a", "b", "c"}},
			} {
				t.Run(strategy+"/"+plan.name, func(t *testing.T) { commitKeepsUncommitted(t, c, strategy, plan.script, plan.conflicts) })
			}
		}
	})
}

func commitKeepsUncommitted(t *testing.T, c *fleettest.Cluster, strategy, script string, conflicts []string) {
	dir := c.Tree(t, strings.ReplaceAll(t.Name(), "/", "-"), e1Script)
	id := c.Submit(t, c.Plan(t, "apply: manual\nstrategy: "+strategy+"\n"+byPlan+fleettest.Resource(dir), script))
	c.Until(t, id, "awaiting approval", fleettest.IsType(events.TypeAwaitingApproval))
	c.Sh(t, dir, e1User)
	before, state := fleettest.Snapshot(t, dir), commitState(t, c.Place, dir)
	c.Do(t, "warmfleet", "plan", "approve", "--detach", id)
	v := c.Ends(t, id)
	settled(t, dir)
	if conflicts != nil {
		if got := paths(v); v.State != events.StateConflict || !slices.Equal(got, conflicts) {
			t.Errorf("got state %s with conflicts %q, want %q\n%s", v.State, got, conflicts, c.Story(t, id))
		}
		o := layertest.Options{NoDirTimes: true, Skip: []string{".git"}} // git notes in an object's time that somebody had it in hand
		if d := layertest.Diff(fleettest.Snapshot(t, dir), before, o); d != "" {
			t.Errorf("changed (-now +before):\n%s", d)
		}
		if after := commitState(t, c.Place, dir); after != state {
			t.Errorf("the repository was\n%s\nand is\n%s", state, after)
		}
		return
	}
	if v.State != events.StateApplied || v.Commit == nil {
		t.Fatalf("got state %s, commit %v\n%s", v.State, v.Commit, c.Story(t, id))
	}
	if got, want := c.Sh(t, dir, "cat a b c d e; git status --porcelain; git show --format=%s --name-only trunk; git rev-parse trunk"),
		"mine\nstaged\nuntracked\nignored\nplan\n M a\nM  b\n?? c\nby plan\n\ne\n"+v.Commit.ID+"\n"; got != want || v.Commit.Branch != "trunk" {
		t.Errorf("got %q, want %q", got, want)
	}
	if uid := c.Sh(t, dir, "find . ! -user $(stat -c %u .)"); uid != "" {
		t.Errorf("files of somebody else: %s", uid)
	}
	saneRepo(t, c.Place, dir)
}

func TestCase_E2Commit(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	c.Worker(t, "wa")
	c.Worker(t, "wb")
	for _, strategy := range copying {
		t.Run(strategy+"/AtOnce", func(t *testing.T) {
			dir, ids := twoCommits(t, c, strategy, "sed -i '1a Y' readme")
			fleettest.Together(2, func(i int) { c.Do(t, "warmfleet", "plan", "approve", "--detach", ids[i]) })
			got := []string{c.Ends(t, ids[0]).State, c.Ends(t, ids[1]).State}
			if slices.Sort(got); !slices.Equal(got, []string{events.StateApplied, events.StateConflict}) {
				t.Errorf("states: got %q, want one applied and one conflict", got)
			}
			settled(t, dir)
			if got := c.Sh(t, dir, "git rev-list --count trunk; wc -l <readme; git status --porcelain"); got != "2\n3\n" {
				t.Errorf("commits, lines, status: %q", got)
			}
			saneRepo(t, c.Place, dir)
		})
		t.Run(strategy+"/OtherPart", func(t *testing.T) {
			dir, ids := twoCommits(t, c, strategy, "sed -i '9s/$/ Q/' readme; echo n >new")
			fleettest.Together(2, func(i int) { c.Do(t, "warmfleet", "plan", "approve", ids[i]) })
			for _, id := range ids {
				c.Ended(t, id, events.StateApplied)
			}
			settled(t, dir)
			if got := c.Sh(t, dir, "git rev-list --count trunk; git show trunk:readme | grep -c '[XQ]'; cat new; git status --porcelain"); got != "3\n2\nn\n" {
				t.Errorf("commits, changed lines, status: %q", got)
			}
			saneRepo(t, c.Place, dir)
		})
		t.Run(strategy+"/CheckedOutElsewhere", func(t *testing.T) {
			dir := c.Tree(t, strings.ReplaceAll(t.Name(), "/", "-"), "git init -q -b trunk r; cd r; echo a >a; git add -A;"+fleettest.GitIdentity+"commit -qm one; git worktree add -q ../second -b other")
			repo := filepath.Join(dir, "r")
			state := commitState(t, c.Place, repo)
			file := c.Plan(t, "apply: auto\nstrategy: "+strategy+"\ncommit: {message: m, branch: other}\n"+somebody+fleettest.Resource(repo), "echo b >a")
			v := c.Ended(t, c.Submit(t, file), events.StateConflict)
			if !strings.Contains(fleettest.Deref(v.Error), filepath.Join(dir, "second")) {
				t.Errorf("error %q does not name the other work tree", fleettest.Deref(v.Error))
			}
			if after := commitState(t, c.Place, repo); after != state {
				t.Errorf("the repository was\n%s\nand is\n%s", state, after)
			}
		})
	}
}

// twoCommits runs two plans from one base to where they wait for approval.
func twoCommits(t *testing.T, c *fleettest.Cluster, strategy, second string) (dir string, ids [2]string) {
	dir = c.Tree(t, strings.ReplaceAll(t.Name(), "/", "-"), "git init -q -b trunk .; (echo title; seq 2 12) >readme; git add -A;"+fleettest.GitIdentity+"commit -qm one")
	if strings.Contains(second, "1a") {
		c.Sh(t, dir, "printf 'title\\nend\\n' >readme; "+fleettest.GitIdentity+"commit -q --amend -am one")
	}
	for i, script := range []string{"sed -i '1a X' readme", second} {
		ids[i] = c.Submit(t, c.Plan(t, "apply: manual\nstrategy: "+strategy+"\n"+byPlan+fleettest.Resource(dir), script))
	}
	for _, id := range ids {
		c.Until(t, id, "awaiting approval", fleettest.IsType(events.TypeAwaitingApproval))
	}
	return dir, ids
}

func TestCase_E5Commit(t *testing.T) {
	t.Parallel()
	fleettest.EachAccount(t, func(t *testing.T, c *fleettest.Cluster) {
		for _, strategy := range copying {
			for _, autocrlf := range []string{"true", "false", "input"} {
				t.Run(strategy+"/"+autocrlf, func(t *testing.T) {
					top := c.Tree(t, strings.ReplaceAll(t.Name(), "/", "-"), `git init -q -b trunk up; cd up; printf 'a\r\nb\r\n' >crlf; printf 'a\nb\n' >lf; printf 'a\rb\nc' >cr
git add -A 2>/dev/null; `+fleettest.GitIdentity+`commit -qm one; cd ..; git clone -q -c core.autocrlf=`+autocrlf+` up r; cp -a r hand`)
					edit := "for f in crlf lf cr; do sed -i s/a/word/ $f; done; echo '* text=auto eol=crlf' >.gitattributes"
					repo := filepath.Join(top, "r")
					v := c.Warmfleet(t, "run", c.Plan(t, "apply: auto\nstrategy: "+strategy+"\n"+byPlan, edit), "--path", repo, "-o", "json").Exits(t, 0).View(t)
					want := c.Sh(t, filepath.Join(top, "hand"), edit+"; git add -A 2>/dev/null; git write-tree")
					if got := c.Sh(t, repo, "git rev-parse 'trunk^{tree}'; git status --porcelain 2>/dev/null"); got != want || v.Commit == nil {
						t.Errorf("tree and status: got %q, want that of a commit by hand %q", got, want)
					}
				})
			}
		}
	})
}

// Case C4: the first commit of a repository, on the branch that HEAD names; a bare repository gets one on any branch.
func TestCase_C4Commit(t *testing.T) {
	t.Parallel()
	fleettest.EachAccount(t, func(t *testing.T, c *fleettest.Cluster) {
		t.Run("Unborn", func(t *testing.T) {
			dir := c.Tree(t, "c4-unborn", "git init -q -b dev .; echo u >untracked")
			file := c.Plan(t, "apply: auto\nidentity: {name: \"O'Neil\", email: o@example.com}\ncommit: {message: first}", "echo r >result")
			c.Warmfleet(t, "run", file, "--path", dir).Exits(t, 0)
			if got := c.Sh(t, dir, "git log --format='%an %s %P' --name-only dev; git status --porcelain; cat result"); got != "O'Neil first \n\nresult\n?? untracked\nr\n" {
				t.Errorf("got %q", got)
			}
		})
		t.Run("Bare", func(t *testing.T) {
			top := c.Tree(t, "c4-bare", "git init -q -b trunk up; cd up; echo a >a; git add -A;"+fleettest.GitIdentity+"commit -qm one; cd ..; git clone -q --bare up bare.git")
			file := c.Plan(t, "apply: auto\nstrategy: git_worktree\n"+byPlan, "echo r >result")
			c.Warmfleet(t, "run", file, "--path", filepath.Join(top, "bare.git")).Exits(t, 0)
			if got := c.Sh(t, top, "git -C bare.git show --format=%s --name-only trunk"); got != "by plan\n\nresult\n" {
				t.Errorf("got %q", got)
			}
		})
	})
}

// own commits and pushes as a user does.
func own(script string) string {
	return "cd user; git pull -q; " + script + "; git add -A; " + fleettest.GitIdentity + "commit -qm own; git push -q"
}

func TestPush_ToARemote(t *testing.T) {
	t.Parallel()
	fleettest.EachAccount(t, func(t *testing.T, c *fleettest.Cluster) {
		for _, tc := range []struct {
			name, head, ref, plan, meanwhile string
			code                             string // of a plan that is not applied
			show, want                       string
		}{
			{name: "DefaultBranch", head: somebody, plan: "echo B >b", show: "git log --format=%s trunk; git show trunk:b", want: "TestPush\none\nB\n"},
			{name: "NewBranch", head: strings.Replace(byPlan, "trunk", "feat/x", 1), plan: "echo B >b", show: "git log --format=%s feat/x; git show feat/x:b trunk:b", want: "by plan\none\nB\nb\n"},
			{name: "Moved", head: byPlan, plan: "sed -i s/1/one/ a", meanwhile: own("sed -i s/9/nine/ a"), show: "git log --format=%s trunk; git show trunk:a | sed -n '1p;9p'", want: "by plan\nown\none\none\nnine\n"},
			{name: "Conflict", head: byPlan, plan: "sed -i s/9/neuf/ a", meanwhile: own("sed -i s/9/nine/ a"), code: "conflict", show: "git log --format=%s trunk", want: "own\none\n"},
			{name: "ForcePushed", head: byPlan, plan: "echo B >b", meanwhile: "cd user; " + fleettest.GitIdentity + "commit -q --amend -m other; git push -qf", show: "git log --format=%s trunk; git show trunk:b", want: "by plan\nother\nB\n"},
			{name: "Deleted", head: somebody, plan: "echo B >b", meanwhile: "git -C r.git update-ref -d refs/heads/trunk", code: "branch_gone", show: "git for-each-ref", want: ""},
			{name: "Hook", head: byPlan, plan: "echo B >b", meanwhile: "printf '#!/bin/sh\\necho not on fridays >&2; exit 1\\n' >r.git/hooks/pre-receive; chmod 755 r.git/hooks/pre-receive", code: "push_refused", show: "git log --format=%s trunk", want: "one\n"},
			{name: "Gone", head: byPlan, plan: "echo B >b", meanwhile: "mv r.git x.git; mkdir r.git", code: "remote_unreachable", show: "git -C ../x.git log --format=%s trunk", want: "one\n"},
		} {
			t.Run(tc.name, func(t *testing.T) {
				top := c.Tree(t, strings.ReplaceAll(t.Name(), "/", "-"), fleettest.RemoteScript)
				repo := filepath.Join(top, "r.git")
				file := c.Plan(t, "apply: manual\n"+tc.head+"resource: {repo: "+fleettest.Quoted("file://"+repo)+"}", tc.plan)
				id := c.Submit(t, file)
				c.Until(t, id, "awaiting approval", fleettest.IsType(events.TypeAwaitingApproval))
				c.Sh(t, top, tc.meanwhile)
				c.Do(t, "warmfleet", "plan", "approve", "--detach", id)
				v := c.Ends(t, id)
				if got := fleettest.Deref(v.Code); got != tc.code || (v.State == events.StateApplied) != (tc.code == "") || (v.Commit == nil) != (tc.code != "") {
					t.Fatalf("got state %s, code %q, commit %v; want code %q\n%s", v.State, got, v.Commit, tc.code, c.Story(t, id))
				}
				if tc.name == "Hook" && !strings.Contains(fleettest.Deref(v.Error), "not on fridays") || strings.Contains(fleettest.Deref(v.Error), "\n") {
					t.Errorf("error %q", fleettest.Deref(v.Error))
				}
				got := strings.ReplaceAll(c.Sh(t, repo, tc.show), v.Name+"\n", "TestPush\n")
				if got != tc.want {
					t.Errorf("the remote: got %q, want %q", got, tc.want)
				}
				if v.Commit != nil { // what is pushed is not a worker's to take back
					undo := c.Run(t, "warmfleet", "plan", "undo", id)
					if want := "git revert " + v.Commit.ID; undo.Code == 0 || !strings.Contains(undo.Stderr, want) {
						t.Errorf("undo: exit code %d, %q, want %q", undo.Code, undo.Stderr, want)
					}
				}
				if uid := c.Sh(t, top, "find . ! -user $(stat -c %u .)"); uid != "" {
					t.Errorf("files of somebody else: %s", uid)
				}
			})
		}
	})
}

// A worker is killed while the remote decides. Whether its push arrives or not, another makes the commit once.
func TestPush_KilledWorker(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	for _, tc := range []struct{ name, hook, meanwhile string }{
		{"Arrived", "touch reached; until [ -e gate ]; do sleep 0.05; done", ""},
		{"NotArrived", "if [ -e reached ]; then exit 0; fi; touch reached; until [ -e gate ]; do sleep 0.05; done; exit 1", ""},
		{"SomebodyOnTop", "if [ -e reached ]; then exit 0; fi; touch reached; until [ -e gate ]; do sleep 0.05; done", own("echo x >x")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			top := c.Tree(t, "killed-"+tc.name, fleettest.RemoteScript)
			repo := filepath.Join(top, "r.git")
			c.Sh(t, repo, "printf '%s\\n' '#!/bin/sh' "+"'"+tc.hook+"' >hooks/pre-receive; chmod 755 hooks/pre-receive")
			wa := c.Worker(t, "wa-"+tc.name)
			id := c.Submit(t, c.Plan(t, "apply: auto\n"+byPlan+"resource: {repo: "+fleettest.Quoted("file://"+repo)+"}", "echo B >b"))
			fleettest.Eventually(t, "the push to reach the remote", func() bool { return fleettest.Exists(filepath.Join(repo, "reached")) })
			wa.Kill(t)
			c.Sh(t, repo, "touch gate")
			if tc.name != "NotArrived" {
				fleettest.Eventually(t, "the push to arrive", func() bool { return c.Sh(t, repo, "git rev-list --count trunk") == "2\n" })
			}
			c.Sh(t, top, tc.meanwhile)
			wb := c.Worker(t, "wb-"+tc.name)
			v := c.Ended(t, id, events.StateApplied)
			if got := c.Sh(t, repo, "git log --format=%s trunk | grep -c 'by plan'; git show trunk:b; git merge-base --is-ancestor "+v.Commit.ID+" trunk"); got != "1\nB\n" {
				t.Errorf("the remote: %q", got)
			}
			c.Once(t, id, 2)
			wb.Kill(t)
		})
	}
}

func TestPush_OverHTTP(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Self())
	c.Worker(t, "w")
	top := c.Tree(t, "http", fleettest.RemoteScript+"; git -C r.git config http.receivepack true")
	backend := strings.TrimSpace(c.Sh(t, top, "git --exec-path")) + "/git-http-backend"
	if !fleettest.Exists(backend) {
		t.Skip("git has no http backend here")
	}
	refuse := true
	handler := &cgi.Handler{Path: backend, Env: []string{"GIT_PROJECT_ROOT=" + top, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=x"}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refuse && (strings.Contains(r.URL.RawQuery, "receive-pack") || strings.Contains(r.URL.Path, "receive-pack")) {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	defer srv.Close()
	file := c.Plan(t, "apply: auto\n"+byPlan+"resource: {repo: "+fleettest.Quoted(srv.URL+"/r.git")+"}", "echo B >b")
	v := c.Ended(t, c.Submit(t, file), events.StateFailed)
	if fleettest.Deref(v.Code) != "push_refused" || strings.Contains(fleettest.Deref(v.Error), "\n") {
		t.Errorf("unauthorized: code %q, error %q", fleettest.Deref(v.Code), fleettest.Deref(v.Error))
	}
	refuse = false
	c.Ended(t, c.Submit(t, file), events.StateApplied)
	if got := c.Sh(t, filepath.Join(top, "r.git"), "git log --format=%s trunk"); got != "by plan\none\n" {
		t.Errorf("the remote: %q", got)
	}
}

// A text file that both sides changed is merged by content in a git work tree, and a conflict elsewhere.
func TestApply_MergesTextInGit(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	c.Worker(t, "w")
	for _, tc := range []struct{ name, strategy, script, user, plan, state, want string }{
		{"Clean", "copy_on_write", gitInit, "sed -i s/1/mine/ a", "sed -i s/9/plan/ a", events.StateApplied, "mine\nplan\n"},
		{"CleanWorktree", "git_worktree", gitInit, "sed -i s/1/mine/ a", "sed -i s/9/plan/ a", events.StateApplied, "mine\nplan\n"},
		{"Overlap", "copy_on_write", gitInit, "sed -i s/1/mine/ a", "sed -i s/1/plan/ a", events.StateConflict, "mine\n9\n"},
		{"BinaryByAttribute", "copy_on_write", "echo 'a binary' >.gitattributes; " + gitInit, "sed -i s/1/mine/ a", "sed -i s/9/plan/ a", events.StateConflict, "mine\n9\n"},
		{"NoGit", "copy_on_write", "seq 9 >a", "sed -i s/1/mine/ a", "sed -i s/9/plan/ a", events.StateConflict, "mine\n9\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := c.Tree(t, "merge-"+tc.name, tc.script)
			id := c.Submit(t, c.Plan(t, "apply: manual\nstrategy: "+tc.strategy+"\n"+fleettest.Resource(dir), tc.plan))
			c.Until(t, id, "awaiting approval", fleettest.IsType(events.TypeAwaitingApproval))
			c.Sh(t, dir, tc.user)
			c.Do(t, "warmfleet", "plan", "approve", "--detach", id)
			c.Ended(t, id, tc.state)
			if got := c.Sh(t, dir, "sed -n '1p;9p' a"); got != tc.want {
				t.Errorf("a: got %q, want %q", got, tc.want)
			}
		})
	}
}

const gitInit = "seq 9 >a; git init -q -b trunk .; git add -A;" + fleettest.GitIdentity + "commit -qm one"

// A worker that is root leaves nothing of root's in a repository of somebody else, and runs nothing of theirs as root.
func TestCommit_OfAnotherUsersRepository(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: makes files of other users")
	}
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Self())
	c.Worker(t, "w")
	other := fleettest.Ordinary(t)
	theirs := func(name, script string) string {
		dir := c.Tree(t, name, script)
		c.Do(t, "chown", "-R", fmt.Sprintf("%d:%d", other.Cred.Uid, other.Cred.Gid), dir)
		return dir
	}
	alien := func(dir string) string { return c.Sh(t, dir, fmt.Sprintf("find . ! -uid %d", other.Cred.Uid)) }
	git := "git -c safe.directory='*' "
	t.Run("Path", func(t *testing.T) {
		dir := theirs("theirs", gitInit+"; echo s >s; git add s")
		file := c.Plan(t, "apply: auto\n"+byPlan, "sed -i s/1/one/ a; mkdir d; echo n >d/n")
		c.Warmfleet(t, "run", file, "--path", dir).Exits(t, 0)
		settled(t, dir)
		if got := alien(dir); got != "" {
			t.Errorf("files of somebody else: %s", got)
		}
		if got := c.Sh(t, dir, git+"log --format=%s trunk; "+git+"status --porcelain; cat d/n"); got != "by plan\none\nA  s\nn\n" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("Remote", func(t *testing.T) {
		dir := theirs("remote", fleettest.RemoteScript+`; printf '#!/bin/sh\nid -u >uid\n' >r.git/hooks/post-receive; chmod 755 r.git/hooks/post-receive`)
		file := c.Plan(t, "apply: auto\n"+byPlan+"resource: {repo: "+fleettest.Quoted("file://"+dir+"/r.git")+"}", "echo B >b")
		c.Ended(t, c.Submit(t, file), events.StateApplied)
		if got := c.Sh(t, dir, git+"-C r.git log --format=%s trunk; cat r.git/uid"); got != fmt.Sprintf("by plan\none\n%d\n", other.Cred.Uid) {
			t.Errorf("got %q", got)
		}
		if got := alien(dir); got != "" {
			t.Errorf("files of somebody else: %s", got)
		}
	})
}
