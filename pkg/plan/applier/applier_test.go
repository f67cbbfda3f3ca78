package applier

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

const baseScript = `
echo a>a; echo b>b; echo c>c; mkdir -p d/e; echo f>d/f; echo g>d/e/g; ln -s a link; echo run>run; chmod 755 run
printf 'P\0NG\377' >p.png; mkfifo pipe; mkdir empty`

func TestSession_Apply(t *testing.T) {
	for _, tc := range []struct {
		name       string
		orig, ours string   // scripts over baseScript
		want       string   // script over ours' tree that gives the expected one; the original's own changes
		conflicts  []string // when not empty, the original must be as before
	}{
		{name: "Nothing", ours: `true`},
		{name: "EditAddDelete", ours: `echo A>a; rm b; echo n>n; mkdir -p x/y; echo z>x/y/z`},
		{name: "EmptyFileAndDirectory", ours: `: >a; : >new; mkdir void`},
		{name: "DeleteTree", ours: `rm -r d empty pipe`},
		{name: "FileToLink", ours: `rm a; ln -s b a`},
		{name: "LinkToFile", ours: `rm link; echo l>link`},
		{name: "LinkText", ours: `ln -sfn c link`},
		{name: "DanglingLinkOutside", ours: `ln -s ../../../etc/passwd esc`},
		{name: "FileToDirectory", ours: `rm a; mkdir a; echo i>a/i`},
		{name: "FileToTree", ours: `rm a; mkdir -p a/i/j; echo k>a/i/j/k; ln -s j a/i/l`},
		{name: "LinkToTree", ours: `rm link; mkdir -p link/i/j; echo k>link/i/j/k`},
		{name: "DirectoryToFile", ours: `rm -r d; echo d>d`},
		{name: "DirectoryToLink", ours: `rm -r d; ln -s empty d`},
		{name: "LinkToDirectory", ours: `rm link; mkdir link; echo i>link/i`},
		{name: "ModeOnly", ours: `chmod 600 a; chmod 750 d; chmod 644 run`},
		{name: "RootMode", ours: `chmod 700 .`},
		{name: "ReadOnlyDirectories", ours: `mkdir r; echo x>r/x; chmod 444 r/x; chmod 555 r; chmod 555 d`},
		{name: "Fifo", ours: `mkfifo q; rm pipe; echo p>pipe`},
		{name: "RenameDirectory", ours: `mv d D; echo more>>D/f`},
		{name: "SwapNames", ours: `mv a t; mv b a; mv t b`},
		{
			name: "OriginalGainedElsewhere", orig: `echo own>own; echo B>b; mkdir mine; chmod 700 empty`,
			ours: `echo A>a; rm c`, want: `echo own>own; echo B>b; mkdir mine; chmod 700 empty`,
		},
		{name: "SameResult", orig: `echo A>a; rm b; echo n>n; rm -r d; mkdir x`, ours: `echo A>a; rm b; echo n>n; rm -r d; mkdir x`},
		{name: "SameTypeChange", orig: `rm -r d; echo d>d`, ours: `rm -r d; echo d>d`},
		{name: "ChmodHereEditThere", orig: `chmod 600 a`, ours: `echo A>a`, want: `chmod 600 a`},
		{name: "EditHereChmodThere", orig: `echo O>a`, ours: `chmod 600 a`, want: `echo O>a`},
		{name: "TouchedOnly", orig: `touch -d 2001-01-01 a b`, ours: `echo A>a; rm b`},
		{name: "PlanDeletedDirectoryIsGone", orig: `rm -r d`, ours: `rm -r d; echo A>a`},
		{name: "OwnFileInChangedDirectory", orig: `echo own>d/own`, ours: `echo F>d/f`, want: `echo own>d/own`},

		{name: "BothEdited", orig: `echo O>a`, ours: `echo A>a; echo n>n`, conflicts: []string{"a: content"}},
		{name: "SameSizeOldTime", orig: `touch -r a t; echo O>a; touch -r t a; rm t`, ours: `echo A>a`, conflicts: []string{"a: content"}},
		{name: "BothLinks", orig: `ln -sfn b link`, ours: `ln -sfn c link`, conflicts: []string{"link: content"}},
		{name: "BothModes", orig: `chmod 600 a`, ours: `chmod 755 a`, conflicts: []string{"a: mode"}},
		{name: "OriginalDeleted", orig: `rm a; rm -r d`, ours: `echo A>a; echo F>d/f`, conflicts: []string{"a: deleted_by_original", "d/f: deleted_by_original"}},
		{name: "PlanDeletesEdited", orig: `echo O>a; chmod 600 b`, ours: `rm a b`, conflicts: []string{"a: modified_and_deleted", "b: modified_and_deleted"}},
		{name: "BothAdded", orig: `echo O>n`, ours: `echo N>n`, conflicts: []string{"n: added_both"}},
		{name: "BothAddedOtherType", orig: `mkdir n`, ours: `echo N>n`, conflicts: []string{"n: added_both"}},
		{name: "DirectoryGained", orig: `echo own>d/e/own`, ours: `rm -r d`, conflicts: []string{"d/e: directory_not_empty"}},
		{name: "DirectoryGainedAndReplaced", orig: `echo own>d/own`, ours: `rm -r d; echo d>d`, conflicts: []string{"d: directory_not_empty"}},
		{name: "TypeChangedHere", orig: `rm a; ln -s b a`, ours: `echo A>a`, conflicts: []string{"a: type"}},
		{name: "TypeChangedThere", orig: `echo O>a`, ours: `rm a; mkdir a; echo i>a/i`, conflicts: []string{"a: type"}},
		{name: "TypeChangedThereDeep", orig: `echo O>a`, ours: `rm a; mkdir -p a/i/j; echo k>a/i/j/k`, conflicts: []string{"a: type"}},
		{name: "ParentMissing", orig: `rm -r d`, ours: `echo n>d/n`, conflicts: []string{"d/n: parent_missing"}},
		{name: "ParentIsLink", orig: `mv d real; ln -s real d`, ours: `echo F>d/f; echo n>d/n; rm d/e/g`, conflicts: []string{"d/e/g: parent_replaced", "d/f: parent_replaced", "d/n: parent_replaced"}},
		{name: "ParentIsFile", orig: `rm -r d; echo d>d`, ours: `echo n>d/n`, conflicts: []string{"d/n: parent_replaced"}},
		{name: "ChangedLinkBelowChangedDirectory", orig: `mv d/e e; ln -s ../e d/e`, ours: `chmod 700 d; rm d/e/g`, conflicts: []string{"d/e/g: parent_replaced"}},
		{name: "NewSetuid", ours: `chmod 4755 run; echo n>n; chmod 2755 n`, conflicts: []string{"n: special", "run: special"}},
		{name: "NewSetgidTree", ours: `mkdir -p s/t; echo n>s/t/n; chmod 2755 s`, conflicts: []string{"s: special"}},
		{name: "SocketThere", orig: `rm a; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("a")'`, ours: `echo A>a`, conflicts: []string{"a: type"}},
		{name: "All", orig: `echo O>a; echo O>n; rm b`, ours: `echo A>a; echo N>n; chmod 600 b; echo C>c`, conflicts: []string{"a: content", "b: deleted_by_original", "n: added_both"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := newTrees(t, script(t, baseScript))
			sh(t, tr.ours, tc.ours)
			sh(t, tr.orig, tc.orig)
			req := tr.request(t)
			before := snapshot(t, tr.orig)
			got, err := apply(tr.orig, req, nil)
			must(t, err)
			if diff := cmp.Diff(tc.conflicts, kinds(got)); diff != "" {
				t.Errorf("conflicts: (-want +got)\n%s", diff)
			}
			want := before
			if len(tc.conflicts) == 0 {
				sh(t, tr.ours, tc.want)
				want = snapshot(t, tr.ours)
			}
			sameTrees(t, "original", snapshot(t, tr.orig), want)
			noJournal(t, tr.orig)
		})
	}
}

// Every step fails once; the original must then be exactly as before.
func TestSession_EveryStepFails(t *testing.T) {
	tr := newTrees(t, script(t, sweepBase))
	sh(t, tr.ours, sweepScript)
	sh(t, tr.orig, `echo own>own`)
	req := tr.request(t)
	before := snapshot(t, tr.orig)
	for i := 0; ; i++ {
		hook, fired := failAt(i)
		_, err := apply(tr.orig, req, hook)
		if !*fired {
			must(t, err)
			t.Logf("%d steps", i)
			break
		}
		if err == nil {
			t.Fatalf("step %d: no error", i)
		}
		after, _ := failAt(-1)
		s := open(t, tr.orig, after)
		if p, pending := s.Pending(); pending {
			if !p.Done {
				t.Fatalf("step %d: pending %+v", i, p)
			}
			break // the steps of Finish: the change is made
		}
		must(t, s.Close())
		sameTrees(t, "original", snapshot(t, tr.orig), before)
		noJournal(t, tr.orig)
		if t.Failed() {
			t.Fatalf("at step %d: %v", i, err)
		}
	}
}
