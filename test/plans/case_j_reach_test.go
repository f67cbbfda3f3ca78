package plans

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// Case J2: what a step has in its environment is a list that is known, and a step that is let to the broker is nobody there.
func TestCase_J2_Broker(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	c.Worker(t, "w")
	dir := c.Tree(t, "j2", "echo a >a")
	server, err := url.Parse(strings.TrimPrefix(fleettest.ReadEnv(t, c.Path("ctl", "nats.env"))["NATS_URL"], "nats://"))
	if err != nil || server.Host == "" {
		server, err = url.Parse(fleettest.ReadEnv(t, c.Path("ctl", "nats.env"))["NATS_URL"])
		fleettest.Must(t, err)
	}
	publish := fmt.Sprintf(`exec 3<>/dev/tcp/%s/%s; printf 'CONNECT {"verbose":true}\r\nPUB fleet.submit.%s 2\r\n{}\r\nPING\r\n' >&3; timeout 5 cat <&3 || true`, server.Hostname(), server.Port(), events.NewID())
	id := c.Submit(t, c.PlanOf(t, "apply: never\nnetwork: allow\nenv: {MINE: 'yes'}\n"+fleettest.Resource(dir),
		`{id: env, run: "env | cut -d= -f1 | sort | tr '\\n' ' '"}`, `{id: find, run: "env | grep -i nats || true; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep -iE 'nats_|password' || true"}`,
		"{id: publish, run: "+fleettest.Quoted(publish)+"}"))
	c.Ended(t, id, events.StateExecuted)
	got := strings.Fields(c.Do(t, "warmfleet", "plan", "logs", id, "--step", "env"))
	known := strings.Fields(`DEBIAN_FRONTEND EDITOR GIT_ASKPASS GIT_EDITOR GIT_PAGER GIT_SEQUENCE_EDITOR GIT_SSH_COMMAND GIT_TERMINAL_PROMPT HOME LANG LOGNAME
		MINE PAGER PATH PWD SHELL SHLVL SSH_ASKPASS TERM TMPDIR USER VISUAL _`)
	slices.Sort(known)
	for _, name := range got {
		if _, found := slices.BinarySearch(known, name); !found {
			t.Errorf("%s is in a step's environment, and in no list", name)
		}
	}
	if !slices.Contains(got, "MINE") || !slices.Contains(got, "PATH") {
		t.Errorf("the environment is %q", got)
	}
	if got := c.Do(t, "warmfleet", "plan", "logs", id, "--step", "find"); got != "" {
		t.Errorf("a step finds %q", got)
	}
	if got := c.Do(t, "warmfleet", "plan", "logs", id, "--step", "publish"); !strings.Contains(got, "Authorization Violation") || strings.Contains(got, "PONG") {
		t.Errorf("the broker told a step %q, want it refused", got)
	}
}

