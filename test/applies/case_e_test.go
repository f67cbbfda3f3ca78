package applies

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

var copying = []string{"copy_on_write", "git_worktree"}

const e1Script = `
git init -q -b trunk .
for f in a b e; do echo base >$f; done; echo d >.gitignore; git add -A; ` + fleettest.GitIdentity + `commit -qm one`

// e1User is what the user has not committed.
const e1User = "echo mine >a; echo staged >b; git add b; echo untracked >c; echo ignored >d"

func TestCase_E1(t *testing.T) {
	t.Parallel()
	fleettest.EachAccount(t, func(t *testing.T, c *fleettest.Cluster) {
		for _, strategy := range copying {
			for _, plan := range []struct {
				name, script string
				conflicts    []string
			}{
				{"OtherFile", "echo plan >e", nil},
				{"ModifiedFile", "echo plan >a; echo plan >e", []string{"a"}},
				{"StagedFile", "echo plan >b; echo plan >e", []string{"b"}},
				{"UntrackedFile", "echo plan >c; echo plan >e", []string{"c"}},
				{"IgnoredFile", "echo plan >d; echo plan >e", []string{"d"}},
				{"All", "for f in a b c d e; do echo plan >$f; done", []string{"a", "b", "c", "d"}},
				{"EqualUntrackedFile", "echo untracked >c; echo plan >e", nil},
			} {
				t.Run(strategy+"/"+plan.name, func(t *testing.T) {
					keepsUncommitted(t, c, strategy, plan.script, plan.conflicts)
				})
			}
		}
	})
}

// keepsUncommitted lets the user work while the plan waits for approval.
func keepsUncommitted(t *testing.T, c *fleettest.Cluster, strategy, script string, conflicts []string) {
	dir := c.Tree(t, strings.ReplaceAll(t.Name(), "/", "-"), e1Script)
	file := c.Plan(t, "apply: manual\nstrategy: "+strategy+"\n"+fleettest.Resource(dir), script)
	id := c.Submit(t, file)
	c.Until(t, id, "awaiting approval", fleettest.IsType(events.TypeAwaitingApproval))
	c.Sh(t, dir, e1User)
	before, state := fleettest.Snapshot(t, dir), c.GitState(t, dir)
	c.Do(t, "warmfleet", "plan", "approve", "--detach", id)
	v := c.Ends(t, id)
	if after := c.GitState(t, dir); after != state {
		t.Errorf("the repository was\n%s\nand is\n%s", state, after)
	}
	if conflicts != nil {
		if v.State != events.StateConflict {
			t.Errorf("got state %s, want conflict", v.State)
		}
		if d := cmp.Diff(conflicts, paths(v)); d != "" {
			t.Errorf("conflicts (-want +got):\n%s", d)
		}
		fleettest.Untouched(t, dir, before)
		return
	}
	if v.State != events.StateApplied {
		t.Fatalf("got state %s, want applied\n%s", v.State, c.Story(t, id))
	}
	if got, want := c.Sh(t, dir, "cat a b c d e"), "mine\nstaged\nuntracked\nignored\nplan\n"; got != want {
		t.Errorf("a, b, c, d, e: got %q, want %q", got, want)
	}
}

// paths are the conflicting paths of a plan, in order.
func paths(v events.View) []string {
	var out []string
	for _, c := range v.Conflicts {
		out = append(out, c.Path)
	}
	slices.Sort(out)
	return out
}

func TestCase_E2(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	c.Worker(t, "wa")
	c.Worker(t, "wb")
	for _, strategy := range copying {
		t.Run(strategy, func(t *testing.T) { t.Run("OneAfterTheOther", func(t *testing.T) { secondConflicts(t, c, strategy) }) })
		t.Run(strategy+"/AtOnce", func(t *testing.T) { oneWins(t, c, strategy) })
		t.Run(strategy+"/OtherFile", func(t *testing.T) { bothApply(t, c, strategy) })
	}
}

// twoPlans runs two plans from one base to where they wait for approval.
func twoPlans(t *testing.T, c *fleettest.Cluster, strategy, second string) (dir string, ids [2]string) {
	dir = c.Tree(t, strings.ReplaceAll(t.Name(), "/", "-"), "git init -q -b trunk .; printf 'title\\nend\\n' >readme; echo o >other; git add -A;"+fleettest.GitIdentity+"commit -qm one")
	for i, script := range []string{"sed -i '1a X' readme", second} {
		ids[i] = c.Submit(t, c.Plan(t, "apply: manual\nstrategy: "+strategy+"\n"+fleettest.Resource(dir), script))
	}
	for _, id := range ids {
		c.Until(t, id, "awaiting approval", fleettest.IsType(events.TypeAwaitingApproval))
	}
	return dir, ids
}

