package objectstoretest

import (
	"bytes"
	"errors"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/pkg/objectstore"
)

func marker(t *testing.T, s objectstore.Store) objectstore.Marker {
	t.Helper()
	m, ok := s.(objectstore.Marker)
	if !ok {
		t.Skip("reason: this store can't mark objects, so nothing collects its garbage")
	}
	return m
}

func mark(t *testing.T, m objectstore.Marker, o objectstore.Info) objectstore.Info {
	t.Helper()
	got, err := m.Mark(t.Context(), o)
	if err != nil {
		t.Fatalf("Mark: %v", err)
	}
	now, err := m.Clock(t.Context())
	if err != nil {
		t.Fatalf("Clock: %v", err)
	}
	if age := now.Sub(got.Marked); age < 0 || age > time.Minute {
		t.Errorf("Mark: marked %v ago by the store's clock", age)
	}
	want := o
	want.Version, want.Marked = got.Version, got.Marked
	if diff := cmp.Diff(got, want); diff != "" || got.Version == o.Version {
		t.Errorf("Mark %q from version %d: got - want +\n%s", o.Name, o.Version, diff)
	}
	return got
}

func testMarkReap(t *testing.T, s objectstore.Store) {
	m := marker(t, s)
	data := Bytes(20, 1_200_000)
	stored := Put(t, s, "x", data)
	if err := m.Reap(t.Context(), stored); !errors.Is(err, objectstore.ErrChanged) {
		t.Errorf("Reap without a mark: got %v, want ErrChanged", err)
	}
	marked := mark(t, m, stored)
	Check(t, s, "x", data)
	if listed, err := s.List(t.Context()); err != nil || len(listed) != 1 || listed[0] != marked {
		t.Errorf("List of a marked object: got %+v, %v, want %+v", listed, err, marked)
	}
	for name, stale := range map[string]objectstore.Info{"Mark": stored, "absent": {Name: "y", Version: 1}} {
		if _, err := m.Mark(t.Context(), stale); !errors.Is(err, objectstore.ErrChanged) {
			t.Errorf("%s of another version: got %v, want ErrChanged", name, err)
		}
	}
	if err := m.Reap(t.Context(), marked); err != nil {
		t.Fatalf("Reap: %v", err)
	}
	checkAbsent(t, s, "x")
	if err := m.Reap(t.Context(), marked); !errors.Is(err, objectstore.ErrChanged) {
		t.Errorf("second Reap: got %v, want ErrChanged", err)
	}
	if _, err := m.Spare(t.Context(), "x"); !errors.Is(err, objectstore.ErrNotFound) {
		t.Errorf("Spare after Reap: got %v, want ErrNotFound", err)
	}
	Put(t, s, "x", data)
	if err := m.Reap(t.Context(), marked); !errors.Is(err, objectstore.ErrChanged) {
		t.Errorf("Reap of what was stored again: got %v, want ErrChanged", err)
	}
	Check(t, s, "x", data)
}

func testSpareWins(t *testing.T, s objectstore.Store) {
	m := marker(t, s)
	data := Bytes(21, 600_000)
	stored := Put(t, s, "x", data)
	if same, err := m.Spare(t.Context(), "x"); err != nil || same != stored {
		t.Errorf("Spare without a mark: got %+v, %v, want %+v", same, err, stored)
	}
	marked := mark(t, m, stored)
	spared, err := m.Spare(t.Context(), "x")
	if err != nil || !spared.Marked.IsZero() || !spared.ModTime.Equal(stored.ModTime) {
		t.Errorf("Spare: got %+v, %v", spared, err)
	}
	if err := m.Reap(t.Context(), marked); !errors.Is(err, objectstore.ErrChanged) {
		t.Errorf("Reap of what was spared: got %v, want ErrChanged", err)
	}
	mark(t, m, spared)
	if err := m.Reap(t.Context(), marked); !errors.Is(err, objectstore.ErrChanged) {
		t.Errorf("Reap by an earlier mark: got %v, want ErrChanged", err)
	}
	Check(t, s, "x", data)
}

func testPutSpares(t *testing.T, s objectstore.Store) {
	m := marker(t, s)
	data := Bytes(22, 600_000)
	marked := mark(t, m, Put(t, s, "x", data))
	got, err := s.Put(t.Context(), "x", iotest.ErrReader(errors.New("must not be read")))
	if err != nil || !got.Marked.IsZero() {
		t.Errorf("Put on a marked object: got %+v, %v", got, err)
	}
	if err := m.Reap(t.Context(), marked); !errors.Is(err, objectstore.ErrChanged) {
		t.Errorf("Reap of what was put again: got %v, want ErrChanged", err)
	}
	Check(t, s, "x", data)
}

func testQuarantine(t *testing.T, s objectstore.Store) {
	m := marker(t, s)
	data := Bytes(23, 700_000)
	stored := Put(t, s, "x", data)
	if err := m.Quarantine(t.Context(), stored, "a bit flipped"); err != nil {
		t.Fatalf("Quarantine: %v", err)
	}
	if _, err := s.Stat(t.Context(), "x"); !errors.Is(err, objectstore.ErrCorrupt) {
		t.Errorf("Stat: got %v, want ErrCorrupt", err)
	}
	if _, err := ReadAll(t.Context(), s, "x"); !errors.Is(err, objectstore.ErrCorrupt) {
		t.Errorf("Get: got %v, want ErrCorrupt", err)
	}
	if listed, err := s.List(t.Context()); err != nil || len(listed) != 1 || listed[0].Quarantined != "a bit flipped" {
		t.Errorf("List: got %+v, %v", listed, err)
	}
	if _, err := s.Put(t.Context(), "x", bytes.NewReader(data)); err != nil {
		t.Fatalf("Put of good bytes: %v", err)
	}
	Check(t, s, "x", data)
	if listed, err := s.List(t.Context()); err != nil || len(listed) != 1 || listed[0].Quarantined != "" {
		t.Errorf("List after Put: got %+v, %v", listed, err)
	}
}