// Case J4: what looks like an option or a script is a name or is refused, whichever way it comes: a plan's file, a message on the broker, a
// pool, a session, an id on the command line; and a remote that has such refs is worked on all the same.
func TestCase_J4_EveryWay(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	c.Worker(t, "w")
	canary := c.Path("work", "CANARY")
	run := "touch " + canary
	remote := c.Tree(t, "remote", `git init -q -b trunk .; echo a >a
git add .; `+fleettest.GitIdentity+`commit -qm one
for r in 'refs/heads/--evil' 'refs/heads/-x' 'refs/tags/--upload-pack=x' 'refs/heads/--output=CANARY' 'refs/heads/a;b' 'refs/heads/$(id)'; do git update-ref "$r" HEAD; done`)
	up := "file://" + remote
	t.Run("EvilRefs", func(t *testing.T) {
		for _, ref := range []string{"", "trunk", "refs/heads/--evil", "refs/tags/--upload-pack=x", "refs/heads/$(id)", "refs/heads/a;b"} {
			args := []string{"run", c.Plan(t, "apply: never", "cat a; git rev-parse -q --verify HEAD >/dev/null"), "--repo", up, "-o", "json"}
			if ref != "" {
				args = append(args, "--ref="+ref)
			}
			if r := c.Warmfleet(t, args...); r.Code != 0 && r.Code != 2 || r.Code != 0 && !strings.Contains(r.Stderr, "ref") {
				t.Errorf("ref %q: exit code %d, %s", ref, r.Code, r.Stderr)
			}
		}
		c.Do(t, "warmfleet", "pool", "apply", poolOf(t, c, "evil", up, ""))
		fleettest.Eventually(t, "a warm sandbox", func() bool {
			p, err := c.Client.Pool(t.Context(), "evil")
			return err == nil && p.Warm == 1
		})
	})
	refs := []string{"--upload-pack=" + run, "--output=" + canary, "-x", "$(" + run + ")", "trunk;" + run, "trunk\n" + run, "`" + run + "`"}
	urls := []string{"--config=core.fsmonitor=" + run, "-u" + run, "ext::sh -c '" + run + "'", "ext::" + run, "fd::17/x", "ssh://-oProxyCommand=" + run + "/x", "git@-oProxyCommand=" + run + ":x"}
	refused := func(what string, r fleettest.Result) {
		t.Helper()
		if r.Code == 0 || r.Code < 0 || strings.Contains(r.Stderr, "panic") {
			t.Errorf("%s: exit code %d, want a refusal\n%s%s", what, r.Code, r.Stdout, r.Stderr)
		}
		if fleettest.Exists(canary) {
			t.Fatalf("%s: it was run", what)
		}
	}
	for _, ref := range refs {
		refused("plan with ref "+ref, c.Warmfleet(t, "submit", c.Plan(t, "apply: never\nresource: {repo: "+fleettest.Quoted(up)+", ref: "+fleettest.Quoted(ref)+"}", "true")))
		refused("commit to branch "+ref, c.Warmfleet(t, "submit", c.Plan(t, "apply: auto\ncommit: {message: m, branch: "+fleettest.Quoted(ref)+"}\n"+fleettest.Resource(remote), "true")))
		refused("pool with ref "+ref, c.Warmfleet(t, "pool", "apply", poolOf(t, c, "p", up, ref)))
		refused("session with ref "+ref, c.Warmfleet(t, "session", "start", "--repo", up, "--ref="+ref))
		for verb, args := range map[string][]string{"show": {"plan", "show"}, "cancel": {"plan", "cancel"}, "logs": {"plan", "logs"}, "checkpoint": {"checkpoint", "show"}, "session": {"session", "end"}, "pool": {"pool", "show"}} {
			refused(verb+" "+ref, c.Warmfleet(t, append(args, "--", ref)...))
		}
	}
	for _, u := range urls {
		refused("plan of "+u, c.Warmfleet(t, "submit", c.Plan(t, "apply: never\nresource: {repo: "+fleettest.Quoted(u)+"}", "true")))
		refused("pool of "+u, c.Warmfleet(t, "pool", "apply", poolOf(t, c, "p", u, "")))
		refused("session of "+u, c.Warmfleet(t, "session", "start", "--repo="+u))
	}
	for _, id := range []string{"../../x", "-x", "a.b", "*", ">", "01ARZ3NDEKTSV4RRFFQ69G5FAV/../x"} {
		refused("id "+id, c.Warmfleet(t, "submit", c.Plan(t, "apply: never\n"+fleettest.Resource(remote), "true"), "--id="+id))
		refused("session id "+id, c.Warmfleet(t, "session", "start", "--path", remote, "--id="+id))
	}
	t.Run("Message", func(t *testing.T) { refusesMessages(t, c, refs, urls) })
	if fleettest.Exists(canary) {
		t.Error("a name was run")
	}
}

// poolOf writes the file of a pool.
func poolOf(t *testing.T, c *fleettest.Cluster, name, repo, ref string) string {
	t.Helper()
	text := "version: 1\nname: " + name + "\ntarget_size: 1\nresource: {repo: " + fleettest.Quoted(repo)
	if ref != "" {
		text += ", ref: " + fleettest.Quoted(ref)
	}
	file := c.Path("home", "pool.yaml")
	c.Write(t, file, text+"}\n")
	return file
}