func secondConflicts(t *testing.T, c *fleettest.Cluster, strategy string) {
	dir, ids := twoPlans(t, c, strategy, "sed -i '1a Y' readme; echo q >new")
	c.Do(t, "warmfleet", "plan", "approve", ids[0])
	c.Ended(t, ids[0], events.StateApplied)
	settled(t, dir)
	before := fleettest.Snapshot(t, dir)
	c.Warmfleet(t, "plan", "approve", ids[1]).OneLine(t, 9, "readme")
	v := c.Ended(t, ids[1], events.StateConflict)
	if got := paths(v); !slices.Equal(got, []string{"readme"}) {
		t.Errorf("conflicts: got %q, want readme", got)
	}
	fleettest.Untouched(t, dir, before)
	if got := fleettest.Read(t, dir, "readme"); got != "title\nX\nend\n" {
		t.Errorf("readme: %q", got)
	}
	r := c.Warmfleet(t, "plan", "show", ids[1]).Exits(t, 0)
	if !strings.Contains(r.Stdout, "readme") || !strings.Contains(r.Stdout, "conflict") {
		t.Errorf("plan show does not tell of the conflict:\n%s", r.Stdout)
	}
	if e := c.Until(t, ids[1], "post_execute", fleettest.IsType(events.TypeCheckpointed)); e.Data.Checkpoint == nil || !e.Data.Checkpoint.Portable {
		t.Errorf("the result was not kept: %+v", e.Data.Checkpoint)
	} else if got := fleettest.Read(t, c.Export(t, e.Data.Checkpoint.ID), "readme"); got != "title\nY\nend\n" {
		t.Errorf("readme in the kept result: %q", got)
	}
}

func oneWins(t *testing.T, c *fleettest.Cluster, strategy string) {
	dir, ids := twoPlans(t, c, strategy, "sed -i '1a Y' readme")
	fleettest.Together(2, func(i int) { c.Do(t, "warmfleet", "plan", "approve", "--detach", ids[i]) })
	p, q := c.Ends(t, ids[0]).State, c.Ends(t, ids[1]).State
	want := "title\nX\nend\n"
	if q == events.StateApplied {
		p, q, want = q, p, "title\nY\nend\n"
	}
	if p != events.StateApplied || q != events.StateConflict {
		t.Errorf("states: got %s and %s, want applied and conflict", p, q)
	}
	if got := fleettest.Read(t, dir, "readme"); got != want {
		t.Errorf("readme: got %q, want %q", got, want)
	}
	if fleettest.Exists(filepath.Join(dir, ".warmfleet-apply")) {
		t.Error("the journal was left behind")
	}
}

func bothApply(t *testing.T, c *fleettest.Cluster, strategy string) {
	dir, ids := twoPlans(t, c, strategy, "echo q >>other; mkdir d; echo n >d/new")
	fleettest.Together(2, func(i int) { c.Do(t, "warmfleet", "plan", "approve", ids[i]) })
	for _, id := range ids {
		c.Ended(t, id, events.StateApplied)
	}
	if got := c.Sh(t, dir, "cat readme other d/new"); got != "title\nX\nend\no\nq\nn\n" {
		t.Errorf("readme, other, d/new: %q", got)
	}
}

const e3Script = `
git init -q -b trunk .
printf '\211PNG\r\n\032\n\0\0\0\rIHDR' >pic.png; head -c 4096 /dev/zero >gone.bin; printf 'a\0b' >nul; : >empty
echo text >marked.txt; echo 'marked.txt binary' >.gitattributes
printf '#!/bin/sh\n' >tool; echo file >swap; mkdir dir; echo in >dir/f; seq 200 >long; ln -s long link
git add -A; ` + fleettest.GitIdentity + `commit -qm one`

const e3Change = `
printf '\0\377\376' >>pic.png; rm gone.bin; printf 'x\0y\0\n' >new.bin; echo other >marked.txt; chmod 755 tool
rm swap; ln -s dir swap; : >new-empty; mv long moved; sed -i 's/^7$/seven/' moved; mv dir dir2; mkdir dir; rm link; mkdir link; : >link/x
printf 'a\0c' >nul; echo now >empty; chmod 600 .gitattributes`

