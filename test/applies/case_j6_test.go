package applies

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// j6Name is a name of a person, and whether git can hold it.
type j6Name struct {
	text string
	good bool
}

func j6Names() []j6Name {
	return []j6Name{
		{"O'Neil", true},
		{`A "B" C`, true},
		{"$(touch CANARY)", true},
		{"`touch CANARY`", true},
		{`back\slash`, true},
		{"a; touch CANARY #", true},
		{"; touch", false},
		{"Zoë 李", true},
		{"-c core.pager=x", true},
		{" leading", false},
		{"trailing ", false},
		{"", false},
		{"...", false},
		{"two\nlines", false},
		{"a<b>", false},
		{"nul\x00", false},
	}
}

// j6Branches are names of branches; that of a name that is not legal ends in .lock.
func j6Branches() []string {
	return []string{"a->b", "it's", "feat/#1", "a&b", "ü", strings.Repeat("b", 200), "$(touch${IFS}CANARY)", "`touch`", ";id", `"q"`, "{x}", "a.lock"}
}

// Case J6. Names of people and branches are data wherever they go: the commit shows them exactly, or they are refused before
// anything runs.
func TestCase_J6(t *testing.T) {
	t.Parallel()
	for _, a := range fleettest.Accounts(t) {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			c := fleettest.StartCluster(t, a)
			c.Worker(t, "w")
			t.Run("Names", func(t *testing.T) { namesAsTheyAre(t, c) })
			t.Run("Branches", func(t *testing.T) { branchesAsTheyAre(t, c) })
			if got := c.Sh(t, c.Dir, "find . /tmp -maxdepth 6 -name CANARY 2>/dev/null || true"); got != "" {
				t.Errorf("a name was run: %s", got)
			}
		})
	}
}

// oddPlan is the JSON of a plan, as no quoting of YAML could change what is tried.
func oddPlan(t *testing.T, p *fleettest.Place, fields map[string]any) string {
	t.Helper()
	fields["version"], fields["name"], fields["apply"] = 1, "odd", "auto"
	fields["steps"] = []map[string]string{{"run": "git var GIT_AUTHOR_IDENT | sed 's/ <.*//' || true; echo x >x"}}
	b, err := json.Marshal(fields)
	fleettest.Must(t, err)
	file := filepath.Join(p.Dir, "work", events.NewID()+".json")
	p.Write(t, file, string(b))
	return file
}

func namesAsTheyAre(t *testing.T, c *fleettest.Cluster) {
	dir := c.Tree(t, "names", gitInit)
	for i, n := range j6Names() {
		branch := "b" + string(rune('a'+i))
		file := oddPlan(t, c.Place, map[string]any{
			"resource": map[string]string{"path": dir}, "identity": map[string]string{"name": n.text, "email": "o'neil+x@example.com"},
			"commit": map[string]string{"message": n.text + " did it", "branch": branch},
		})
		session := c.Warmfleet(t, "session", "start", "--path", dir, "--user", strings.TrimSuffix(n.text, "\x00"), "--email", "o'neil+x@example.com", "-o", "name")
		if !n.good {
			c.Warmfleet(t, "submit", file).Exits(t, 2)
			if session.Code != 2 && n.text != "" && !strings.HasSuffix(n.text, "\x00") { // no name is no identity
				t.Errorf("session of %q: exit code %d", n.text, session.Code)
			}
			if got := c.Sh(t, dir, "git for-each-ref refs/heads/"+branch); got != "" {
				t.Errorf("%q: there is %s", n.text, got)
			}
			continue
		}
		id := c.Submit(t, file)
		c.Ended(t, id, events.StateApplied)
		if got, want := c.Sh(t, dir, "git log -1 --format='%an|%ae|%cn|%ce' "+branch), n.text+"|o'neil+x@example.com|"+n.text+"|o'neil+x@example.com\n"; got != want {
			t.Errorf("commit: got %q, want %q", got, want)
		}
		if got := c.Do(t, "warmfleet", "plan", "logs", id); got != n.text+"\n" {
			t.Errorf("git in a step: got %q, want %q", got, n.text)
		}
		exec := c.Warmfleet(t, "session", "exec", strings.TrimSpace(session.Exits(t, 0).Stdout), "--", "sh", "-c", "git -c commit.gpgsign=false commit -q --allow-empty -m x && git log -1 --format=%an")
		if exec.Code != 0 || exec.Stdout != n.text+"\n" {
			t.Errorf("commit in a session: got %q, %s, want %q", exec.Stdout, exec.Stderr, n.text)
		}
		c.Do(t, "warmfleet", "session", "end", strings.TrimSpace(session.Stdout))
	}
}

func branchesAsTheyAre(t *testing.T, c *fleettest.Cluster) {
	top := c.Tree(t, "branches", fleettest.RemoteScript)
	dir, remote := filepath.Join(top, "user"), filepath.Join(top, "r.git")
	for _, branch := range j6Branches() {
		commit := map[string]string{"message": "by plan", "branch": branch}
		legal := !strings.HasSuffix(branch, ".lock")
		for kind, fields := range map[string]map[string]any{
			"path":   {"resource": map[string]string{"path": dir}, "commit": commit},
			"remote": {"resource": map[string]string{"repo": "file://" + remote}, "commit": commit},
			"ref":    {"resource": map[string]string{"repo": "file://" + remote, "ref": branch}},
		} {
			if kind == "ref" && legal {
				c.Do(t, "git", "-C", remote, "update-ref", "refs/heads/"+branch, "refs/heads/trunk")
			} else if kind == "remote" && legal {
				c.Do(t, "git", "-C", remote, "update-ref", "-d", "refs/heads/"+branch)
			}
			fields["identity"] = map[string]string{"name": "P", "email": "p@example.com"}
			file := oddPlan(t, c.Place, fields)
			if !legal {
				c.Warmfleet(t, "submit", file).Exits(t, 2)
				continue
			}
			id := c.Submit(t, file)
			v := c.Ended(t, id, events.StateApplied)
			repo := map[string]string{"path": dir}[kind]
			if repo == "" {
				repo = remote
			}
			if got := strings.TrimSpace(c.Do(t, "git", "-C", repo, "rev-parse", "--verify", "refs/heads/"+branch)); v.Commit == nil || got != v.Commit.ID || v.Commit.Branch != branch {
				t.Errorf("%s: branch %q is at %s, the plan says %+v", kind, branch, got, v.Commit)
			}
		}
	}
}
