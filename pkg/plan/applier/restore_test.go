package applier

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// undoBase has what a restore must not lose beside contents.
const undoBase = sweepBase + `
echo h>h1; ln h1 h2; ln h1 d/h3; echo g>g1; ln g1 g2; chmod 4711 c; touch -d '2001-02-03 04:05:06.123456789' a b c h1 d/e/g; touch -h -d '2002-03-04 05:06:07.987654321' link`

// undoScript breaks links and replaces, deletes and changes what is there.
const undoScript = sweepScript + `
sed -i s/h/H/ h1; rm g1 g2; echo other>g1; rm p.png`

// applied applies ours to the original, and returns the request that takes it back, with a copy of what was there.
func applied(t *testing.T, tr trees) (back Request, pre string) {
	t.Helper()
	pre = filepath.Join(filepath.Dir(tr.orig), "pre")
	out, err := exec.Command("cp", "-a", tr.orig, pre).CombinedOutput()
	if err != nil {
		t.Fatalf("copy the original: %v: %s", err, out)
	}
	ctx := context.Background()
	s := open(t, tr.orig, nil)
	req := tr.request(t)
	req.AllowSpecial = true
	p, conflicts, err := s.Check(ctx, req)
	must(t, err)
	if len(conflicts) > 0 {
		t.Fatalf("conflicts: %v", kinds(conflicts))
	}
	must(t, s.Stage(ctx, p))
	inverse, err := s.Inverse(p)
	must(t, err)
	must(t, s.Commit(ctx))
	must(t, s.Finish(ctx))
	return Request{Plan: "01PLAN", Epoch: 2, Restore: true, AllowSpecial: true, Changes: inverse, Content: dirContent(pre)}, pre
}

var exact = layertest.Options{NoDirTimes: true}

func TestSession_Restore(t *testing.T) {
	tr := newTrees(t, script(t, undoBase))
	sh(t, tr.ours, undoScript)
	sh(t, tr.orig, `echo more>>a; rm -r empty; echo own>own; ln own own2`)
	sh(t, tr.base, `echo more>>a; rm -r empty`)
	sh(t, tr.ours, `rmdir empty`)
	for _, dir := range []string{tr.base, tr.orig} {
		setXattr(t, filepath.Join(dir, "c"), "user.test", "kept")
		setXattr(t, filepath.Join(dir, "d/f"), "user.test", "kept")
		setXattr(t, filepath.Join(dir, "p.png"), aclAccess, acl(4321))
	}
	if os.Geteuid() == 0 {
		sh(t, tr.orig, `chown 1234:2345 a d/f g1 ro ro/r; chown -h 1:2 link`)
	}
	back, pre := applied(t, tr)
	if same := cmp.Equal(snapshot(t, tr.orig), snapshot(t, pre)); same {
		t.Fatal("nothing was applied")
	}
	sh(t, tr.orig, `echo since>since; echo since>>own`)
	sh(t, pre, `echo since>since; echo since>>own`)
	mustApply(t, tr.orig, back)
	o := exact
	o.Skip = []string{"since", "own", "own2"}
	layertest.Compare(t, tr.orig, pre, o)
	sameTrees(t, "what came since", snapshot(t, tr.orig), snapshot(t, pre))
	noJournal(t, tr.orig)
}

// What was changed since on a path of the plan is a conflict, and nothing is written; on others it stays.
func TestSession_RestoreMeetsChanges(t *testing.T) {
	for _, tc := range []struct {
		name, since string
		conflicts   []string
		want        string // script over what was there before
	}{
		{name: "OtherPaths", since: `echo own>own; echo O>d; rm d; echo d>d; chmod 711 pipe`, want: `echo own>own; chmod 711 pipe`},
		{name: "IntoNewDirectory", since: `chmod 755 x/y; echo own>x/y/own; chmod 555 x/y`, want: `mkdir -p x/y; echo own>x/y/own; chmod 555 x/y`},
		{name: "IntoReplacedByDirectory", since: `echo own>c/own`, conflicts: []string{"c: directory_not_empty"}},
		{name: "Edited", since: `echo again>>a`, conflicts: []string{"a: content"}},
		{name: "EditedAndDeleted", since: `echo again>>a; rm n; echo b>b`, conflicts: []string{"a: content"}, want: ``},
		{name: "DeletedOfThePlan", since: `chmod 755 x/y; rm n x/y/z; chmod 555 x/y`, want: ``},
		{name: "CameBackOtherwise", since: `echo other>b`, conflicts: []string{"b: added_both"}},
		{name: "Mode", since: `chmod 640 run`, conflicts: []string{"run: mode"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := newTrees(t, script(t, undoBase))
			sh(t, tr.ours, undoScript)
			back, pre := applied(t, tr)
			sh(t, tr.orig, tc.since)
			now := snapshot(t, tr.orig)
			got, err := apply(tr.orig, back, nil)
			must(t, err)
			if diff := cmp.Diff(tc.conflicts, kinds(got)); diff != "" {
				t.Errorf("conflicts: (-want +got)\n%s", diff)
			}
			want := now
			if len(tc.conflicts) == 0 {
				sh(t, pre, tc.want)
				want = snapshot(t, pre)
			}
			sameTrees(t, "after", snapshot(t, tr.orig), want)
			noJournal(t, tr.orig)
		})
	}
}

