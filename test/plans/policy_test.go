package plans

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// withoutNamespaces returns a function that runs a program where no user namespace can be made.
func withoutNamespaces(t testing.TB, p *fleettest.Place) func(name string, args ...string) fleettest.Result {
	t.Helper()
	if r := p.Run(t, "unshare", "-Ur", "sh", "-c", noNamespaces, "sh", "true"); r.Code != 0 {
		t.Skipf("namespaces cannot be forbidden here: %s", r.Stderr)
	}
	return func(name string, args ...string) fleettest.Result {
		return p.Run(t, "unshare", append([]string{"-Ur", "sh", "-c", noNamespaces, "sh", fleettest.Bin(t) + "/" + name}, args...)...)
	}
}

// The stricter of worker and plan counts where guarantees are missing; nothing that a
// project has in its files loosens what the worker requires.
func TestIsolation_StricterOfWorkerAndPlan(t *testing.T) {
	t.Parallel()
	p := fleettest.NewPlace(t, fleettest.Ordinary(t))
	within := withoutNamespaces(t, p)
	for _, c := range []struct {
		name, flag, plan string
		code             int
		says             string
	}{
		{"DefaultIsRequired", "", "", 10, "--isolation preferred"},
		{"PlanCannotLoosen", "", "isolation: preferred", 10, "--isolation preferred"},
		{"PlanCannotSwitchOff", "", "isolation: off", 2, "isolation"},
		{"FlagPreferred", "preferred", "", 0, "isolation: preferred: these do not hold here: writes, hidden_files"},
		{"FlagRequired", "required", "isolation: preferred", 10, "writes"},
		{"FlagCannotSwitchOff", "off", "", 2, "use required, preferred or strong"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := p.Tree(t, c.name, "echo x >f")
			before := fleettest.Snapshot(t, dir)
			args := []string{"run", p.Plan(t, "apply: never\n"+c.plan, "echo y >f"), "--path", dir, "--state-dir", p.Path("state-" + c.name)}
			if c.flag != "" {
				args = append(args, "--isolation", c.flag)
			}
			r := within("warmfleet", args...).Exits(t, c.code)
			if !strings.Contains(r.Stderr, c.says) {
				t.Errorf("stderr does not say %q:\n%s", c.says, r.Stderr)
			}
			fleettest.Unchanged(t, dir, before)
		})
	}
}

// A worker that was told to isolate nothing says so in everything it reports, and a plan
// that requires isolation does not run there.
func TestIsolation_Off(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	c.Worker(t, "w", "--isolation", "off")
	dir := c.Tree(t, "d", "echo x >f")
	fleettest.Must(t, os.WriteFile(c.Path("work", "outside"), []byte("outside"), 0o644))
	v := c.Warmfleet(t, "run", c.Plan(t, "apply: never", "cat "+c.Path("work", "outside")), "--path", dir, "-o", "json").Exits(t, 0).View(t)
	if fleettest.Deref(v.Isolation) != "bare" || v.Guarantees["writes"] != "absent" || !strings.Contains(strings.Join(v.Notes, "\n"), "--isolation off") {
		t.Errorf("isolation %s, guarantees %v, notes %q", fleettest.Deref(v.Isolation), v.Guarantees, v.Notes)
	}
	if got := c.Do(t, "warmfleet", "plan", "logs", v.ID); got != "outside" {
		t.Errorf("output %q, want what is outside: nothing hides it", got)
	}
	if got := c.Do(t, "warmfleet", "plan", "show", v.ID); !strings.Contains(got, "--isolation off") {
		t.Errorf("plan show does not say it:\n%s", got)
	}
	if r := c.Warmfleet(t, "run", c.Plan(t, "apply: never\nisolation: required", "true"), "--path", dir).Exits(t, 10); !strings.Contains(r.Stderr, "writes") || !strings.Contains(r.Stderr, "isolation: required") {
		t.Errorf("a plan that requires isolation: %s", r.Stderr)
	}
	if got := c.Do(t, "warmfleet", "worker", "ls"); !strings.Contains(got, "bare (off)") {
		t.Errorf("worker ls:\n%s", got)
	}
	var w events.Worker
	fleettest.Must(t, json.Unmarshal([]byte(c.Do(t, "warmfleet", "worker", "show", "w", "-o", "json")), &w))
	if w.Policy != "off" || w.Guarantees["writes"] != "absent" {
		t.Errorf("worker show: policy %q, guarantees %v", w.Policy, w.Guarantees)
	}
}

// What held is kept with the plan.
func TestIsolation_Recorded(t *testing.T) {
	t.Parallel()
	fleettest.EachAccount(t, func(t *testing.T, c *fleettest.Cluster) {
		disk := "best_effort"
		if _, err := os.Stat("/dev/loop-control"); err == nil && strings.HasSuffix(t.Name(), "/AsRoot") {
			disk = "enforced"
		}
		dir := c.Tree(t, "d", "echo x >f")
		v := c.Warmfleet(t, "run", c.Plan(t, "apply: never", "true"), "--path", dir, "-o", "json").Exits(t, 0).View(t)
		for _, name := range []string{"writes", "hidden_files", "tree_kill", "hidden_env", "network", "pids"} {
			if v.Guarantees[name] != "enforced" {
				t.Errorf("%s: %q", name, v.Guarantees[name])
			}
		}
		if v.Guarantees["disk"] != disk {
			t.Errorf("disk: got %q, want %q", v.Guarantees["disk"], disk)
		}
	})
}
