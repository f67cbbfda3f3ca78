package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// Case K1. Variables that redirect git, from a shell or a hook, reach neither our git nor a step.
func TestCase_K1(t *testing.T) {
	for _, a := range accounts(t) {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			t.Run("Environment", func(t *testing.T) { inheritedVariables(t, a) })
			t.Run("Hook", func(t *testing.T) { runInAHook(t, a) })
		})
	}
}

func inheritedVariables(t *testing.T, a account) {
	clean := newPlace(t, a)
	other := clean.tree(t, "other", gitInit)
	git := filepath.Join(other, ".git")
	c := &cluster{place: clean.with(
		"GIT_DIR="+git, "GIT_WORK_TREE="+other, "GIT_INDEX_FILE="+git+"/index", "GIT_OBJECT_DIRECTORY="+git+"/objects", "GIT_COMMON_DIR="+git,
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=user.email", "GIT_CONFIG_VALUE_0=wrong@example.com", "GIT_CONFIG_PARAMETERS='user.name'='Wrong'",
		"GIT_AUTHOR_NAME=Wrong", "GIT_COMMITTER_EMAIL=wrong@example.com", "GIT_CEILING_DIRECTORIES="+clean.dir, "GIT_NAMESPACE=wrong",
	)}
	c.serve(t)
	c.worker(t, "w")
	before := snapshot(t, other)
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
			right := clean.tree(t, "right-"+name, gitInit)
			file := c.planOf(t, "apply: auto\n"+tc.head+resource(right), "{id: one, checkpoint: true, run: 'true'}", "{id: two, run: "+quoted(tc.script)+"}")
			id := c.submit(t, file)
			c.ended(t, id, tc.state)
			settled(t, right)
			if got := clean.sh(t, right, "git log --format=%s trunk"); got != tc.want {
				t.Errorf("log of the repository: got %q, want %q", got, tc.want)
			}
			saw := c.do(t, "warmfleet", "plan", "logs", id)
			if strings.Contains(saw, "Wrong") || strings.Contains(saw, "wrong") || strings.Contains(saw, other) || !strings.Contains(saw, ".git\n") {
				t.Errorf("a step saw\n%s", saw)
			}
		})
	}
	t.Run("Remote", func(t *testing.T) {
		top := clean.tree(t, "remote", remoteScript)
		c.ended(t, c.submit(t, c.plan(t, "apply: auto\n"+byPlan+"resource: {repo: "+quoted("file://"+top+"/r.git")+"}", see)), events.StateApplied)
		if got := clean.sh(t, top, "git -C r.git log --format='%s %an %ce' trunk"); !strings.HasPrefix(got, "by plan warmfleet warmfleet@localhost\none ") {
			t.Errorf("log of the remote: %q", got)
		}
	})
	unchanged(t, other, before)
}

// runInAHook runs a plan on one repository from the hook of another, to which git's variables of that moment belong.
func runInAHook(t *testing.T, a account) {
	p := newPlace(t, a)
	target, user := p.tree(t, "target", gitInit), p.tree(t, "user", gitInit)
	file := p.plan(t, "apply: auto\n"+byPlan, "sed -i s/1/one/ a")
	hook := "#!/bin/sh\nenv | grep -q ^GIT_INDEX_FILE= || exit 9\nexec warmfleet run " + file + " --path " + target + " --state-dir " + p.path("state") + " >&2\n"
	p.write(t, filepath.Join(user, ".git", "hooks", "pre-commit"), hook)
	must(t, os.Chmod(filepath.Join(user, ".git", "hooks", "pre-commit"), 0o755))
	p.sh(t, user, "sed -i s/9/nine/ a; "+gitIdentity+"commit -qam own")
	settled(t, target)
	for dir, want := range map[string]string{target: "by plan\none\n one\n", user: "own\none\n 1\n"} {
		if got := p.sh(t, dir, "git log --format=%s trunk; git show trunk:a | sed -n '1s/^/ /p'; git status --porcelain"); got != want {
			t.Errorf("%s: got %q, want %q", filepath.Base(dir), got, want)
		}
	}
}

