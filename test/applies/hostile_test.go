package applies

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// hostility is what somebody may have done to a repository. EVIL is a command line that leaves a canary, OUT a directory outside of it with a
// repository of somebody else, out of whose objects nothing may come.
type hostility struct{ name, script string }

var hostilities = []hostility{
	{"Filters", `printf '* filter=x diff=x merge=x export-subst text=auto\n' >.gitattributes; cp .gitattributes .git/info/attributes
for k in clean smudge process; do git config filter.x.$k "EVIL"; done; git config filter.x.required true`},
	{"Drivers", `printf '* diff=x merge=x\n' >.gitattributes; git config diff.x.textconv "EVIL"; git config diff.x.command "EVIL"; git config diff.external "EVIL"; git config merge.x.driver "EVIL"; git config merge.x.recursive x`},
	{"Monitor", `git config core.fsmonitor "EVIL"; git config core.untrackedCache true; git config core.fsmonitorHookVersion 2`},
	{"Hooks", `mkdir -p h; for n in post-checkout post-commit pre-commit post-index-change reference-transaction post-merge pre-push post-update update pre-auto-gc post-rewrite proc-receive; do
printf '#!/bin/sh\nEVIL\n' >.git/hooks/$n; cp .git/hooks/$n h/; done; chmod 755 .git/hooks/* h/*; git config core.hooksPath $PWD/h`},
	{"Programs", `for k in core.sshCommand core.pager core.editor core.askPass core.alternateRefsCommand core.gitProxy sequence.editor gpg.program gpg.ssh.program gpg.x509.program credential.helper uploadpack.packObjectsHook trailer.x.command interactive.diffFilter; do git config $k "EVIL"; done
for k in pager.diff pager.log alias.status alias.diff-tree alias.commit-tree alias.update-ref alias.rev-parse alias.merge-tree man.x.cmd browser.x.cmd difftool.x.cmd tar.x.command; do git config $k "!EVIL"; done
git config commit.gpgSign true; git config tag.gpgSign true; git config log.showSignature true; git config push.gpgSign if-asked`},
	{"Include", `printf '[core]\n\tfsmonitor = "EVIL"\n\thooksPath = OUT/hooks\n[filter "x"]\n\tclean = "EVIL"\n' >.git/evil; git config include.path evil; git config includeIf.gitdir:/.path "$PWD/.git/evil"; git config extensions.worktreeConfig true; cp .git/evil .git/config.worktree`},
	{"Replaced", `git replace -f HEAD $(git -c user.name=x -c user.email=x@x commit-tree -m replaced $(git -C OUT rev-parse HEAD^{tree} | head -c 0; git write-tree)) || true; echo "$(git rev-parse HEAD) 0000000000000000000000000000000000000000" >.git/info/grafts`},
	{"Submodule", `printf '[submodule "x"]\n\tpath = x\n\turl = ext::sh -c EVIL\n\tupdate = !EVIL\n[submodule "-u"]\n\tpath = -u\n\turl = -u./EVIL\n[submodule "../../y"]\n\tpath = y\n\turl = ssh://-oProxyCommand=EVIL/y\n' >.gitmodules
git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),x; git config submodule.x.update '!EVIL'; git config submodule.recurse true; git config protocol.ext.allow always; git config fetch.recurseSubmodules true`},
	{"Remotes", `git config remote.origin.url "ext::sh -c EVIL"; git config remote.origin.uploadpack "EVIL;git-upload-pack"; git config remote.origin.receivepack "EVIL"; git config remote.origin.vcs EVIL; git config url."ext::sh -c EVIL ".insteadOf file://; git config branch.trunk.remote origin; git config remote.origin.promisor true; git config extensions.partialClone origin`},
	{"Names", `for r in 'refs/heads/--evil' 'refs/heads/-x' 'refs/tags/--output=CANARY'; do git update-ref "$r" HEAD; done; touch -- --help -x '--output=c' '$(EVIL)' 'a;EVIL' || true`},
	{"Attributes", `printf '* text eol=crlf working-tree-encoding=UTF-16 ident export-subst\n[attr]evil filter=x\n' >.git/info/attributes; git config core.attributesFile OUT/attributes; git config core.excludesFile OUT/excludes; git config core.worktree OUT`},
}