// An owner that somebody gave a file since stays.
func TestSession_RestoreOwners(t *testing.T) {
	asRoot(t)
	tr := newTrees(t, script(t, baseScript))
	sh(t, tr.orig, `chown 11:12 a b c; chmod 711 c`)
	sh(t, tr.base, `chmod 711 c`)
	sh(t, tr.ours, `chmod 711 c; echo A>a; rm b; echo C>c`)
	back, _ := applied(t, tr)
	sh(t, tr.orig, `chown 77:78 c`)
	mustApply(t, tr.orig, back)
	got := entries(t, tr.orig)
	for p, want := range map[layer.Path][2]int{"a": {11, 12}, "b": {11, 12}, "c": {77, 78}} {
		if e := got[p]; e.UID != want[0] || e.GID != want[1] {
			t.Errorf("owner of %s: got %d:%d, want %d:%d", p, e.UID, e.GID, want[0], want[1])
		}
	}
}

// A file that had a name outside the directory, or whose other name was changed since, comes back alone.
func TestSession_RestoreLinksElsewhere(t *testing.T) {
	tr := newTrees(t, script(t, undoBase))
	must(t, os.Link(filepath.Join(tr.orig, "a"), filepath.Join(filepath.Dir(tr.orig), "outside")))
	sh(t, tr.ours, `echo A>a; sed -i s/h/H/ h1; sed -i s/g/G/ g1`)
	back, pre := applied(t, tr)
	sh(t, tr.orig, `rm h2 d/h3; echo changed>>g2`)
	mustApply(t, tr.orig, back)
	sh(t, pre, `rm h2 d/h3; cat g2 >t; mv t g2; echo changed>>g2`)
	sameTrees(t, "after", snapshot(t, tr.orig), snapshot(t, pre))
	var st unix.Stat_t
	must(t, unix.Lstat(filepath.Join(tr.orig, "h1"), &st))
	if st.Nlink != 1 || read(t, tr.orig, "h1") != "h" {
		t.Errorf("h1 has %d names", st.Nlink)
	}
}

// Each step of a restore fails once: everything is as after the apply then, and the next try takes all back.
func TestSession_RestoreFaultSweep(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a sweep that starts processes one after the other")
	}
	tr := newTrees(t, script(t, undoBase))
	sh(t, tr.ours, undoScript)
	back, pre := applied(t, tr)
	after := snapshot(t, tr.orig)
	for i := 0; ; i++ {
		hook, fired := failAt(i)
		_, err := apply(tr.orig, back, hook)
		if !*fired {
			must(t, err)
			break
		}
		if !errors.Is(err, errInjected) {
			t.Fatalf("step %d: %v", i, err)
		}
		s := open(t, tr.orig, nil)
		if _, pending := s.Pending(); !pending {
			must(t, s.Close())
			if got := snapshot(t, tr.orig); !cmp.Equal(got, after) && !cmp.Equal(got, snapshot(t, pre)) {
				t.Fatalf("step %d: neither before nor after:\n%s", i, cmp.Diff(after, got))
			}
			if cmp.Equal(snapshot(t, tr.orig), snapshot(t, pre)) {
				break // it failed at forgetting a restore that was made
			}
			continue
		}
		out, err := s.Recover(context.Background(), Back)
		must(t, err)
		if out == Applied {
			must(t, s.Finish(context.Background()))
			break
		}
		must(t, s.Close())
		sameTrees(t, fmt.Sprintf("step %d taken back", i), snapshot(t, tr.orig), after)
	}
	layertest.Compare(t, tr.orig, pre, exact)
	noJournal(t, tr.orig)
}

// A kill -9 before every step of a restore, then recovery: exactly before or exactly after.
func TestSession_RestoreCrashSweep(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a sweep that starts processes one after the other")
	}
	for i, killed := 0, true; killed; i++ {
		dir := memDir(t)
		tr := treesIn(t, dir, script(t, undoBase))
		sh(t, tr.ours, undoScript)
		_, pre := applied(t, tr)
		must(t, os.Rename(tr.base, filepath.Join(dir, "unused")))
		out, err := exec.Command("cp", "-a", tr.orig, tr.base).CombinedOutput()
		if err != nil {
			t.Fatalf("copy what was applied: %v: %s", err, out)
		}
		after := snapshot(t, tr.orig)
		killed = childCmd(dir, "pre", "APPLIER_RESTORE=1", "APPLIER_KILL="+strconv.Itoa(i)).Run() != nil
		begun := journalStates(t, tr.orig)
		out, err = childCmd(dir, "pre", "APPLIER_RESTORE=1").CombinedOutput()
		if err != nil {
			t.Fatalf("step %d: recovery from %v: %v: %s", i, begun, err, out)
		}
		got := snapshot(t, tr.orig)
		if len(begun) == 0 && cmp.Equal(got, after) {
			continue // it had not begun, and the second one found nothing to recover but applied nothing
		}
		sameTrees(t, fmt.Sprintf("step %d, recovered from %v", i, begun), got, snapshot(t, pre))
		noJournal(t, tr.orig)
		if t.Failed() {
			t.FailNow()
		}
	}
}
