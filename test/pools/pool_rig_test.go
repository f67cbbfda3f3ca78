package pools

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// rig is a fleet, and what tests of pools ask of it.
type rig struct{ *fleettest.Cluster }

// startRig starts a fleet without workers.
func startRig(t testing.TB, a fleettest.Account) *rig {
	t.Helper()
	return &rig{fleettest.StartCluster(t, a)}
}

// upstream is a bare repository, and a clone of it that pushes.
type upstream struct {
	*fleettest.Place
	bare, work string
}

// upstream makes a bare repository below work with a script that runs in its clone on branch trunk, which is then committed.
func (c *rig) upstream(t testing.TB, name, script string) *upstream {
	t.Helper()
	dir := c.Tree(t, name, "git init -q --bare -b trunk r.git; git init -q -b trunk work; git -C work remote add origin ../r.git")
	u := &upstream{c.Place, filepath.Join(dir, "r.git"), filepath.Join(dir, "work")}
	u.push(t, script)
	return u
}

// push runs a script in the clone, commits what there is, pushes the branch, and returns the commit.
func (u *upstream) push(t testing.TB, script string) string {
	t.Helper()
	return strings.TrimSpace(u.Sh(t, u.work, script+"\ngit add -A; "+fleettest.GitIdentity+"commit -q --allow-empty -m change; git push -qf origin HEAD; git rev-parse HEAD"))
}

// url is the repository as a pool names it.
func (u *upstream) url() string { return "file://" + u.bare }

// poolFile writes a pool file of a repository; more are its other keys, each on a line.
func (c *rig) poolFile(t testing.TB, name, repo, more string) string {
	t.Helper()
	file := c.Path("home", "pool-"+name+".yaml")
	c.Write(t, file, fmt.Sprintf("version: 1\nname: %s\nresource: {repo: %s}\n%s\n", name, fleettest.Quoted(repo), more))
	return file
}

// pool applies a pool of a repository that is synced at each claim, and has it built.
func (c *rig) pool(t testing.TB, name, repo, more string) {
	t.Helper()
	c.Do(t, "warmfleet", "pool", "apply", c.poolFile(t, name, repo, "max_staleness: 0s\n"+more))
}

// shown is a pool as `pool show` has it.
func (c *rig) shown(t testing.TB, name string) api.Pool {
	t.Helper()
	var p api.Pool
	fleettest.Must(t, json.Unmarshal([]byte(c.Do(t, "warmfleet", "pool", "show", name, "-o", "json")), &p))
	return p
}

// pools waits until a pool is as wanted.
func (c *rig) pools(t testing.TB, name, what string, wanted func(api.Pool) bool) api.Pool {
	t.Helper()
	var p api.Pool
	defer func() {
		if t.Failed() {
			t.Logf("pool %s: state %s, %d of %d warm, error %q, workers %+v", name, p.State, p.Warm, p.TargetSize, p.Error, p.Workers)
		}
	}()
	fleettest.Eventually(t, "pool "+name+": "+what, func() bool {
		var err error
		if p, err = c.Client.Pool(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		return wanted(p)
	})
	return p
}

// warm waits until so many sandboxes of a pool idle, and nothing is wrong with it.
func (c *rig) warm(t testing.TB, name string, n int) api.Pool {
	t.Helper()
	return c.pools(t, name, fmt.Sprint(n, " warm"), func(p api.Pool) bool { return p.Warm == n && p.State == "ready" && p.Error == "" })
}

// says waits until a pool's error has a text.
func (c *rig) says(t testing.TB, name, text string) api.Pool {
	t.Helper()
	return c.pools(t, name, "error "+text, func(p api.Pool) bool { return strings.Contains(p.Error, text) })
}

// planIn is the head of a plan that takes a sandbox of a pool and applies nothing.
func planIn(pool string) string { return "apply: never\npool: " + pool + "\n" }

// ran runs a plan of one step to its end and returns what the step printed, and the plan's claim.
func (c *rig) ran(t testing.TB, head, script string) (printed string, claim events.Data) {
	t.Helper()
	return c.printed(t, c.Submit(t, c.Plan(t, head, script)))
}

// printed waits until a plan is executed and returns what its steps printed, and its last claim.
func (c *rig) printed(t testing.TB, id string) (printed string, claim events.Data) {
	t.Helper()
	c.Ended(t, id, events.StateExecuted)
	for _, r := range c.Records(t, id) {
		if r.Event.Kind() == events.TypeClaimed {
			claim = r.Event.Data
		}
	}
	return c.Do(t, "warmfleet", "plan", "logs", id), claim
}

// failed waits until a plan fails and returns its code and error, which is one line.
func (c *rig) failed(t testing.TB, id string) (code, text string) {
	t.Helper()
	v := c.Ended(t, id, events.StateFailed)
	if code, text = fleettest.Deref(v.Code), fleettest.Deref(v.Error); strings.Contains(text, "\n") || text == "" {
		t.Errorf("plan %s: error %q, want one line", id, text)
	}
	return code, text
}

// leavings is what a worker has left that only what runs may have: directories of open sandboxes, half-made mirrors and mounts.
func leavings(t testing.TB, state string) []string {
	t.Helper()
	left := fleettest.Unfinished(t, state)
	for _, pattern := range []string{"repos/mirrors/*/*.new", "repos/mirrors/*/*.old", "repos/*.tmp*"} {
		files, err := filepath.Glob(filepath.Join(state, "worker", pattern))
		fleettest.Must(t, err)
		left = append(left, files...)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	fleettest.Must(t, err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, state+"/") {
			left = append(left, "mount "+strings.TrimSpace(line))
		}
	}
	slices.Sort(left)
	return left
}

// descendants are the processes that a process started, and theirs, as links that end with them.
func descendants(t testing.TB, pid int) (found []string) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	fleettest.Must(t, err)
	for _, file := range files {
		b, _ := os.ReadFile(file) // a thread that has ended has none
		for _, child := range strings.Fields(string(b)) {
			n, err := strconv.Atoi(child)
			fleettest.Must(t, err)
			found = append(append(found, "/proc/"+child), descendants(t, n)...)
		}
	}
	return found
}

// bareState is what a plan must never change of a bare repository.
func bareState(t testing.TB, u *upstream) string {
	t.Helper()
	return u.Sh(t, u.bare, "git for-each-ref; git symbolic-ref HEAD; git worktree list --porcelain; cat config; ls hooks .")
}