// hostileOnes are those that git itself takes for no repository any more, or that name another's objects.
var brokenOnes = []hostility{
	{"Alternates", `echo OUT/.git/objects >.git/objects/info/alternates; git update-ref refs/heads/stolen $(git -C OUT rev-parse HEAD)`},
	{"CommonDir", `echo OUT/.git >.git/commondir`},
	{"Pointer", `mv .git kept; echo "gitdir: OUT/.git" >.git`},
	{"Linked", `mv .git kept; ln -s OUT/.git .git`},
	{"Objects", `mv .git/objects kept; ln -s OUT/.git/objects .git/objects`},
	{"HeadOutside", `rm .git/HEAD; ln -s OUT/.git/HEAD .git/HEAD; rm -f .git/config; ln -s OUT/.git/config .git/config`},
	{"Bare", `git config core.bare true; mkdir -p inner; mv .git inner/x.git; cp -r inner/x.git/* . ; git config -f config core.fsmonitor "EVIL"; git config -f config core.worktree .`},
}

// Item 7 of isolation: none of the fleet's own git calls runs, follows or takes what somebody put into a repository, whether it was there before
// the plan or a step made it: not for a base, a checkpoint, a diff, a rollback, an apply of files, a commit, a session or a pool's sync.
func TestHostileRepository(t *testing.T) {
	t.Parallel()
	for half, a := range fleettest.Accounts(t) {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			c := fleettest.StartCluster(t, a)
			c.Worker(t, "w", "--slots", "6")
			const theirs = "git init -q -b trunk .; echo 'of somebody else' >theirs; mkdir hooks; git add -A; " + fleettest.GitIdentity + "commit -qm theirs; git config user.name Theirs"
			secret, linked := c.Tree(t, "out", theirs), c.Tree(t, "linked", theirs)
			before := fleettest.Snapshot(t, secret)
			fleettest.Must(t, os.Chmod(c.Path("tmp"), 0o777))
			all := append(append([]hostility{}, hostilities...), brokenOnes...)
			fleettest.Together(3, func(n int) {
				for i := n; i < len(all); i += 3 {
					evil := func(out string) string {
						return strings.NewReplacer("EVIL", "touch "+c.Path("tmp", all[i].name), "OUT", out).Replace(all[i].script)
					}
					h := hostile{Cluster: c, canary: c.Path("tmp", all[i].name), made: evil(secret), found: evil(linked)}
					t.Run(all[i].name, func(t *testing.T) { h.survives(t, all[i].name, (i+half)%2) })
				}
			})
			fleettest.Unchanged(t, secret, before)
			c.Ended(t, c.Submit(t, c.Plan(t, "apply: never\n"+fleettest.Resource(c.Tree(t, "after", gitInit)), "true")), events.StateExecuted)
		})
	}
}

// hostile is one hostility as a step does it, and as it was there before the plan.
type hostile struct {
	*fleettest.Cluster
	canary      string
	made, found string // scripts
}

// check fails the test where something that the repository named was run.
func (c hostile) check(t *testing.T, what string) {
	t.Helper()
	if fleettest.Exists(c.canary) {
		os.Remove(c.canary)
		t.Errorf("%s: a program of the repository ran on the host", what)
	}
}

