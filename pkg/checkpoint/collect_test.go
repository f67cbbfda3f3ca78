package checkpoint_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
)

// desk is a worker's manager without sandboxes: its checkpoints are of layers that it builds.
type desk struct {
	cache   *layer.Cache
	manager *checkpoint.Manager
	store   objectstore.Store
	records kv.Store
}

func newDesk(t *testing.T, store objectstore.Store, records kv.Store) *desk {
	t.Helper()
	dir := t.TempDir()
	cache, err := layer.OpenCache(filepath.Join(dir, "layers"), layer.Options{Owner: isolate.HostID, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cache.Close() })
	return &desk{cache: cache, store: store, records: records, manager: checkpoint.New(checkpoint.Config{
		Cache: cache, Store: store, Records: records, Scratch: dir, Worker: "desk", Log: zerolog.Nop(), NewID: events.NewID,
	})}
}

// keep makes a local checkpoint of a layer with one file.
func (d *desk) keep(t *testing.T, planID, content string) checkpoint.Checkpoint {
	t.Helper()
	l, err := d.cache.Build(func(b *layer.Builder) error {
		e := layer.Entry{Path: "f", Type: layer.File, Mode: 0o644, UID: layer.Self, GID: layer.Self, MTime: time.Unix(1, 0), Size: int64(len(content))}
		root := layer.Entry{Path: ".", Type: layer.Dir, Mode: 0o755, UID: layer.Self, GID: layer.Self, MTime: time.Unix(1, 0)}
		return errors.Join(b.Put(root, nil), b.Put(e, strings.NewReader(content)))
	})
	if err != nil {
		t.Fatal(err)
	}
	return d.manager.Keep(l, checkpoint.Checkpoint{PlanID: planID, Phase: checkpoint.PreApply})
}

func (d *desk) put(t *testing.T, planID, content string) checkpoint.Checkpoint {
	t.Helper()
	cp, err := d.manager.Store(t.Context(), d.keep(t, planID, content).ID)
	if err != nil {
		t.Fatal(err)
	}
	return cp
}

func (d *desk) collect(t *testing.T, c checkpoint.Collection) checkpoint.Collected {
	t.Helper()
	if c.Fate == nil {
		c.Fate = pinned
	}
	c.Log = zerolog.Nop()
	done, err := checkpoint.Collect(t.Context(), d.store, d.records, c)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

func (d *desk) sound(t *testing.T, want int) {
	t.Helper()
	found, err := checkpoint.Verify(t.Context(), d.store, d.records, checkpoint.Part{N: 1, T: 1})
	if err != nil {
		t.Fatal(err)
	}
	if len(found.Problems) > 0 || found.Checkpoints != want {
		t.Errorf("verified %+v, want %d checkpoints without a problem", found, want)
	}
}

func pinned(checkpoint.Checkpoint, time.Time) checkpoint.Fate { return checkpoint.Fate{Pinned: true} }

func (d *desk) names(t *testing.T) (names []string) {
	t.Helper()
	all, err := d.store.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		names = append(names, o.Name)
	}
	return names
}

func TestCollect_RecordsFirstThenLayersAfterTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, objectstore.NewMemory(), kv.NewMemory())
		d.put(t, "old", "1")
		young := d.put(t, "young", "2")
		fate := func(c checkpoint.Checkpoint, written time.Time) checkpoint.Fate {
			return checkpoint.Fate{Until: written.Add(map[string]time.Duration{"old": time.Hour, "young": 100 * time.Hour}[c.PlanID])}
		}
		collect := func(dry bool) checkpoint.Collected {
			done := d.collect(t, checkpoint.Collection{Fate: fate, Grace: checkpoint.Grace, DryRun: dry})
			done.Bytes, done.MarkedBytes, done.KeptBytes = 0, 0, 0
			return done
		}
		size := func(want int) {
			t.Helper()
			if got := d.names(t); len(got) != want {
				t.Errorf("%d objects, want %d", len(got), want)
			}
		}
		if got := collect(false); len(got.Checkpoints) != 0 || got.Marked != 0 || got.Kept != 2 {
			t.Errorf("before its time: %+v", got)
		}
		time.Sleep(2 * time.Hour)
		dry := collect(true)
		if len(dry.Checkpoints) != 1 || dry.Marked != 1 {
			t.Errorf("dry run: %+v, want one checkpoint and one layer", dry)
		}
		d.sound(t, 2)
		wet := collect(false)
		dry.DryRun = false
		if diff := cmp.Diff(wet, dry); diff != "" {
			t.Errorf("what was done and what was said before: - +\n%s", diff)
		}
		size(2)
		time.Sleep(checkpoint.Grace - time.Minute)
		collect(false)
		size(2)
		time.Sleep(2 * time.Minute)
		if got := collect(false); got.Objects != 1 {
			t.Errorf("after the grace: %+v, want one object removed", got)
		}
		size(1)
		d.sound(t, 1)
		if _, err := checkpoint.Load(t.Context(), d.records, young.ID); err != nil {
			t.Error(err)
		}
	})
}

func TestCollect_BudgetTakesEndedPlansInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, objectstore.NewMemory(), kv.NewMemory())
		content := func(c string) string { return strings.Repeat(c, 100) }
		now := time.Now()
		due := map[string]checkpoint.Fate{
			"runs": {Pinned: true}, "later": {Until: now.Add(9 * time.Hour)}, "sooner": {Until: now.Add(5 * time.Hour)}, "ever": {},
		}
		var each int64
		for plan := range due {
			each = d.put(t, plan, content(plan[:1])).SizeBytes
			d.put(t, plan, content(plan[:1])) // shares the layer
		}
		fate := func(c checkpoint.Checkpoint, _ time.Time) checkpoint.Fate { return due[c.PlanID] }
		for _, tc := range []struct {
			budget int64
			gone   []string
			over   bool
		}{
			{4*each + 20, nil, false},
			{3*each + 20, []string{"sooner", "sooner"}, false},
			{1, []string{"later", "later", "ever", "ever"}, true},
		} {
			done := d.collect(t, checkpoint.Collection{Fate: fate, Grace: checkpoint.Grace, Budget: tc.budget})
			var gone []string
			for _, c := range done.Checkpoints {
				if c.Why != "budget" {
					t.Errorf("went because of %s", c.Why)
				}
				gone = append(gone, c.Plan)
			}
			if diff := cmp.Diff(gone, tc.gone); diff != "" || done.OverBudget > 0 != tc.over {
				t.Errorf("budget %d, kept %d, each %d: %d over, went: got - want +\n%s", tc.budget, done.KeptBytes, each, done.OverBudget, diff)
			}
		}
		d.sound(t, 2)
	})
}

func TestCollect_LeavesForeignObjectsAndStopsAtADamagedRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, objectstore.NewMemory(), kv.NewMemory())
		d.put(t, "p", "1")
		if _, err := d.store.Put(t.Context(), "plans/body.json", strings.NewReader("{}")); err != nil {
			t.Fatal(err)
		}
		if done := d.collect(t, checkpoint.Collection{}); done.Foreign != 1 || done.Objects != 0 {
			t.Errorf("collected %+v, want one foreign object left alone", done)
		}
		id := events.NewID()
		if _, err := d.records.Put(t.Context(), id, []byte("{torn")); err != nil {
			t.Fatal(err)
		}
		_, err := checkpoint.Collect(t.Context(), d.store, d.records, checkpoint.Collection{Fate: pinned})
		if err == nil || !strings.Contains(err.Error(), id) {
			t.Errorf("collected beside a damaged record: %v, want an error that names it", err)
		}
		if err := checkpoint.Remove(t.Context(), d.records, id); err != nil {
			t.Error(err)
		}
		d.collect(t, checkpoint.Collection{})
		d.sound(t, 1)
	})
}

// budgeted is a desk on the same store whose plans may store so many bytes.
func budgeted(t *testing.T, d *desk, bytes int64) *desk {
	t.Helper()
	tight := newDesk(t, d.store, d.records)
	tight.manager = checkpoint.New(checkpoint.Config{
		Cache: tight.cache, Store: d.store, Records: d.records, Scratch: t.TempDir(), Worker: "desk", Log: zerolog.Nop(), NewID: events.NewID, PlanBudget: bytes,
	})
	return tight
}
