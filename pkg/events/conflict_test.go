package events_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/pkg/events"
)

func manyConflicts(n int) []events.Conflict {
	var out []events.Conflict
	for i := range n {
		state := &events.FileState{Type: "symlink", Mode: "0777", Link: strings.Repeat("\x00", 100)}
		out = append(out, events.Conflict{Path: fmt.Sprintf("%06d/%s", i, strings.Repeat("<", 200)), Kind: "content", Base: state, Theirs: state})
	}
	return out
}

// However many there are, each event has room for its part, the state beside it stays small, and a view has all.
func TestSplitConflicts(t *testing.T) {
	for _, n := range []int{0, 1, 63, 1000, 5000, events.MaxConflicts + 1} {
		all := manyConflicts(n)
		pieces := events.SplitConflicts(all)
		r := accepting(events.ApplyAuto).add(events.TypeClaimed, events.Data{Epoch: 1}).add(events.TypeExecuted, events.Data{Epoch: 1})
		for _, p := range pieces[:len(pieces)-1] {
			r.add(events.TypeConflictPart, events.Data{Epoch: 1, Conflicts: p})
		}
		r.add(events.TypeConflict, events.Data{Epoch: 1, Conflicts: pieces[len(pieces)-1], ConflictCount: n})
		for _, rec := range r.records {
			if b, err := events.EncodeEvent(rec.Event, 1<<20); err != nil || strings.Contains(string(b), `"omitted"`) {
				t.Fatalf("%d: %s does not fit: %v", n, rec.Event.Kind(), err)
			}
		}
		v := events.BuildView(r.records)
		if diff := cmp.Diff(v.Conflicts, append([]events.Conflict{}, all[:min(n, events.MaxConflicts)]...)); diff != "" || v.ConflictCount != n {
			t.Errorf("%d: counted %d, conflicts (- got, + want):\n%.2000s", n, v.ConflictCount, diff)
		}
	}
}

// A worker that was lost between two parts leaves nothing in what its successor finds.
func TestBuildView_ConflictsOfTheLastClaim(t *testing.T) {
	found := []events.Conflict{{Path: "b", Kind: "mode"}}
	v := events.BuildView(accepting(events.ApplyAuto).
		add(events.TypeClaimed, events.Data{Epoch: 1}).add(events.TypeExecuted, events.Data{Epoch: 1}).
		add(events.TypeConflictPart, events.Data{Epoch: 1, Conflicts: []events.Conflict{{Path: "a", Kind: "mode"}}}).
		add(events.TypeClaimed, events.Data{Epoch: 2}).
		add(events.TypeConflict, events.Data{Epoch: 2, Conflicts: found}).records)
	if diff := cmp.Diff(v.Conflicts, found); diff != "" || v.ConflictCount != 1 {
		t.Errorf("counted %d, conflicts (- got, + want):\n%s", v.ConflictCount, diff)
	}
}

func TestBuildView_Undo(t *testing.T) {
	r := accepting(events.ApplyAuto).
		add(events.TypeClaimed, events.Data{Epoch: 1}).add(events.TypeExecuted, events.Data{Epoch: 1}).
		add(events.TypeApplyIntent, events.Data{Epoch: 1}).add(events.TypeApplied, events.Data{Epoch: 1, Changed: ptr(2)})
	if v := events.BuildView(r.records); v.Undo != nil {
		t.Errorf("before: %+v", v.Undo)
	}
	found := []events.Conflict{{Path: "a", Kind: "content"}}
	r.add(events.TypeUndoRequested, events.Data{By: "me"}).add(events.TypeUndoFailed, events.Data{Code: "conflict", Error: "e", Conflicts: found, ConflictCount: 1})
	code, msg := "conflict", "e"
	want := &events.UndoView{State: events.UndoFailed, By: "me", Code: &code, Error: &msg, Conflicts: found, ConflictCount: 1}
	if diff := cmp.Diff(events.BuildView(r.records).Undo, want); diff != "" {
		t.Errorf("failed (- got, + want):\n%s", diff)
	}
	r.add(events.TypeUndoRequested, events.Data{By: "you"})
	want = &events.UndoView{State: events.UndoRequested, By: "you", Conflicts: []events.Conflict{}}
	if diff := cmp.Diff(events.BuildView(r.records).Undo, want); diff != "" {
		t.Errorf("requested (- got, + want):\n%s", diff)
	}
	r.add(events.TypeRolledBack, events.Data{Reason: events.ReasonUndo, Changed: ptr(2), RolledBack: "original"})
	want.State, want.Changed = events.UndoDone, ptr(2)
	v := events.BuildView(r.records)
	if diff := cmp.Diff(v.Undo, want); diff != "" || v.State != events.StateApplied || v.RolledBack == nil || *v.RolledBack != "original" {
		t.Errorf("done: %s, (- got, + want):\n%s", v.State, diff)
	}
}