// Case K2. Author and committer are the plan's, else the repository's own, else a neutral one, which the plan's last event
// says; never the machine's, and no configuration is written.
func TestCase_K2(t *testing.T) {
	for _, a := range accounts(t) {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			authors(t, a)
		})
	}
}

// homeOf is what is in a home, but for the plan files that tests write there.
func homeOf(t testing.TB, p *place) string {
	t.Helper()
	return p.sh(t, p.path("home"), "find . -type f ! -name 'plan-*' -exec sha256sum {} + | sort")
}

const (
	planIdentity = "identity: {name: Plan, email: p@example.com}\n"
	repoIdentity = "\ngit config user.name Repo; git config user.email r@example.com"
	neutral      = "warmfleet <warmfleet@localhost>"
)

func authors(t *testing.T, a account) {
	if a.cred != nil { // a user that no passwd entry has
		a.uid, a.cred = 54321, &syscall.Credential{Uid: 54321, Gid: 54321}
	}
	p := newPlace(t, a)
	p.write(t, p.path("home", ".gitconfig"), "[user]\n\tname = Wrong\n\temail = w@example.com\n\tuseConfigOnly = true\n")
	home := homeOf(t, p)
	c := &cluster{place: p}
	c.serve(t)
	worker := c.worker(t, "w")
	for _, tc := range []struct{ name, plan, repo, want string }{
		{"All", planIdentity, repoIdentity, "Plan <p@example.com>"},
		{"WithoutPlan", "", repoIdentity, "Repo <r@example.com>"},
		{"WithoutPlanAndRepo", "", "", neutral},
		{"HalfARepo", "", "\ngit config user.name Repo", neutral},
		{"Nothing", "", "", neutral},
	} {
		if tc.name == "Nothing" {
			worker.kill(t)
			bare := *c
			bare.place = c.without("HOME").without("USER")
			bare.worker(t, "bare")
		}
		for kind, strategy := range map[string]string{"Checkout": "copy_on_write", "Worktree": "git_worktree", "Remote": "git_worktree"} {
			t.Run(tc.name+kind, func(t *testing.T) {
				dir := c.tree(t, strings.ReplaceAll(t.Name(), "/", "-"), gitInit+tc.repo)
				head := "strategy: " + strategy + "\n" + resource(dir)
				if kind == "Remote" {
					c.sh(t, dir, "git clone -q --bare . ../"+filepath.Base(dir)+".git; git -C ../"+filepath.Base(dir)+".git config user.name Far")
					dir += ".git"
					head = "resource: {repo: " + quoted("file://"+dir) + "}"
				}
				id := c.submit(t, c.plan(t, "apply: auto\n"+byPlan+tc.plan+head, "echo x >x"))
				c.ended(t, id, events.StateApplied)
				want := tc.want
				if kind == "Remote" && tc.plan == "" { // another's configuration is not ours to read
					want = neutral
				}
				if got := c.sh(t, dir, "git log -1 --format='%s|%an <%ae>|%cn <%ce>|%ai|%ci' trunk"); !strings.HasPrefix(got, "by plan|"+want+"|"+want+"|") || strings.Count(got, " +0000") != 2 {
					t.Errorf("got %q, want %s twice, in UTC", got, want)
				}
				told := c.count(t, id, isType(events.TypeApplied), func(e events.Event) bool { return strings.Contains(strings.Join(e.Data.Notes, "\n"), neutral) })
				if (told == 1) != (want == neutral) {
					t.Errorf("the event told of a neutral identity %d times; the commit is by %s", told, want)
				}
			})
		}
	}
	if got := homeOf(t, p); got != home {
		t.Errorf("the home was\n%s\nand is\n%s", home, got)
	}
}

