package applier

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// at runs what the user does right before the first operation of a commit, after Check and Stage.
func at(point string, do func()) func(string) error {
	var once sync.Once
	return func(p string) error {
		if strings.HasPrefix(p, point) {
			once.Do(do)
		}
		return nil
	}
}

func TestSession_CommitLateConflict(t *testing.T) {
	for _, tc := range []struct {
		name, user string
		want       Conflict
	}{
		{"Edited", `echo O>a`, Conflict{Path: "a", Kind: KindContent}},
		{"EditedOldTime", `touch -r a t; echo O>a; touch -r t a; rm t`, Conflict{Path: "a", Kind: KindContent}},
		{"ReplacedByRename", `echo O>t; mv t a`, Conflict{Path: "a", Kind: KindContent}},
		{"Chmod", `chmod 640 a`, Conflict{Path: "a", Kind: KindMode}},
		{"ReplacedByDirectory", `rm a; mkdir a; echo own>a/own`, Conflict{Path: "a", Kind: KindType}},
		{"ReplacedByLink", `rm a; ln -s /etc/passwd a`, Conflict{Path: "a", Kind: KindType}},
		{"Deleted", `rm a`, Conflict{Path: "a", Kind: KindDeletedByOriginal}},
		{"DeletedWasEdited", `echo O>b`, Conflict{Path: "b", Kind: KindModifiedAndDeleted}},
		{"DirectoryGained", `echo own>d/own`, Conflict{Path: "d", Kind: KindNotEmpty}},
		{"Added", `echo own>n`, Conflict{Path: "n", Kind: KindAddedBoth}},
		{"AddedDirectory", `mkdir x`, Conflict{Path: "x", Kind: KindAddedBoth}},
		{"ParentGone", `rm -r empty`, Conflict{Path: "empty/in", Kind: KindParentMissing}},
		{"ParentIsLink", `mv empty e; ln -s e empty`, Conflict{Path: "empty/in", Kind: KindParentReplaced}},
		{"MetaChanged", `chmod 711 run`, Conflict{Path: "run", Kind: KindMode}},
		{"MetaGone", `rm run`, Conflict{Path: "run", Kind: KindDeletedByOriginal}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := newTrees(t, script(t, sweepBase))
			sh(t, tr.ours, sweepScript+`; echo in>empty/in; chmod 755 empty`)
			req := tr.request(t)
			var want []string
			_, err := apply(tr.orig, req, at("do ", func() {
				sh(t, tr.orig, tc.user)
				want = snapshot(t, tr.orig)
			}))
			var late *LateConflict
			if !errors.As(err, &late) {
				t.Fatalf("error: got %v, want a LateConflict", err)
			}
			if diff := cmp.Diff(tc.want, Conflict{Path: late.Conflict.Path, Kind: late.Conflict.Kind}); diff != "" {
				t.Errorf("conflict: (-want +got)\n%s", diff)
			}
			sameTrees(t, "original", snapshot(t, tr.orig), want)
			noJournal(t, tr.orig)
		})
	}
}

// What both sides did meanwhile alike is no conflict.
func TestSession_CommitLateAgreement(t *testing.T) {
	tr := newTrees(t, script(t, baseScript))
	sh(t, tr.ours, `rm -r b d; chmod 600 run`)
	_, err := apply(tr.orig, tr.request(t), at("do ", func() { sh(t, tr.orig, `rm -r b d; chmod 600 run`) }))
	must(t, err)
	sameTrees(t, "original", snapshot(t, tr.orig), snapshot(t, tr.ours))
}

// After a late conflict, the same session can check again.
func TestSession_CheckAgainAfterLateConflict(t *testing.T) {
	ctx := context.Background()
	tr := newTrees(t, script(t, baseScript))
	sh(t, tr.ours, `echo A>a`)
	req := tr.request(t)
	s := open(t, tr.orig, at("do ", func() { sh(t, tr.orig, `echo O>a`) }))
	p, _, err := s.Check(ctx, req)
	must(t, err)
	must(t, s.Stage(ctx, p))
	if err := s.Commit(ctx); err == nil {
		t.Fatal("commit: no error")
	}
	_, conflicts, err := s.Check(ctx, req)
	must(t, err)
	if diff := cmp.Diff([]string{"a: content"}, kinds(conflicts)); diff != "" {
		t.Errorf("conflicts: (-want +got)\n%s", diff)
	}
}

