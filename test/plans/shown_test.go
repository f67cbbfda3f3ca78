package plans

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/test/fleettest"
)

// What --expose shows is read-only and nothing more: links out of it lead nowhere.
func TestExpose(t *testing.T) {
	t.Parallel()
	for _, a := range fleettest.Accounts(t) {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			c := fleettest.StartCluster(t, a)
			shown := c.Tree(t, "a path with spaces", "echo shown >file; mkdir sub; ln -s ../hidden/secret out; ln -s "+c.Path("work", "hidden", "secret")+" abs; ln -s file in")
			c.Tree(t, "hidden", "echo secret >secret")
			link := c.Path("work", "link")
			fleettest.Must(t, os.Symlink(shown, link))
			dir := c.Tree(t, "d", "mkdir inner; echo base >inner/f")
			c.Worker(t, "w", "--expose", shown, "--expose", link, "--expose", filepath.Join(dir, "inner"))
			v := c.Warmfleet(t, "run", c.Plan(t, "apply: never",
				"cat '"+shown+"/in' '"+link+"/file'",
				"! cat '"+shown+"/out' 2>/dev/null; ! cat '"+shown+"/abs' 2>/dev/null; ! ls '"+filepath.Dir(shown)+"/hidden' 2>/dev/null",
				"! touch '"+shown+"/new' 2>/dev/null; ! touch '"+link+"/sub/new' 2>/dev/null; ! rm '"+shown+"/file' 2>/dev/null; ! chmod 777 '"+shown+"/file' 2>/dev/null",
				// What lies in the plan's own directory is shown as it is; the workspace has a copy.
				"echo mine >inner/f; cat "+filepath.Join(dir, "inner", "f"),
			), "--path", dir, "-o", "json").Exits(t, 0).View(t)
			if got := c.Do(t, "warmfleet", "plan", "logs", v.ID); got != "shown\nshown\nbase\n" {
				t.Errorf("output %q", got)
			}
		})
	}
}

// What can't be shown is told at the start, by the flag.
func TestExpose_Refused(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	dir := c.Tree(t, "d", "echo x >f")
	file := c.Plan(t, "apply: never", "true")
	for _, bad := range []struct{ flag, value, says string }{
		{"--expose", c.Path("none"), "name a directory that exists"},
		{"--expose", filepath.Join(dir, "f"), "is not a directory"},
		{"--expose", "/etc", "the sandbox's own"},
		{"--expose", "/proc/self", "the sandbox's own"},
		{"--expose", "/", "below /"},
		{"--expose", "/run", "of the sandbox's own"},
		{"--cache", "npm", "write NAME=DIR"},
		{"--cache", "NPM=" + dir, "is not the name of a cache"},
		{"--cache", "../x=" + dir, "is not the name of a cache"},
		{"--cache", "npm=" + c.Path("none"), "name a directory that exists"},
	} {
		for _, args := range [][]string{
			{"warmfleet", "run", file, "--path", dir, "--state-dir", c.Path("own")}, {"warmfleet", "up", "--state-dir", c.Path("own")}, {"worker", "--name", "w", "--state-dir", c.Path("w")},
		} {
			r := c.Run(t, args[0], append(args[1:], bad.flag, bad.value)...).Exits(t, 2)
			if !strings.Contains(r.Stderr, bad.says) || !strings.Contains(r.Stderr, bad.flag) || strings.Count(strings.TrimSpace(r.Stderr), "\n") > 0 {
				t.Errorf("%s %s: %q, want one line with %q", args[0], bad.flag+" "+bad.value, r.Stderr, bad.says)
			}
		}
	}
}

// A sandbox sees what a cache had, keeps what it writes there to itself, and can't change
// the cache, or what another sandbox sees.
func TestCache(t *testing.T) {
	t.Parallel()
	for _, a := range fleettest.Accounts(t) {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			c := fleettest.StartCluster(t, a)
			cache := c.Tree(t, "a cache", "echo good >entry; mkdir sub; echo deep >sub/entry")
			before := fleettest.Snapshot(t, cache)
			c.Worker(t, "w", "--cache", "npm="+cache, "--cache", "my-own="+cache)
			dir := c.Tree(t, "d", "echo x >f")
			poison := c.Warmfleet(t, "run", c.Plan(t, "apply: never",
				`echo "$npm_config_cache $WARMFLEET_CACHE_NPM $WARMFLEET_CACHE_MY_OWN"; cat /cache/npm/entry`,
				"echo poison >/cache/npm/entry; rm -r /cache/npm/sub; mv /cache/npm/entry /cache/npm/moved; touch /cache/npm/new; chmod 4755 /cache/npm/new; cat /cache/my-own/entry",
				"cat /cache/npm/moved; ls /cache/npm", // steps of one plan share it
			), "--path", dir, "-o", "json").Exits(t, 0).View(t)
			if got, want := c.Do(t, "warmfleet", "plan", "logs", poison.ID), "/cache/npm /cache/npm /cache/my-own\ngood\ngood\npoison\nmoved\nnew\n"; got != want {
				t.Errorf("first plan: output %q, want %q", got, want)
			}
			fleettest.Unchanged(t, cache, before)
			next := c.Warmfleet(t, "run", c.Plan(t, "apply: never", "cat /cache/npm/entry /cache/npm/sub/entry; ls /cache/npm"), "--path", dir, "-o", "json").Exits(t, 0).View(t)
			if got, want := c.Do(t, "warmfleet", "plan", "logs", next.ID), "good\ndeep\nentry\nsub\n"; got != want {
				t.Errorf("next plan: output %q, want %q", got, want)
			}
			full := c.Warmfleet(t, "run", c.PlanOf(t, "apply: never\nlimits: {disk_gb: 0.02}", `{timeout: 20s, run: "head -c 60M /dev/zero >/cache/npm/fill; sleep 60"}`), "--path", dir, "-o", "json").Exits(t, 3).View(t)
			if got := fleettest.Deref(full.Steps[0].Cause); got != "disk" {
				t.Errorf("filling a cache: cause %q, want disk", got)
			}
			// What was written goes with the inits; those that wait for a plan have empty directories.
			fleettest.Eventually(t, "the end of private copies", func() bool {
				left, err := filepath.Glob(c.Path("w", "worker", "caches", "*", "*", "upper", "*"))
				return err == nil && len(left) == 0
			})
		})
	}
}