// sessionOf reads a session from the JSON that a command printed.
func sessionOf(t *testing.T, text string) (s api.Session) {
	t.Helper()
	fleettest.Must(t, json.NewDecoder(strings.NewReader(text)).Decode(&s))
	return s
}

// refusesMessages publishes what no command line would send.
func refusesMessages(t *testing.T, c *fleettest.Cluster, refs, urls []string) {
	var resources []string
	for _, ref := range refs {
		resources = append(resources, `{"repo":"file:///r","ref":`+fleettest.Quoted(ref)+`}`)
	}
	for _, u := range urls {
		resources = append(resources, `{"repo":`+fleettest.Quoted(u)+`}`)
	}
	resources = append(resources, `{"path":"-x","host":"h"}`, `{"path":"../x","host":"h"}`, `{"path":"/x\ny","host":"--"}`)
	for _, r := range resources {
		id := events.NewID()
		body := `{"v":1,"type":"warmfleet.submit.v1","plan":{"version":1,"name":"x","apply":"never","resource":` + r + `,"steps":[{"run":"true"}]}}`
		_, err := c.Fleet.JetStream.Publish(t.Context(), c.Fleet.Subjects.Submit(id), []byte(body))
		fleettest.Must(t, err)
		if v := c.Ends(t, id); v.State != events.StateRejected {
			t.Errorf("%s: got state %s, want it rejected", r, v.State)
		}
	}
}

// Case J5: a session's file calls stay inside too, whatever links there are, also while a process of the sandbox swaps them.
func TestCase_J5_Session(t *testing.T) {
	t.Parallel()
	for _, a := range fleettest.Accounts(t) {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			c := fleettest.StartCluster(t, a)
			c.Worker(t, "w")
			out := c.Tree(t, "out", "echo old >victim")
			dir := c.Tree(t, "j5", `mkdir sub; echo old >sub/f; ln -s ../out/victim a; ln -s ../out/new b; ln -s .. d; ln -s /proc/self/cwd e; ln -s sub/f in; ln -s "`+out+`/victim" abs; ln -s / root`)
			before := fleettest.Snapshot(t, out)
			s := sessionOf(t, c.Do(t, "warmfleet", "session", "start", "--path", dir, "-o", "json"))
			for _, path := range []string{"a", "b", "d/out/victim", "d/x", "abs", "root" + out + "/victim", "./../x", "../out/victim", filepath.Join(out, "victim"), "e/../../x"} {
				var read bytes.Buffer
				for what, err := range map[string]error{
					"read": c.Client.ReadFile(t.Context(), s.ID, api.SessionRead{Path: path}, &read), "written": c.Client.WriteFile(t.Context(), s.ID, path, 0o644, strings.NewReader("changed")),
				} {
					if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "leads out of the workspace") &&
						!strings.Contains(err.Error(), "is not below /workspace") && !strings.Contains(err.Error(), "too many levels") {
						t.Errorf("%s: is %s: %v, want it refused by its name", path, what, err)
					}
				}
				if list, err := c.Client.ListFiles(t.Context(), s.ID, filepath.Dir(path)); err == nil && slices.ContainsFunc(list, func(e api.SessionEntry) bool { return e.Name == "victim" }) {
					t.Errorf("%s: the host's directory was listed", path)
				}
				fleettest.Unchanged(t, out, before)
			}
			fleettest.Must(t, c.Client.WriteFile(t.Context(), s.ID, "in", 0o644, strings.NewReader("new")))
			if got := c.Do(t, "warmfleet", "session", "exec", s.ID, "--", "cat", "sub/f"); got != "new" {
				t.Errorf("through a link inside: %q", got)
			}
			racingSession(t, c, s.ID, out)
			fleettest.Unchanged(t, out, before)
			c.Do(t, "warmfleet", "session", "end", s.ID)
			if got, err := os.ReadDir(c.Path("work")); err != nil || len(got) != 2 {
				t.Errorf("beside the trees: %v, %v", got, err)
			}
		})
	}
}