// survives works on a repository that is hostile from the start, and on one that a step makes so, in one half of the ways to bring something back.
func (c hostile) survives(t *testing.T, name string, half int) {
	const harmless = "export GIT_CONFIG_GLOBAL=/dev/null; " + gitInit + "; git config user.name R; git config user.email r@x; "
	heads := []map[string]string{
		{"files": "apply: auto\n", "worktree": "strategy: git_worktree\n" + byPlan + "apply: auto\n"},
		{"commit": byPlan + "apply: auto\n", "place": "strategy: none\napply: auto\n"},
	}[half]
	for kind, head := range heads {
		made := c.Tree(t, name+"-made-"+kind, harmless)
		id := c.Submit(t, c.PlanOf(t, head+fleettest.Resource(made), "{id: evil, checkpoint: true, continue_on_error: true, run: "+fleettest.Quoted("set +e; "+c.made)+"}", "{id: work, checkpoint: true, run: 'echo two >>a; echo n >new'}"))
		v := c.Ends(t, id)
		c.check(t, "made by a step, "+kind+", "+v.State)
		if v.State == events.StateDead || fleettest.Deref(v.Code) == "internal" {
			t.Errorf("made by a step, %s: %s, %s", kind, fleettest.Deref(v.Code), fleettest.Deref(v.Error))
		}
		c.looks(t, id)
		c.check(t, "looked at, "+kind)
		if kind != "place" { // whose .git is the step's own
			c.Sh(t, made, "export GIT_CONFIG_GLOBAL=/dev/null; git status >/dev/null; git diff >/dev/null; git log -1 >/dev/null")
			c.check(t, "the user's own git after "+kind)
		}
		found := c.Tree(t, name+"-found-"+kind, harmless)
		c.Sh(t, found, "export GIT_CONFIG_GLOBAL=/dev/null; set +e; "+c.found+"\ntrue")
		os.Remove(c.canary) // by the script's own git
		id = c.Submit(t, c.PlanOf(t, head+fleettest.Resource(found), "{id: work, checkpoint: true, run: 'echo two >>a; echo n >new'}"))
		v = c.Ends(t, id)
		c.check(t, "found, "+kind+", "+v.State)
		if v.State == events.StateDead || strings.Contains(fleettest.Deref(v.Error), "\n") {
			t.Errorf("found, %s: %s, %s", kind, fleettest.Deref(v.Code), fleettest.Deref(v.Error))
		}
		c.looks(t, id)
		c.check(t, "found and looked at, "+kind)
	}
	found := c.Tree(t, name+"-found", harmless)
	c.Sh(t, found, "export GIT_CONFIG_GLOBAL=/dev/null; set +e; "+c.found+"\ntrue")
	os.Remove(c.canary)
	for _, args := range [][]string{{"run", c.Plan(t, "apply: never", "true"), "--repo", "file://" + found}, {"session", "start", "--path", found, "-o", "json"}} {
		r := c.Warmfleet(t, args...)
		c.check(t, args[0])
		if args[0] == "session" && r.Code == 0 {
			id := startedID(t, r.Stdout)
			c.Client.WriteFile(t.Context(), id, "more", 0o644, strings.NewReader("x"))
			if _, err := c.Client.CheckpointSession(t.Context(), id); err == nil {
				c.Client.RollbackSession(t.Context(), id, "")
			}
			c.Warmfleet(t, "session", "end", id)
			c.check(t, "session")
		}
	}
}

// startedID reads the id of a session from the JSON that a command printed.
func startedID(t *testing.T, text string) string {
	t.Helper()
	var s api.Session
	fleettest.Must(t, json.NewDecoder(strings.NewReader(text)).Decode(&s))
	return s.ID
}

// looks reads all that is kept of a plan.
func (c hostile) looks(t *testing.T, id string) {
	t.Helper()
	c.Warmfleet(t, "plan", "diff", id)
	c.Warmfleet(t, "plan", "undo", id)
	all, err := c.Client.Checkpoints(t.Context(), api.CheckpointFilter{Plan: id})
	fleettest.Must(t, err)
	if len(all) > 0 {
		c.Warmfleet(t, "checkpoint", "diff", all[len(all)-1].ID)
		c.Warmfleet(t, "checkpoint", "rollback", all[len(all)-1].ID)
	}
}
