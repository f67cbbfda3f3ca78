package test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/pkg/events"
)

var copying = []string{"copy_on_write", "git_worktree"}

const e1Script = `
git init -q -b trunk .
for f in a b e; do echo base >$f; done; echo d >.gitignore; git add -A; ` + gitIdentity + `commit -qm one`

// e1User is what the user has not committed.
const e1User = "echo mine >a; echo staged >b; git add b; echo untracked >c; echo ignored >d"

func TestCase_E1(t *testing.T) {
	eachAccount(t, func(t *testing.T, c *cluster) {
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
func keepsUncommitted(t *testing.T, c *cluster, strategy, script string, conflicts []string) {
	dir := c.tree(t, strings.ReplaceAll(t.Name(), "/", "-"), e1Script)
	file := c.plan(t, "apply: manual\nstrategy: "+strategy+"\n"+resource(dir), script)
	id := c.submit(t, file)
	c.until(t, id, "awaiting approval", isType(events.TypeAwaitingApproval))
	c.sh(t, dir, e1User)
	before, state := snapshot(t, dir), gitState(t, c.place, dir)
	c.do(t, "warmfleet", "plan", "approve", "--detach", id)
	v := c.ends(t, id)
	if after := gitState(t, c.place, dir); after != state {
		t.Errorf("the repository was\n%s\nand is\n%s", state, after)
	}
	if conflicts != nil {
		if v.State != events.StateConflict {
			t.Errorf("got state %s, want conflict", v.State)
		}
		if d := cmp.Diff(conflicts, paths(v)); d != "" {
			t.Errorf("conflicts (-want +got):\n%s", d)
		}
		untouched(t, dir, before)
		return
	}
	if v.State != events.StateApplied {
		t.Fatalf("got state %s, want applied\n%s", v.State, c.story(t, id))
	}
	if got, want := c.sh(t, dir, "cat a b c d e"), "mine\nstaged\nuntracked\nignored\nplan\n"; got != want {
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
	c := startCluster(t, ordinary(t))
	c.worker(t, "wa")
	c.worker(t, "wb")
	for _, strategy := range copying {
		t.Run(strategy, func(t *testing.T) { t.Run("OneAfterTheOther", func(t *testing.T) { secondConflicts(t, c, strategy) }) })
		t.Run(strategy+"/AtOnce", func(t *testing.T) { oneWins(t, c, strategy) })
		t.Run(strategy+"/OtherFile", func(t *testing.T) { bothApply(t, c, strategy) })
	}
}

// twoPlans runs two plans from one base to where they wait for approval.
func twoPlans(t *testing.T, c *cluster, strategy, second string) (dir string, ids [2]string) {
	dir = c.tree(t, strings.ReplaceAll(t.Name(), "/", "-"), "git init -q -b trunk .; printf 'title\\nend\\n' >readme; echo o >other; git add -A;"+gitIdentity+"commit -qm one")
	for i, script := range []string{"sed -i '1a X' readme", second} {
		ids[i] = c.submit(t, c.plan(t, "apply: manual\nstrategy: "+strategy+"\n"+resource(dir), script))
	}
	for _, id := range ids {
		c.until(t, id, "awaiting approval", isType(events.TypeAwaitingApproval))
	}
	return dir, ids
}

func secondConflicts(t *testing.T, c *cluster, strategy string) {
	dir, ids := twoPlans(t, c, strategy, "sed -i '1a Y' readme; echo q >new")
	c.do(t, "warmfleet", "plan", "approve", ids[0])
	c.ended(t, ids[0], events.StateApplied)
	settled(t, dir)
	before := snapshot(t, dir)
	c.warmfleet(t, "plan", "approve", ids[1]).oneLine(t, 9, "readme")
	v := c.ended(t, ids[1], events.StateConflict)
	if got := paths(v); !slices.Equal(got, []string{"readme"}) {
		t.Errorf("conflicts: got %q, want readme", got)
	}
	untouched(t, dir, before)
	if got := read(t, dir, "readme"); got != "title\nX\nend\n" {
		t.Errorf("readme: %q", got)
	}
	r := c.warmfleet(t, "plan", "show", ids[1]).exits(t, 0)
	if !strings.Contains(r.stdout, "readme") || !strings.Contains(r.stdout, "conflict") {
		t.Errorf("plan show does not tell of the conflict:\n%s", r.stdout)
	}
	if e := c.until(t, ids[1], "post_execute", isType(events.TypeCheckpointed)); e.Data.Checkpoint == nil || !e.Data.Checkpoint.Portable {
		t.Errorf("the result was not kept: %+v", e.Data.Checkpoint)
	} else if got := read(t, export(t, c, e.Data.Checkpoint.ID), "readme"); got != "title\nY\nend\n" {
		t.Errorf("readme in the kept result: %q", got)
	}
}

func oneWins(t *testing.T, c *cluster, strategy string) {
	dir, ids := twoPlans(t, c, strategy, "sed -i '1a Y' readme")
	together(2, func(i int) { c.do(t, "warmfleet", "plan", "approve", "--detach", ids[i]) })
	p, q := c.ends(t, ids[0]).State, c.ends(t, ids[1]).State
	want := "title\nX\nend\n"
	if q == events.StateApplied {
		p, q, want = q, p, "title\nY\nend\n"
	}
	if p != events.StateApplied || q != events.StateConflict {
		t.Errorf("states: got %s and %s, want applied and conflict", p, q)
	}
	if got := read(t, dir, "readme"); got != want {
		t.Errorf("readme: got %q, want %q", got, want)
	}
	if exists(filepath.Join(dir, ".warmfleet-apply")) {
		t.Error("the journal was left behind")
	}
}

func bothApply(t *testing.T, c *cluster, strategy string) {
	dir, ids := twoPlans(t, c, strategy, "echo q >>other; mkdir d; echo n >d/new")
	together(2, func(i int) { c.do(t, "warmfleet", "plan", "approve", ids[i]) })
	for _, id := range ids {
		c.ended(t, id, events.StateApplied)
	}
	if got := c.sh(t, dir, "cat readme other d/new"); got != "title\nX\nend\no\nq\nn\n" {
		t.Errorf("readme, other, d/new: %q", got)
	}
}

const e3Script = `
git init -q -b trunk .
printf '\211PNG\r\n\032\n\0\0\0\rIHDR' >pic.png; head -c 4096 /dev/zero >gone.bin; printf 'a\0b' >nul; : >empty
echo text >marked.txt; echo 'marked.txt binary' >.gitattributes
printf '#!/bin/sh\n' >tool; echo file >swap; mkdir dir; echo in >dir/f; seq 200 >long; ln -s long link
git add -A; ` + gitIdentity + `commit -qm one`

const e3Change = `
printf '\0\377\376' >>pic.png; rm gone.bin; printf 'x\0y\0\n' >new.bin; echo other >marked.txt; chmod 755 tool
rm swap; ln -s dir swap; : >new-empty; mv long moved; sed -i 's/^7$/seven/' moved; mv dir dir2; mkdir dir; rm link; mkdir link; : >link/x
printf 'a\0c' >nul; echo now >empty; chmod 600 .gitattributes`

func TestCase_E3(t *testing.T) {
	eachAccount(t, func(t *testing.T, c *cluster) {
		for _, strategy := range strategies {
			t.Run(strategy, func(t *testing.T) {
				dir, want := c.tree(t, "e3-"+strategy, e3Script), c.tree(t, "e3-want-"+strategy, e3Script)
				state := gitState(t, c.place, dir)
				file := c.plan(t, "apply: auto\nstrategy: "+strategy, e3Change)
				c.warmfleet(t, "run", file, "--path", dir, "-o", "json").exits(t, 0)
				c.sh(t, want, e3Change)
				sameTree(t, dir, want)
				if after := gitState(t, c.place, dir); after != state {
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
	eachAccount(t, func(t *testing.T, c *cluster) {
		for _, strategy := range strategies {
			for _, existing := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/Existing%v", strategy, existing), func(t *testing.T) { oddNamesPass(t, c, strategy, existing) })
			}
		}
	})
}

func oddNamesPass(t *testing.T, c *cluster, strategy string, existing bool) {
	script := "git init -q -b trunk .; echo a >a.txt; echo b >b.txt\n"
	if existing {
		script += makeOdd("old")
	}
	script += "git add -A; " + gitIdentity + "commit -qm one\n"
	name := strings.ReplaceAll(t.Name(), "/", "-")
	dir, want := c.tree(t, name, script), c.tree(t, name+"-want", script)
	for _, d := range []string{dir, want} {
		c.sh(t, d, "echo dirty >>a.txt; echo dirty >>b.txt")
	}
	before, state := snapshot(t, dir), gitState(t, c.place, dir)
	failing := c.plan(t, "apply: auto\nstrategy: "+strategy, makeOdd("new"), "exit 1")
	c.warmfleet(t, "run", failing, "--path", dir).exits(t, 3)
	unchanged(t, dir, before)

	file := c.plan(t, "apply: auto\nstrategy: "+strategy, makeOdd("new"))
	v := c.warmfleet(t, "run", file, "--path", dir, "-o", "json").exits(t, 0).view(t)
	c.sh(t, want, makeOdd("new"))
	sameTree(t, dir, want)
	if after := gitState(t, c.place, dir); after != state {
		t.Errorf("the repository was\n%s\nand is\n%s", state, after)
	}
	if exists(filepath.Join(dir, "CANARY")) {
		t.Error("a name was run")
	}
	diff := c.path("home", name+".diff")
	must(t, os.WriteFile(diff, []byte(c.do(t, "warmfleet", "plan", "diff", v.ID)), 0o644))
	if d := cmp.Diff(sorted(oddNames), inDiff(t, c, diff)); d != "" {
		t.Errorf("paths in the diff (-want +got):\n%s", d)
	}
}

// inDiff is what git itself reads of a diff: the paths it changes.
func inDiff(t *testing.T, c *cluster, diff string) []string {
	t.Helper()
	var got []string
	for _, line := range strings.Split(c.sh(t, c.path("home"), "git apply --numstat -z "+diff), "\x00") {
		if parts := strings.SplitN(line, "\t", 3); len(parts) == 3 {
			got = append(got, parts[2])
		}
	}
	return sorted(got)
}

func sorted(s []string) []string { return slices.Sorted(slices.Values(s)) }
