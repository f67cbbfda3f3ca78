package applies

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// Case K1. Variables that redirect git, from a shell or a hook, reach neither our git nor a step.
func TestCase_K1(t *testing.T) {
	t.Parallel()
	for _, a := range fleettest.Accounts(t) {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			t.Run("Environment", func(t *testing.T) { inheritedVariables(t, a) })
			t.Run("Hook", func(t *testing.T) { runInAHook(t, a) })
		})
	}
}

func inheritedVariables(t *testing.T, a fleettest.Account) {
	clean := fleettest.NewPlace(t, a)
	other := clean.Tree(t, "other", gitInit)
	git := filepath.Join(other, ".git")
	c := &fleettest.Cluster{Place: clean.With(
		"GIT_DIR="+git, "GIT_WORK_TREE="+other, "GIT_INDEX_FILE="+git+"/index", "GIT_OBJECT_DIRECTORY="+git+"/objects", "GIT_COMMON_DIR="+git,
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=user.email", "GIT_CONFIG_VALUE_0=wrong@example.com", "GIT_CONFIG_PARAMETERS='user.name'='Wrong'",
		"GIT_AUTHOR_NAME=Wrong", "GIT_COMMITTER_EMAIL=wrong@example.com", "GIT_CEILING_DIRECTORIES="+clean.Dir, "GIT_NAMESPACE=wrong",
	)}
	c.Serve(t)
	c.Worker(t, "w")
	before := fleettest.Snapshot(t, other)
	const see = "env | grep ^GIT_ || true; git rev-parse --git-dir; sed -i s/1/one/ a"
	for name, tc := range map[string]struct {
		head, script, state, want string
	}{
		"Checkout": {head: byPlan, script: see, state: events.StateApplied, want: "by plan\none\n"},
		"Worktree": {head: "strategy: git_worktree\n" + byPlan, script: see, state: events.StateApplied, want: "by plan\none\n"},
		"Rollback": {head: byPlan, script: see + "; exit 1", state: events.StateFailed, want: "one\n"},
		"InPlace":  {head: "strategy: none\n", script: see + "; exit 1", state: events.StateFailed, want: "one\n"},
		"Files":    {script: see, state: events.StateApplied, want: "one\n"},
	} {
		t.Run(name, func(t *testing.T) {
			right := clean.Tree(t, "right-"+name, gitInit)
			file := c.PlanOf(t, "apply: auto\n"+tc.head+fleettest.Resource(right), "{id: one, checkpoint: true, run: 'true'}", "{id: two, run: "+fleettest.Quoted(tc.script)+"}")
			id := c.Submit(t, file)
			c.Ended(t, id, tc.state)
			settled(t, right)
			if got := clean.Sh(t, right, "git log --format=%s trunk"); got != tc.want {
				t.Errorf("log of the repository: got %q, want %q", got, tc.want)
			}
			saw := c.Do(t, "warmfleet", "plan", "logs", id)
			if strings.Contains(saw, "Wrong") || strings.Contains(saw, "wrong") || strings.Contains(saw, other) || !strings.Contains(saw, ".git\n") {
				t.Errorf("a step saw\n%s", saw)
			}
		})
	}
	t.Run("Remote", func(t *testing.T) {
		top := clean.Tree(t, "remote", fleettest.RemoteScript)
		c.Ended(t, c.Submit(t, c.Plan(t, "apply: auto\n"+byPlan+"resource: {repo: "+fleettest.Quoted("file://"+top+"/r.git")+"}", see)), events.StateApplied)
		if got := clean.Sh(t, top, "git -C r.git log --format='%s %an %ce' trunk"); !strings.HasPrefix(got, "by plan By by@example.com\none ") {
			t.Errorf("log of the remote: %q", got)
		}
	})
	fleettest.Unchanged(t, other, before)
}