func TestCase_E3(t *testing.T) {
	t.Parallel()
	fleettest.EachAccount(t, func(t *testing.T, c *fleettest.Cluster) {
		for _, strategy := range fleettest.Strategies() {
			t.Run(strategy, func(t *testing.T) {
				dir, want := c.Tree(t, "e3-"+strategy, e3Script), c.Tree(t, "e3-want-"+strategy, e3Script)
				state := c.GitState(t, dir)
				file := c.Plan(t, "apply: auto\nstrategy: "+strategy, e3Change)
				c.Warmfleet(t, "run", file, "--path", dir, "-o", "json").Exits(t, 0)
				c.Sh(t, want, e3Change)
				fleettest.SameTree(t, dir, want)
				if after := c.GitState(t, dir); after != state {
					t.Errorf("the repository was\n%s\nand is\n%s", state, after)
				}
			})
		}
	})
}

// oddNames are legal file names that tools quote, split, expand or take for options.
var oddNames = []string{
	"Über — 1.md", "a b.txt", "x b/y", "[ab].txt", "*.txt", ":x", "-rf", "--help", "new\nline", "tab\there", `quote"d`, `back\slash`, "trailing ",
	" leading", "raw\xff\xfe", ".wh.x", "~", "$(touch CANARY)", "'single'", "#hash", "a/b/.wh..wh..opq", "\x01\x7f",
}

// makeOdd is shell that writes a file of each odd name.
func makeOdd(content string) string {
	var b strings.Builder
	for _, n := range oddNames {
		var octal strings.Builder
		for _, c := range []byte(n) {
			fmt.Fprintf(&octal, `\0%03o`, c)
		}
		fmt.Fprintf(&b, "n=$(printf '%%b.' '%s'); n=${n%%.}; mkdir -p -- \"$(dirname -- \"$n\")\"; echo %s >\"./$n\"\n", octal.String(), content)
	}
	return b.String()
}

func TestCase_E4(t *testing.T) {
	t.Parallel()
	fleettest.EachAccount(t, func(t *testing.T, c *fleettest.Cluster) {
		for _, strategy := range fleettest.Strategies() {
			for _, existing := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/Existing%v", strategy, existing), func(t *testing.T) { oddNamesPass(t, c, strategy, existing) })
			}
		}
	})
}

func oddNamesPass(t *testing.T, c *fleettest.Cluster, strategy string, existing bool) {
	script := "git init -q -b trunk .; echo a >a.txt; echo b >b.txt\n"
	if existing {
		script += makeOdd("old")
	}
	script += "git add -A; " + fleettest.GitIdentity + "commit -qm one\n"
	name := strings.ReplaceAll(t.Name(), "/", "-")
	dir, want := c.Tree(t, name, script), c.Tree(t, name+"-want", script)
	for _, d := range []string{dir, want} {
		c.Sh(t, d, "echo dirty >>a.txt; echo dirty >>b.txt")
	}
	before, state := fleettest.Snapshot(t, dir), c.GitState(t, dir)
	failing := c.Plan(t, "apply: auto\nstrategy: "+strategy, makeOdd("new"), "exit 1")
	c.Warmfleet(t, "run", failing, "--path", dir).Exits(t, 3)
	fleettest.Unchanged(t, dir, before)

	file := c.Plan(t, "apply: auto\nstrategy: "+strategy, makeOdd("new"))
	v := c.Warmfleet(t, "run", file, "--path", dir, "-o", "json").Exits(t, 0).View(t)
	c.Sh(t, want, makeOdd("new"))
	fleettest.SameTree(t, dir, want)
	if after := c.GitState(t, dir); after != state {
		t.Errorf("the repository was\n%s\nand is\n%s", state, after)
	}
	if fleettest.Exists(filepath.Join(dir, "CANARY")) {
		t.Error("a name was run")
	}
	diff := c.Path("home", name+".diff")
	fleettest.Must(t, os.WriteFile(diff, []byte(c.Do(t, "warmfleet", "plan", "diff", v.ID)), 0o644))
	if d := cmp.Diff(sorted(oddNames), inDiff(t, c, diff)); d != "" {
		t.Errorf("paths in the diff (-want +got):\n%s", d)
	}
}

// inDiff is what git itself reads of a diff: the paths it changes.
func inDiff(t *testing.T, c *fleettest.Cluster, diff string) []string {
	t.Helper()
	var got []string
	for _, line := range strings.Split(c.Sh(t, c.Path("home"), "git apply --numstat -z "+diff), "\x00") {
		if parts := strings.SplitN(line, "\t", 3); len(parts) == 3 {
			got = append(got, parts[2])
		}
	}
	return sorted(got)
}

func sorted(s []string) []string { return slices.Sorted(slices.Values(s)) }