// Case K3. Checkpoints, rollbacks and commits run no hook, sign nothing and follow no setting of the user, by rule (apply.md).
func TestCase_K3(t *testing.T) {
	for _, a := range accounts(t) {
		t.Run(a.name, func(t *testing.T) {
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

func hooksAndSigning(t *testing.T, a account) {
	p := newPlace(t, a)
	trace := p.path("tmp", "trace")
	hooks := func(dir string) string {
		return strings.NewReplacer("TRACE", trace, "HOOKS", dir).Replace("mkdir -p HOOKS" + k3Hooks)
	}
	p.sh(t, p.path("home"), strings.Join([]string{
		hooks("global"), hooks("template/hooks"), "printf '#!/bin/sh\\necho gpg >>" + trace + "; exec sleep 600\\n' >gpg; chmod 755 gpg; echo '*' >excludes; echo template >message",
		"git config --global commit.gpgsign true; git config --global tag.gpgsign true; git config --global gpg.program $PWD/gpg",
		"git config --global core.hooksPath $PWD/global; git config --global init.templateDir $PWD/template; git config --global commit.template $PWD/message",
		"git config --global core.excludesFile $PWD/excludes; git config --global push.gpgSign if-asked",
	}, "\n"))
	home := homeOf(t, p)
	c := &cluster{place: p}
	c.serve(t)
	c.worker(t, "w")
	const init = "export GIT_CONFIG_GLOBAL=/dev/null\n" + gitInit + "\n"
	signing := "\ngit config commit.gpgsign true; git config gpg.program " + p.path("home", "gpg") + "; git config core.fsmonitor .git/hooks/fsmonitor"
	for _, strategy := range []string{"copy_on_write", "git_worktree", "none"} {
		t.Run(strategy, func(t *testing.T) {
			dir := c.tree(t, strategy, init+hooks("$PWD/.git/hooks")+signing)
			before := snapshot(t, dir)
			head := "apply: auto\nstrategy: " + strategy + "\n" + resource(dir)
			c.ended(t, c.submit(t, c.planOf(t, head, `{id: one, checkpoint: true, run: echo x >x}`, `{id: two, run: "echo y >y; exit 1"}`)), events.StateFailed)
			untouched(t, dir, before)
			if strategy != "none" {
				head = byPlan + head
			}
			c.ended(t, c.submit(t, c.planOf(t, head, `{id: one, checkpoint: true, run: echo x >x}`)), events.StateApplied)
			settled(t, dir)
			want := "by plan\nx\n1\n"
			if strategy == "none" {
				want = "one\na\n1\n"
			}
			if strategy != "none" { // by update-ref, which git has a hook for
				elsewhere := strings.Replace(head, "branch: trunk", "branch: elsewhere", 1)
				c.ended(t, c.submit(t, c.planOf(t, elsewhere, `{id: one, run: echo z >z}`)), events.StateApplied)
				settled(t, dir)
			}
			got := c.sh(t, dir, "export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=core.hooksPath GIT_CONFIG_VALUE_0=/dev/null GIT_CONFIG_KEY_1=core.fsmonitor GIT_CONFIG_VALUE_1=false\n"+
				"git log -1 --format=%s; git show --format= --name-only HEAD; head -1 a; git cat-file commit HEAD | grep gpgsig || true")
			if got != want || read(t, dir, "x") != "x\n" {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
	t.Run("Remote", func(t *testing.T) {
		top := c.tree(t, "remote", "export GIT_CONFIG_GLOBAL=/dev/null\n"+remoteScript)
		c.ended(t, c.submit(t, c.plan(t, "apply: auto\n"+byPlan+"resource: {repo: "+quoted("file://"+top+"/r.git")+"}", "echo x >x")), events.StateApplied)
		if got := c.sh(t, top, "git -C r.git log -1 --format=%s trunk; git -C r.git cat-file commit trunk | grep gpgsig || true"); got != "by plan\n" {
			t.Errorf("got %q", got)
		}
	})
	if got := read(t, trace); got != "" {
		t.Errorf("these ran: %s", strings.ReplaceAll(got, "\n", " "))
	}
	if got := homeOf(t, p); got != home {
		t.Errorf("the home was\n%s\nand is\n%s", home, got)
	}
}

// Case K4. A repository of another user is read by an exception for that path alone; what cannot be brought back to it is refused
// before the first step.
func TestCase_K4(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: makes files of other users")
	}
	owner := account{name: "Owner", uid: 54322, cred: &syscall.Credential{Uid: 54322, Gid: 54322}}
	for _, home := range []string{"Writable", "Unset", "ReadOnly"} {
		for _, a := range accounts(t) {
			t.Run(a.name+"/Home"+home, func(t *testing.T) {
				t.Parallel()
				p := newPlace(t, a)
				switch home {
				case "Unset":
					p = p.without("HOME")
				case "ReadOnly":
					must(t, os.Chmod(p.path("home"), 0o555))
				}
				c := &cluster{place: p}
				c.serve(t)
				c.worker(t, "w")
				repoOfAnother(t, c, owner)
			})
		}
	}
}

func repoOfAnother(t *testing.T, c *cluster, owner account) {
	home := homeOf(t, c.place)
	writable := c.cred == nil // by root
	as := *c.place
	as.account, as.env = owner, append(as.env, "HOME="+c.path("tmp"), "GIT_CONFIG_GLOBAL=/dev/null")
	for _, strategy := range []string{"copy_on_write", "git_worktree", "none"} {
		for _, apply := range []string{"never", "auto", "commit"} {
			if strategy == "none" && apply != "auto" {
				continue
			}
			t.Run(strategy+"/"+apply, func(t *testing.T) {
				dir := as.tree(t, strategy+"-"+apply, gitInit+"; chmod 600 .git/config; chmod 644 .git/config")
				original := snapshot(t, dir)
				head := "apply: " + strings.Replace(apply, "commit", "auto", 1) + "\nstrategy: " + strategy + "\n" + resource(dir)
				if apply == "commit" {
					head = byPlan + head
				}
				id := c.submit(t, c.plan(t, head, "git log --format=%s; sed -i s/1/one/ a; mkdir d; echo n >d/n; stat -c %U a | grep -q $(id -un)"))
				v := c.ends(t, id)
				switch {
				case apply == "never":
					if v.State != events.StateExecuted {
						t.Errorf("got %s\n%s", v.State, c.story(t, id))
					}
				case !writable:
					why := deref(v.Error)
					if v.State != events.StateFailed || deref(v.Code) != "not_writable" || !strings.Contains(why, dir) || !strings.Contains(why, fmt.Sprint(owner.uid)) || strings.Contains(why, "\n") {
						t.Errorf("got %s, %s: %s; want it refused with path and owner", v.State, deref(v.Code), why)
					}
					if n := c.count(t, id, isType(events.TypeStepStarted)); n != 0 {
						t.Errorf("%d steps ran before", n)
					}
				default:
					if v.State != events.StateApplied {
						t.Errorf("got %s\n%s", v.State, c.story(t, id))
					}
					settled(t, dir)
					got := as.sh(t, dir, fmt.Sprintf("find . ! -uid %d -o ! -gid %d; stat -c '%%a %%n' a d d/n; head -1 a; git status --porcelain | wc -l", owner.uid, owner.uid))
					want := "644 a\n755 d\n644 d/n\none\n2\n"
					if apply == "commit" {
						want = "644 a\n755 d\n644 d/n\none\n0\n"
					}
					if got != want {
						t.Errorf("got %q, want %q", got, want)
					}
				}
				if apply == "never" || !writable {
					unchanged(t, dir, original)
				}
			})
		}
	}
	if got := homeOf(t, c.place); got != home {
		t.Errorf("the home was\n%s\nand is\n%s", home, got)
	}
}