// runInAHook runs a plan on one repository from the hook of another, to which git's variables of that moment belong.
func runInAHook(t *testing.T, a fleettest.Account) {
	p := fleettest.NewPlace(t, a)
	target, user := p.Tree(t, "target", gitInit), p.Tree(t, "user", gitInit)
	file := p.Plan(t, "apply: auto\n"+byPlan, "sed -i s/1/one/ a")
	hook := "#!/bin/sh\nenv | grep -q ^GIT_INDEX_FILE= || exit 9\nexec warmfleet run " + file + " --path " + target + " --state-dir " + p.Path("state") + " >&2\n"
	p.Write(t, filepath.Join(user, ".git", "hooks", "pre-commit"), hook)
	fleettest.Must(t, os.Chmod(filepath.Join(user, ".git", "hooks", "pre-commit"), 0o755))
	p.Sh(t, user, "sed -i s/9/nine/ a; "+fleettest.GitIdentity+"commit -qam own")
	settled(t, target)
	for dir, want := range map[string]string{target: "by plan\none\n one\n", user: "own\none\n 1\n"} {
		if got := p.Sh(t, dir, "git log --format=%s trunk; git show trunk:a | sed -n '1s/^/ /p'; git status --porcelain"); got != want {
			t.Errorf("%s: got %q, want %q", filepath.Base(dir), got, want)
		}
	}
}

// Case K2. Author and committer are the plan's, else the repository's own, else the pool's, else the worker's, which the
// plan's first event says; never the machine's, and no configuration is written. Where nobody is named, the plan is refused before
// its first step; only a run of one's own on a path of one's own commits as nobody in particular.
func TestCase_K2(t *testing.T) {
	t.Parallel()
	for _, a := range fleettest.Accounts(t) {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			authors(t, a)
		})
	}
}

// homeOf is what is in a home, but for the plan files that tests write there.
func homeOf(t testing.TB, p *fleettest.Place) string {
	t.Helper()
	return p.Sh(t, p.Path("home"), "find . -type f ! -name 'plan-*' -exec sha256sum {} + | sort")
}

const (
	planIdentity = "identity: {name: Plan, email: p@example.com}\n"
	repoIdentity = "\ngit config user.name Repo; git config user.email r@example.com"
	neutral      = "warmfleet <warmfleet@localhost>"
)

func authors(t *testing.T, a fleettest.Account) {
	if a.Cred != nil { // a user that no passwd entry has
		a.UID, a.Cred = 54321, &syscall.Credential{Uid: 54321, Gid: 54321}
	}
	p := fleettest.NewPlace(t, a)
	p.Write(t, p.Path("home", ".gitconfig"), "[user]\n\tname = Wrong\n\temail = w@example.com\n\tuseConfigOnly = true\n")
	home := homeOf(t, p)
	c := &fleettest.Cluster{Place: p}
	c.Serve(t)
	worker := c.Worker(t, "w")
	const half = "\ngit config user.name Repo"
	for _, tc := range []struct{ name, plan, repo, path, remote string }{
		{"All", planIdentity, repoIdentity, "Plan <p@example.com>, of the plan", "Plan <p@example.com>, of the plan"},
		{"WithoutPlan", "", repoIdentity, "Repo <r@example.com>, of the repository", ""}, // another's configuration is not ours to read
		{"WithoutPlanAndRepo", "", "", "", ""},
		{"HalfARepo", "", half, "", ""},
		{"Nothing", "", "", "", ""},
		{"Worker", "", half, "Fleet <f@example.com>, of the worker", "Fleet <f@example.com>, of the worker"},
		{"RepoBeforeWorker", "", repoIdentity, "Repo <r@example.com>, of the repository", "Fleet <f@example.com>, of the worker"},
	} {
		bare := *c
		bare.Place = c.Without("HOME").Without("USER")
		switch tc.name {
		case "Nothing":
			worker.Kill(t)
			worker = bare.Worker(t, "bare")
		case "Worker":
			worker.Kill(t)
			worker = bare.Worker(t, "named", "--author", "Fleet <f@example.com>")
		}
		for kind, strategy := range map[string]string{"Checkout": "copy_on_write", "Worktree": "git_worktree", "Remote": "git_worktree"} {
			t.Run(tc.name+kind, func(t *testing.T) {
				dir := c.Tree(t, strings.ReplaceAll(t.Name(), "/", "-"), gitInit+tc.repo)
				head, want := "strategy: "+strategy+"\n"+fleettest.Resource(dir), tc.path
				if kind == "Remote" {
					c.Sh(t, dir, "git clone -q --bare . ../"+filepath.Base(dir)+".git; git -C ../"+filepath.Base(dir)+".git config user.name Far")
					dir += ".git"
					head, want = "resource: {repo: "+fleettest.Quoted("file://"+dir)+"}", tc.remote
				}
				authored(t, c, dir, c.Submit(t, c.Plan(t, "apply: auto\n"+byNobody+tc.plan+head, "echo x >x")), want)
			})
		}
	}
	t.Run("Run", func(t *testing.T) {
		dir := c.Tree(t, "run-own", gitInit)
		p.Do(t, "warmfleet", "run", p.Plan(t, "apply: auto\n"+byNobody, "echo x >x"), "--path", dir, "--state-dir", p.Path("own"))
		if got := c.Sh(t, dir, "git log -1 --format='%an <%ae>' trunk"); got != neutral+"\n" {
			t.Errorf("a run of one's own: got %q", got)
		}
		p.Warmfleet(t, "run", p.Plan(t, "apply: auto\n"+byNobody, "echo x >x"), "--repo", "file://"+dir, "--state-dir", p.Path("own")).Exits(t, 3)
	})
	if got := homeOf(t, p); got != home {
		t.Errorf("the home was\n%s\nand is\n%s", home, got)
	}
}

