package layer

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// watched is a directory that has been watched since all in it was old enough.
func watched(t *testing.T) (*Watch, string) {
	t.Helper()
	dir := scratch(t)
	must(t, write(dir, "f", "content"))
	must(t, write(dir, "d/g", "other"))
	must(t, write(dir, "d/e/h", "deep"))
	for end := time.Now().Add(2 * racyWindow); time.Now().Before(end); {
		runtime.Gosched()
	}
	w, err := WatchDir(t.Context(), dir)
	must(t, err)
	must(t, w.Wait())
	return w, dir
}

func TestWatch_Drifted(t *testing.T) {
	all := []Path{".", "f", "d", "d/g", "d/e/h", "new", "d/new", "d/e/new", "n/m"}
	tests := []struct {
		name    string
		change  func(dir string) error
		drifted []Path
		changed []Path
	}{
		{"Nothing", func(string) error { return nil }, nil, nil},
		{"Content", func(d string) error { return os.WriteFile(d+"/f", []byte("CONTENT"), 0o644) }, []Path{"f"}, []Path{"f"}},
		{"SameSizeAndTime", func(d string) error {
			return layertest.KeepTime(d+"/f", func() error { return os.WriteFile(d+"/f", []byte("CONTENT"), 0o644) })
		}, []Path{"f"}, []Path{"f"}},
		{"Beside", func(d string) error { return write(d, "d/x", "") }, nil, []Path{"d/x"}},
		{"Added", func(d string) error { return write(d, "d/new", "") }, []Path{"d/new"}, []Path{"d/new"}},
		{"Removed", func(d string) error { return os.Remove(d + "/d/g") }, []Path{"d/g"}, []Path{"d"}},
		{"Mode", func(d string) error { return os.Chmod(d+"/d", 0o700) }, []Path{"d", "d/g", "d/e/h", "d/new", "d/e/new"}, []Path{"d"}},
		{"ReplacedDirectory", func(d string) error {
			return errors.Join(os.Rename(d+"/d/e", d+"/d/old"), write(d, "d/e/h", "deep"))
		}, []Path{"d/e/h", "d/e/new"}, []Path{"d/e", "d/e/h", "d/old", "d/old/h"}},
		{"FileForDirectory", func(d string) error { return errors.Join(os.RemoveAll(d+"/d/e"), write(d, "d/e", "")) }, []Path{"d/e/h", "d/e/new"}, []Path{"d", "d/e"}},
		{"Journal", func(d string) error { return write(d, JournalDir+"/x", "") }, nil, []Path{"."}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w, dir := watched(t)
			must(t, tt.change(dir))
			got, err := w.Drifted(all)
			must(t, err)
			if d := cmp.Diff(tt.drifted, got); d != "" {
				t.Errorf("drifted (-want +got):\n%s", d)
			}
			changed, total, err := w.Changed(t.Context(), 100)
			must(t, err)
			slices.Sort(changed)
			if d := cmp.Diff(tt.changed, changed); d != "" || total != len(changed) {
				t.Errorf("changed, %d in all (-want +got):\n%s", total, d)
			}
		})
	}
}

// What changes after the watch began and before it came by is drift, too.
func TestWatch_ChangedBeforeTheWalk(t *testing.T) {
	dir := scratch(t)
	must(t, write(dir, "f", "content"))
	w, err := WatchDir(t.Context(), dir)
	must(t, err)
	must(t, w.Wait())
	w.since = 0 // as if it had begun before all that is there changed
	must(t, w.look(t.Context()))
	got, err := w.Drifted([]Path{"f", "gone"})
	must(t, err)
	if d := cmp.Diff([]Path{"f", "gone"}, got); d != "" {
		t.Errorf("drifted (-want +got):\n%s", d)
	}
}

// A live layer shows its directory under the owner's name, without what an apply stages in it, and is refused where
// changes leave no trace.
func TestLive(t *testing.T) {
	_, dir := watched(t)
	must(t, write(dir, JournalDir+"/x", ""))
	l, err := Live(dir)
	must(t, err)
	var got []Path
	must(t, NewTree(Chain{l}).Walk(func(e Entry) error {
		if e.UID != Self || e.GID != Self {
			t.Errorf("%q belongs to %d:%d", e.Path, e.UID, e.GID)
		}
		got = append(got, e.Path)
		return nil
	}))
	if d := cmp.Diff([]Path{".", "d", "d/e", "d/e/h", "d/g", "f"}, got); d != "" {
		t.Errorf("paths (-want +got):\n%s", d)
	}
	if _, err := NewTree(Chain{l}).Lookup(JournalDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the journal shows: %v", err)
	}
	if _, err := Live("/proc"); !errors.Is(err, ErrNoLive) {
		t.Errorf("/proc: error %v, want ErrNoLive", err)
	}
}
