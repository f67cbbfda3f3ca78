package test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// withoutNamespaces returns a function that runs a program where no user namespace can be made.
func withoutNamespaces(t testing.TB, p *place) func(name string, args ...string) result {
	t.Helper()
	if r := p.run(t, "unshare", "-Ur", "sh", "-c", noNamespaces, "sh", "true"); r.code != 0 {
		t.Skipf("namespaces cannot be forbidden here: %s", r.stderr)
	}
	return func(name string, args ...string) result {
		return p.run(t, "unshare", append([]string{"-Ur", "sh", "-c", noNamespaces, "sh", bin(t) + "/" + name}, args...)...)
	}
}

// The stricter of worker and plan counts where guarantees are missing; nothing that a
// project has in its files loosens what the worker requires.
func TestIsolation_StricterOfWorkerAndPlan(t *testing.T) {
	t.Parallel()
	p := newPlace(t, ordinary(t))
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
		{"FlagCannotSwitchOff", "off", "", 2, "use required or preferred"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := p.tree(t, c.name, "echo x >f")
			before := snapshot(t, dir)
			args := []string{"run", p.plan(t, "apply: never\n"+c.plan, "echo y >f"), "--path", dir, "--state-dir", p.path("state-" + c.name)}
			if c.flag != "" {
				args = append(args, "--isolation", c.flag)
			}
			r := within("warmfleet", args...).exits(t, c.code)
			if !strings.Contains(r.stderr, c.says) {
				t.Errorf("stderr does not say %q:\n%s", c.says, r.stderr)
			}
			unchanged(t, dir, before)
		})
	}
}

// A worker that was told to isolate nothing says so in everything it reports, and a plan
// that requires isolation does not run there.
func TestIsolation_Off(t *testing.T) {
	t.Parallel()
	c := startCluster(t, ordinary(t))
	c.worker(t, "w", "--isolation", "off")
	dir := c.tree(t, "d", "echo x >f")
	must(t, os.WriteFile(c.path("work", "outside"), []byte("outside"), 0o644))
	v := c.warmfleet(t, "run", c.plan(t, "apply: never", "cat "+c.path("work", "outside")), "--path", dir, "-o", "json").exits(t, 0).view(t)
	if deref(v.Isolation) != "bare" || v.Guarantees["writes"] != "absent" || !strings.Contains(strings.Join(v.Notes, "\n"), "--isolation off") {
		t.Errorf("isolation %s, guarantees %v, notes %q", deref(v.Isolation), v.Guarantees, v.Notes)
	}
	if got := c.do(t, "warmfleet", "plan", "logs", v.ID); got != "outside" {
		t.Errorf("output %q, want what is outside: nothing hides it", got)
	}
	if got := c.do(t, "warmfleet", "plan", "show", v.ID); !strings.Contains(got, "--isolation off") {
		t.Errorf("plan show does not say it:\n%s", got)
	}
	if r := c.warmfleet(t, "run", c.plan(t, "apply: never\nisolation: required", "true"), "--path", dir).exits(t, 10); !strings.Contains(r.stderr, "writes") || !strings.Contains(r.stderr, "isolation: required") {
		t.Errorf("a plan that requires isolation: %s", r.stderr)
	}
	if got := c.do(t, "warmfleet", "worker", "ls"); !strings.Contains(got, "bare (off)") {
		t.Errorf("worker ls:\n%s", got)
	}
	var w events.Worker
	must(t, json.Unmarshal([]byte(c.do(t, "warmfleet", "worker", "show", "w", "-o", "json")), &w))
	if w.Policy != "off" || w.Guarantees["writes"] != "absent" {
		t.Errorf("worker show: policy %q, guarantees %v", w.Policy, w.Guarantees)
	}
}

// What held is kept with the plan.
func TestIsolation_Recorded(t *testing.T) {
	t.Parallel()
	eachAccount(t, func(t *testing.T, c *cluster) {
		dir := c.tree(t, "d", "echo x >f")
		v := c.warmfleet(t, "run", c.plan(t, "apply: never", "true"), "--path", dir, "-o", "json").exits(t, 0).view(t)
		for _, name := range []string{"writes", "hidden_files", "tree_kill", "hidden_env", "network", "pids"} {
			if v.Guarantees[name] != "enforced" {
				t.Errorf("%s: %q", name, v.Guarantees[name])
			}
		}
		if v.Guarantees["disk"] != "best_effort" {
			t.Errorf("disk: %q", v.Guarantees["disk"])
		}
	})
}