// authored tells whether a plan's commit is by whom its first event says, or, want being "", that it was refused before any step.
func authored(t *testing.T, c *fleettest.Cluster, dir, id, want string) {
	t.Helper()
	if want == "" {
		v := c.Ended(t, id, events.StateFailed)
		if v.Code == nil || *v.Code != "no_identity" || v.Error == nil || !strings.Contains(*v.Error, "--author") || c.Count(t, id, fleettest.IsType(events.TypeStepStarted)) != 0 {
			t.Errorf("a plan that names nobody: %+v", v)
		}
		if got := c.Sh(t, dir, "git log --format=%s trunk"); got != "one\n" {
			t.Errorf("history is %q", got)
		}
		return
	}
	c.Ended(t, id, events.StateApplied)
	by, _, _ := strings.Cut(want, ",")
	if got := c.Sh(t, dir, "git log -1 --format='%s|%an <%ae>|%cn <%ce>|%ai|%ci' trunk"); !strings.HasPrefix(got, "by plan|"+by+"|"+by+"|") || strings.Count(got, " +0000") != 2 {
		t.Errorf("got %q, want %s twice, in UTC", got, by)
	}
	if n := c.Count(t, id, fleettest.IsType(events.TypeClaimed), func(e events.Event) bool { return strings.Contains(strings.Join(e.Data.Notes, "\n"), "author: "+want) }); n != 1 {
		t.Errorf("%d claims tell of the author %s", n, want)
	}
}

// Case K3. Checkpoints, rollbacks and commits run no hook, sign nothing and follow no setting of the user, by rule (apply.md).
func TestCase_K3(t *testing.T) {
	t.Parallel()
	for _, a := range fleettest.Accounts(t) {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			hooksAndSigning(t, a)
		})
	}
}

// k3Hooks makes hooks that leave a trace and fail; two of them also change files.
const k3Hooks = `
for h in pre-commit prepare-commit-msg commit-msg post-commit pre-push post-checkout reference-transaction post-index-change post-rewrite fsmonitor; do
printf '#!/bin/sh\necho %s >>TRACE; echo changed >>a; exit 1\n' $h >HOOKS/$h; chmod 755 HOOKS/$h
done`