// A user who swaps a directory for a link to somewhere else, over and over: nothing is ever written there.
func TestSession_LinkRace(t *testing.T) {
	tr := newTrees(t, script(t, `mkdir d; echo f>d/f; echo g>d/g`))
	outside := memDir(t)
	sh(t, outside, `echo f>f; echo g>g`)
	sh(t, tr.ours, `echo F>d/f; rm d/g; echo n>d/n; mkdir d/x; echo y>d/x/y; chmod 600 d/f`)
	req := tr.request(t)
	want, d, aside := snapshot(t, outside), filepath.Join(tr.orig, "d"), filepath.Join(tr.orig, "aside")
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			_ = os.Rename(d, aside)
			_ = os.Symlink(outside, d)
			_ = os.Remove(d)
			_ = os.Rename(aside, d)
		}
	})
	applied := false
	for i := 0; i < 300 && !applied; i++ {
		conflicts, err := apply(tr.orig, req, nil)
		applied = err == nil && len(conflicts) == 0
		if s, err := Open(context.Background(), tr.orig, Options{}); err == nil {
			if _, pending := s.Pending(); pending {
				_, _ = s.Recover(context.Background(), Back)
			}
			_ = s.Close()
		}
	}
	stop.Store(true)
	wg.Wait()
	sameTrees(t, "outside", snapshot(t, outside), want)
}

// A crash in the middle, then the user goes on working.
func TestSession_RecoverAfterEdits(t *testing.T) {
	for _, tc := range []struct {
		name, user string
		direction  Direction
		want       Outcome
		forward    []string
		back       []string
	}{
		{name: "Untouched", want: Applied},
		{name: "UntouchedBack", direction: Back, want: Undone},
		{name: "ElsewhereForward", user: `echo own>own`, want: Applied},
		{name: "DoneIsEdited", user: `echo more>>a`, want: Applied},
		{name: "DoneIsEditedBack", user: `echo more>>a`, direction: Back, back: []string{"a: modified_since_commit"}},
		{name: "RestIsEdited", user: `echo O>z`, want: Undone},
		{name: "BothEdited", user: `echo more>>a; echo O>z`, forward: []string{"z: content"}, back: []string{"a: modified_since_commit"}},
		{name: "NewDirectoryUsed", user: `echo own>x/own; echo O>z`, forward: []string{"z: content"}, back: []string{"x: directory_not_empty"}},
		{name: "OldNameTaken", user: `echo own>b; echo O>z`, forward: []string{"z: content"}, back: []string{"b: added_both"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := context.Background()
			tr := newTrees(t, script(t, `echo a>a; echo b>b; echo z>z`))
			sh(t, tr.ours, `echo A>a; rm b; mkdir x; echo y>x/y; echo Z>z`)
			before := snapshot(t, tr.orig)
			interrupt(t, tr, "z")
			sh(t, tr.orig, tc.user)
			edited := snapshot(t, tr.orig)
			s := open(t, tr.orig, nil)
			if _, _, err := s.Check(ctx, tr.request(t)); !errors.Is(err, ErrPending) {
				t.Errorf("check: got %v, want ErrPending", err)
			}
			got, err := s.Recover(ctx, tc.direction)
			if tc.want == "" {
				var b *Blocked
				if !errors.As(err, &b) {
					t.Fatalf("error: got %v, want Blocked", err)
				}
				if diff := cmp.Diff([][]string{tc.forward, tc.back}, [][]string{kinds(b.Forward), kinds(b.Back)}); diff != "" {
					t.Errorf("blocked: (-want +got)\n%s", diff)
				}
				sameTrees(t, "original", snapshot(t, tr.orig), edited)
				return
			}
			must(t, err)
			if got != tc.want {
				t.Errorf("outcome: got %s, want %s", got, tc.want)
			}
			if got == Applied {
				must(t, s.Finish(ctx))
				before = snapshot(t, tr.ours)
			}
			must(t, s.Close())
			noJournal(t, tr.orig)
			if tc.user == "" {
				sameTrees(t, "original", snapshot(t, tr.orig), before)
			}
		})
	}
}

// interrupt leaves a journal as a crash right before the operation on a path would.
func interrupt(t *testing.T, tr trees, stopAt layer.Path) {
	t.Helper()
	ctx := context.Background()
	dead := false
	slot := ""
	s := open(t, tr.orig, func(point string) error {
		if dead = dead || point == "do "+slot; dead {
			return errInjected
		}
		return nil
	})
	p, conflicts, err := s.Check(ctx, tr.request(t))
	must(t, err)
	if len(conflicts) > 0 {
		t.Fatalf("conflicts: %v", conflicts)
	}
	i := slices.IndexFunc(p.ops, func(o op) bool { return o.Path == stopAt })
	slot = p.ops[i].Slot
	must(t, s.Stage(ctx, p))
	if err := s.Commit(ctx); !errors.Is(err, errInjected) {
		t.Fatalf("commit: got %v", err)
	}
	must(t, s.Close())
}