// Case J5: a plan's file steps refuse what leads out, by its name, before anything is changed.
func TestCase_J5_Refused(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	c.Worker(t, "w")
	dir := c.Tree(t, "j5", `mkdir sub; echo old >sub/f; ln -s ../out/victim a; ln -s ../out/new b; ln -s .. d; ln -s /proc/self/cwd e; ln -s sub/f in; ln -s / root; ln -s loop loop`)
	before := fleettest.Snapshot(t, dir)
	steps := func(path string) []string {
		return []string{
			"{continue_on_error: true, write_file: {path: " + fleettest.Quoted(path) + ", content: changed}}",
			"{continue_on_error: true, edit: {path: " + fleettest.Quoted(path) + ", old: old, new: changed}}",
			"{continue_on_error: true, patch: {diff: " + fleettest.Quoted("--- a/"+path+"\n+++ b/"+path+"\n@@ -1 +1 @@\n-old\n+changed\n") + "}}",
		}
	}
	leading := []string{"a", "b", "d/x", "d/j5/x", "e/x", "root/etc/x", "loop/x"}
	var all []string
	for _, path := range leading {
		all = append(all, steps(path)...)
	}
	id := c.Submit(t, c.PlanOf(t, "apply: auto\n"+fleettest.Resource(dir), all...))
	if v := c.Ended(t, id, events.StateApplied); fleettest.Deref(v.Changed) != 0 {
		t.Errorf("%d paths were changed", fleettest.Deref(v.Changed))
	}
	for _, r := range c.Records(t, id) {
		if d := r.Event.Data; r.Event.Kind() == events.TypeStepFinished && (d.State != events.StepFailed || !strings.Contains(d.Error, leading[*d.StepIndex/3])) {
			t.Errorf("%s: %s, %q; want it refused by its name", all[*d.StepIndex], d.State, d.Error)
		}
	}
	for _, path := range []string{"./../x", "../x", "/x", "sub/../../x"} {
		for i, step := range steps(path) {
			if i == 2 && path == "/x" {
				continue // a//x without its first part is x
			}
			if r := c.Warmfleet(t, "plan", "lint", c.PlanOf(t, "apply: auto\n"+fleettest.Resource(dir), step)); r.Code != 2 || !strings.Contains(r.Stderr, path) {
				t.Errorf("%s: exit code %d, %s", step, r.Code, r.Stderr)
			}
		}
	}
	fleettest.Untouched(t, dir, before)
}

// racingSession makes file calls while a detached process swaps a directory and a file for links that lead out.
func racingSession(t *testing.T, c *fleettest.Cluster, session, out string) {
	t.Helper()
	swapper := fmt.Sprintf(`mkdir real; echo inside >real/victim
while :; do rm -rf s; cp -r real s; rm -rf s; ln -s %[1]s s; rm -f f; echo inside >f; ln -sf %[1]s/victim f; ln -sfn ../../../../../../../..%[1]s u; rm -f u; mkdir u; rmdir u; done`, out)
	_, err := c.Client.ExecDetached(t.Context(), session, api.Exec{Argv: []string{"/bin/bash", "-c", swapper}})
	fleettest.Must(t, err)
	done := map[string]int{}
	for i := range 400 {
		name := []string{"s/victim", "f", "u/victim", "s/new"}[i%4]
		if c.Client.WriteFile(t.Context(), session, name, 0o644, strings.NewReader("changed")) == nil {
			done["written"]++
		}
		var read bytes.Buffer
		if c.Client.ReadFile(t.Context(), session, api.SessionRead{Path: name}, &read) == nil {
			done["read"]++
			if read.String() == "old\n" {
				t.Fatalf("%s: the host's file was read", name)
			}
		}
	}
	if done["written"] == 0 || done["read"] == 0 {
		t.Errorf("of 400 calls each: %v, want some that found the directory there", done)
	}
}