func hooksAndSigning(t *testing.T, a fleettest.Account) {
	p := fleettest.NewPlace(t, a)
	trace := p.Path("tmp", "trace")
	hooks := func(dir string) string {
		return strings.NewReplacer("TRACE", trace, "HOOKS", dir).Replace("mkdir -p HOOKS" + k3Hooks)
	}
	p.Sh(t, p.Path("home"), strings.Join([]string{
		hooks("global"), hooks("template/hooks"), "printf '#!/bin/sh\\necho gpg >>" + trace + "; exec sleep 600\\n' >gpg; chmod 755 gpg; echo '*' >excludes; echo template >message",
		"git config --global commit.gpgsign true; git config --global tag.gpgsign true; git config --global gpg.program $PWD/gpg",
		"git config --global core.hooksPath $PWD/global; git config --global init.templateDir $PWD/template; git config --global commit.template $PWD/message",
		"git config --global core.excludesFile $PWD/excludes; git config --global push.gpgSign if-asked",
	}, "\n"))
	home := homeOf(t, p)
	c := &fleettest.Cluster{Place: p}
	c.Serve(t)
	c.Worker(t, "w")
	const init = "export GIT_CONFIG_GLOBAL=/dev/null\n" + gitInit + "\n"
	signing := "\ngit config commit.gpgsign true; git config gpg.program " + p.Path("home", "gpg") + "; git config core.fsmonitor .git/hooks/fsmonitor"
	for _, strategy := range []string{"copy_on_write", "git_worktree", "none"} {
		t.Run(strategy, func(t *testing.T) {
			dir := c.Tree(t, strategy, init+hooks("$PWD/.git/hooks")+signing)
			before := fleettest.Snapshot(t, dir)
			head := "apply: auto\nstrategy: " + strategy + "\n" + fleettest.Resource(dir)
			c.Ended(t, c.Submit(t, c.PlanOf(t, head, `{id: one, checkpoint: true, run: echo x >x}`, `{id: two, run: "echo y >y; exit 1"}`)), events.StateFailed)
			fleettest.Untouched(t, dir, before)
			if strategy != "none" {
				head = byPlan + head
			}
			c.Ended(t, c.Submit(t, c.PlanOf(t, head, `{id: one, checkpoint: true, run: echo x >x}`)), events.StateApplied)
			settled(t, dir)
			want := "by plan\nx\n1\n"
			if strategy == "none" {
				want = "one\na\n1\n"
			}
			if strategy != "none" { // by update-ref, which git has a hook for
				elsewhere := strings.Replace(head, "branch: trunk", "branch: elsewhere", 1)
				c.Ended(t, c.Submit(t, c.PlanOf(t, elsewhere, `{id: one, run: echo z >z}`)), events.StateApplied)
				settled(t, dir)
			}
			got := c.Sh(t, dir, "export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=core.hooksPath GIT_CONFIG_VALUE_0=/dev/null GIT_CONFIG_KEY_1=core.fsmonitor GIT_CONFIG_VALUE_1=false\n"+
				"git log -1 --format=%s; git show --format= --name-only HEAD; head -1 a; git cat-file commit HEAD | grep gpgsig || true")
			if got != want || fleettest.Read(t, dir, "x") != "x\n" {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
	t.Run("Remote", func(t *testing.T) {
		top := c.Tree(t, "remote", "export GIT_CONFIG_GLOBAL=/dev/null\n"+fleettest.RemoteScript)
		c.Ended(t, c.Submit(t, c.Plan(t, "apply: auto\n"+byPlan+"resource: {repo: "+fleettest.Quoted("file://"+top+"/r.git")+"}", "echo x >x")), events.StateApplied)
		if got := c.Sh(t, top, "git -C r.git log -1 --format=%s trunk; git -C r.git cat-file commit trunk | grep gpgsig || true"); got != "by plan\n" {
			t.Errorf("got %q", got)
		}
	})
	if got := fleettest.Read(t, trace); got != "" {
		t.Errorf("these ran: %s", strings.ReplaceAll(got, "\n", " "))
	}
	if got := homeOf(t, p); got != home {
		t.Errorf("the home was\n%s\nand is\n%s", home, got)
	}
}

// Case K4. A repository of another user is read by an exception for that path alone; what cannot be brought back to it is refused
// before the first step.
func TestCase_K4(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root: makes files of other users")
	}
	owner := fleettest.Account{Name: "Owner", UID: 54322, Cred: &syscall.Credential{Uid: 54322, Gid: 54322}}
	for _, home := range []string{"Writable", "Unset", "ReadOnly"} {
		for _, a := range fleettest.Accounts(t) {
			t.Run(a.Name+"/Home"+home, func(t *testing.T) {
				t.Parallel()
				p := fleettest.NewPlace(t, a)
				switch home {
				case "Unset":
					p = p.Without("HOME")
				case "ReadOnly":
					fleettest.Must(t, os.Chmod(p.Path("home"), 0o555))
				}
				c := &fleettest.Cluster{Place: p}
				c.Serve(t)
				c.Worker(t, "w")
				repoOfAnother(t, c, owner)
			})
		}
	}
}

func repoOfAnother(t *testing.T, c *fleettest.Cluster, owner fleettest.Account) {
	home := homeOf(t, c.Place)
	writable := c.Cred == nil // by root
	as := *c.Place
	as.Account, as.Env = owner, append(as.Env, "HOME="+c.Path("tmp"), "GIT_CONFIG_GLOBAL=/dev/null")
	for _, strategy := range []string{"copy_on_write", "git_worktree", "none"} {
		for _, apply := range []string{"never", "auto", "commit"} {
			if strategy == "none" && apply != "auto" {
				continue
			}
			t.Run(strategy+"/"+apply, func(t *testing.T) {
				dir := as.Tree(t, strategy+"-"+apply, gitInit+"; chmod 600 .git/config; chmod 644 .git/config")
				original := fleettest.Snapshot(t, dir)
				head := "apply: " + strings.Replace(apply, "commit", "auto", 1) + "\nstrategy: " + strategy + "\n" + fleettest.Resource(dir)
				if apply == "commit" {
					head = byPlan + head
				}
				id := c.Submit(t, c.Plan(t, head, "git log --format=%s; sed -i s/1/one/ a; mkdir d; echo n >d/n; stat -c %U a | grep -q $(id -un)"))
				v := c.Ends(t, id)
				switch {
				case apply == "never":
					if v.State != events.StateExecuted {
						t.Errorf("got %s\n%s", v.State, c.Story(t, id))
					}
				case !writable:
					why := fleettest.Deref(v.Error)
					if v.State != events.StateFailed || fleettest.Deref(v.Code) != "not_writable" || !strings.Contains(why, dir) || !strings.Contains(why, fmt.Sprint(owner.UID)) || strings.Contains(why, "\n") {
						t.Errorf("got %s, %s: %s; want it refused with path and owner", v.State, fleettest.Deref(v.Code), why)
					}
					if n := c.Count(t, id, fleettest.IsType(events.TypeStepStarted)); n != 0 {
						t.Errorf("%d steps ran before", n)
					}
				default:
					if v.State != events.StateApplied {
						t.Errorf("got %s\n%s", v.State, c.Story(t, id))
					}
					settled(t, dir)
					got := as.Sh(t, dir, fmt.Sprintf("find . ! -uid %d -o ! -gid %d; stat -c '%%a %%n' a d d/n; head -1 a; git status --porcelain | wc -l", owner.UID, owner.UID))
					want := "644 a\n755 d\n644 d/n\none\n2\n"
					if apply == "commit" {
						want = "644 a\n755 d\n644 d/n\none\n0\n"
					}
					if got != want {
						t.Errorf("got %q, want %q", got, want)
					}
				}
				if apply == "never" || !writable {
					fleettest.Unchanged(t, dir, original)
				}
			})
		}
	}
	if got := homeOf(t, c.Place); got != home {
		t.Errorf("the home was\n%s\nand is\n%s", home, got)
	}
}