// A waiter gets the lock of the file that the path names, although every holder deletes it.
func TestOpen_LockExcludes(t *testing.T) {
	root := memDir(t)
	var inside atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				s, err := Open(context.Background(), root, Options{})
				if err != nil {
					t.Error(err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("holders: got %d, want 1", n)
				}
				inside.Add(-1)
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	noJournal(t, root)
}

func TestOpen_LockWaitEnds(t *testing.T) {
	root := memDir(t)
	open(t, root, nil)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, root, Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error: got %v, want deadline exceeded", err)
	}
}

func TestPreview_ReplacedCanBeKept(t *testing.T) {
	ctx := context.Background()
	tr := newTrees(t, script(t, baseScript))
	sh(t, tr.ours, `echo A>a; rm b; echo n>n; chmod 600 run; rm -r d`)
	s := open(t, tr.orig, nil)
	p, _, err := s.Check(ctx, tr.request(t))
	must(t, err)
	var replaced, steps []string
	for _, e := range p.Replaced {
		line := string(e.Path)
		if e.Type == layer.File {
			r, err := s.OpenOriginal(e.Path)
			must(t, err)
			b, err := io.ReadAll(r)
			must(t, errors.Join(err, r.Close()))
			if got := digestOfBytes(b); got != e.Digest {
				t.Errorf("digest of %s: got %s, want %s", e.Path, got, e.Digest)
			}
			line += "=" + strings.TrimSpace(string(b))
		}
		replaced = append(replaced, line)
	}
	for _, st := range p.Steps {
		steps = append(steps, string(st.Path)+" "+string(st.Action))
	}
	if diff := cmp.Diff([]string{"a=a", "b=b", "d", "d/e", "d/e/g=g", "d/f=f", "run=run"}, replaced); diff != "" {
		t.Errorf("replaced: (-want +got)\n%s", diff)
	}
	want := []string{"a replace", "b remove", "d remove", "d/e remove", "d/e/g remove", "d/f remove", "n add", "run meta"}
	if diff := cmp.Diff(want, steps); diff != "" {
		t.Errorf("steps: (-want +got)\n%s", diff)
	}
	if _, err := s.OpenOriginal("link"); err == nil {
		t.Error("a link was opened")
	}
}

// An undo that was begun is completed, even when nothing would be in the way of the apply any more.
func TestSession_RecoverGoesOnUndoing(t *testing.T) {
	ctx := context.Background()
	tr := newTrees(t, script(t, sweepBase))
	sh(t, tr.ours, sweepScript)
	before := snapshot(t, tr.orig)
	user := at("do ", func() { sh(t, tr.orig, `echo own>n`) })
	undone := 0
	_, err := apply(tr.orig, tr.request(t), func(point string) error {
		if strings.HasPrefix(point, "undo ") {
			if undone++; undone > 3 {
				return errInjected
			}
		}
		return user(point)
	})
	if !errors.Is(err, errInjected) {
		t.Fatalf("error: got %v, want the injected one", err)
	}
	sh(t, tr.orig, `rm n`)
	s := open(t, tr.orig, nil)
	got, err := s.Recover(ctx, Forward)
	must(t, err)
	if got != Undone {
		t.Errorf("outcome: got %s, want undone", got)
	}
	must(t, s.Close())
	sameTrees(t, "original", snapshot(t, tr.orig), before)
	noJournal(t, tr.orig)
}

// A directory that is moved out of the root between the lookup and the rename: what was written there is taken back.
func TestExecutor_DirectoryMovedAway(t *testing.T) {
	ctx := context.Background()
	tr := newTrees(t, script(t, baseScript))
	sh(t, tr.ours, `echo F>d/f; echo n>d/n`)
	s := open(t, tr.orig, nil)
	p, _, err := s.Check(ctx, tr.request(t))
	must(t, err)
	must(t, s.Stage(ctx, p))
	x, err := s.executor()
	must(t, err)
	defer x.stage.dir.Close()
	outside := filepath.Join(memDir(t), "moved")
	before := snapshot(t, filepath.Join(tr.orig, "d"))
	for i := range s.journal.Ops {
		o := &s.journal.Ops[i]
		dir, name, err := x.tree.parent(o.Path)
		must(t, err)
		must(t, os.Rename(filepath.Join(tr.orig, "d"), outside))
		err = x.ended(o, dir, name, x.move(o, dir, name))
		var late *LateConflict
		if !errors.As(err, &late) {
			t.Errorf("%s %s: got %v, want a LateConflict", o.Kind, o.Path, err)
		}
		sameTrees(t, "outside", snapshot(t, outside), before)
		must(t, os.Rename(outside, filepath.Join(tr.orig, "d")))
		must(t, dir.Close())
	}
}
