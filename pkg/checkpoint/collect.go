package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/fault"
	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
)

const (
	// Grace is how long an object must have been marked before it is removed, if it isn't said otherwise.
	Grace = 24 * time.Hour
	// settle is the least time between a mark and the reading of records that decides on it: a
	// replica of the store or of the records may lag behind by less (see Collect).
	settle = time.Second
	// collectedKey is the record of the last whole collection, among those of checkpoints.
	collectedKey = "gc.last"

	deltaSuffix = ".delta.json.zst"
)

// ErrCantCollect: the object store has no marks, so nothing in it can be removed safely.
var ErrCantCollect = errors.New("checkpoint: this object store can't be collected")

// Fate is until when a record is kept.
type Fate struct {
	// Pinned: no budget makes it go earlier.
	Pinned bool
	// Until is when it goes, by the server's clock; zero is never.
	Until time.Time
}

// Collection says what Collect may remove.
type Collection struct {
	// Fate decides on a record, which was written at a time by the server's clock. It is asked
	// while writers go on, so it must pin what it does not know yet.
	Fate func(c Checkpoint, written time.Time) Fate
	// Grace is how long objects that no record names must have been marked; 0 removes them at once.
	Grace time.Duration
	// Budget is what the objects of all records may take, in bytes; 0 is no bound. Beyond it the
	// records that are not pinned go before their time, the one that would go next first, all
	// of a plan together.
	Budget int64
	// DryRun only says what would happen.
	DryRun bool
	Log    zerolog.Logger
}

// Collected is what a collection did. Its JSON form is an answer of the API: fields may be added, none renamed.
type Collected struct {
	DryRun bool `json:"dry_run"`
	// Checkpoints are the records that went.
	Checkpoints []Dropped `json:"checkpoints"`
	// Objects and Bytes went from the store: layers and differences that no record names.
	Objects int   `json:"objects"`
	Bytes   int64 `json:"bytes"`
	// Leavings are interrupted uploads and remains of removals that went beside them.
	Leavings int `json:"leavings"`
	// Marked objects wait for the grace to pass.
	Marked      int   `json:"marked"`
	MarkedBytes int64 `json:"marked_bytes"`
	// Kept is what the records that stay need.
	Kept      int   `json:"kept"`
	KeptBytes int64 `json:"kept_bytes"`
	// OverBudget is by how much that is more than the budget, because all of it is pinned.
	OverBudget int64 `json:"over_budget"`
	// Foreign objects have names of another kind and are left alone.
	Foreign int `json:"foreign"`
}

// Dropped is a record that went.
type Dropped struct {
	ID   string `json:"id"`
	Plan string `json:"plan"`
	// Why is "expired", "budget", or "not whole" for one whose writer was killed.
	Why string `json:"why"`
}

// collector is one collection.
type collector struct {
	store   objectstore.Store
	marker  objectstore.Marker
	records kv.Store
	Collection
	now     time.Time
	removed []string // by this collection and those before
	done    Collected
}

// filed is a record as it is stored.
type filed struct {
	Checkpoint
	revision uint64
	fate     Fate
}

// Collect removes records that nobody needs any more, and then objects that no record names.
// Writers, readers and another Collect may go on beside it:
//
//   - A record is removed in the revision that was decided on.
//   - An object without a record is marked first. It is removed when the mark is older than
//     Grace by the store's clock and no record names it then, and only in the version that was
//     marked: who uses an object again takes the mark away, and one of the two fails.
//   - A writer looks at its layers again after its record is there. If a collection did not
//     see that record, it had marked them before, so the writer sees the mark, or that they
//     are gone, and stores them again.
//   - A record that names what was removed all the same is of a writer that stood still for a
//     second and was killed then. It goes with this or the next collection.
//
// It stops at the first error; what it did until then was whole, and the next one goes on.
func Collect(ctx context.Context, store objectstore.Store, records kv.Store, c Collection) (Collected, error) {
	marker, able := store.(objectstore.Marker)
	if !able {
		return Collected{}, ErrCantCollect
	}
	g := &collector{store: store, marker: marker, records: records, Collection: c}
	g.done = Collected{DryRun: c.DryRun, Checkpoints: []Dropped{}}
	if err := g.run(ctx); err != nil {
		return g.done, fmt.Errorf("checkpoint: collect garbage: %w", err)
	}
	return g.done, nil
}

func (g *collector) run(ctx context.Context) error {
	var err error
	if g.now, err = g.marker.Clock(ctx); err != nil {
		return err
	}
	if fault.Off("checkpoint.server-clock") {
		g.now = time.Now()
	}
	if g.removed, err = g.removedBefore(ctx); err != nil {
		return err
	}
	objects, err := g.store.List(ctx) // before the records: what is stored meanwhile is not looked at
	if err != nil {
		return err
	}
	kept, err := g.dropRecords(ctx, objects)
	if err != nil {
		return err
	}
	ripe, err := g.mark(ctx, objects, kept)
	if err != nil {
		return err
	}
	if err := g.reap(ctx, ripe); err != nil || g.DryRun {
		return err
	}
	if err := g.dropUnwhole(ctx); err != nil {
		return err
	}
	fault.At("checkpoint.collected")
	if sweeper, able := g.store.(objectstore.Sweeper); able {
		if g.done.Leavings, err = sweeper.Sweep(ctx, g.Grace); err != nil {
			return err
		}
	}
	fault.At("checkpoint.leavings-gone")
	return g.note(ctx)
}

// load reads all records. One that can't be read stops the collection: it may need any object.
func (g *collector) load(ctx context.Context) ([]filed, error) {
	entries, err := g.records.List(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	all := make([]filed, 0, len(entries))
	for _, e := range entries {
		if e.Key == collectedKey {
			continue
		}
		f := filed{revision: e.Revision}
		if err := json.Unmarshal(e.Value, &f.Checkpoint); err != nil {
			return nil, fmt.Errorf("record %q is damaged, so nobody knows what it needs: remove it with checkpoint rm first: %w", e.Key, err)
		}
		f.fate = g.Fate(f.Checkpoint, e.Created)
		all = append(all, f)
	}
	return all, nil
}

// dropRecords removes the records whose time has come or that the budget has no room for.
func (g *collector) dropRecords(ctx context.Context, objects []objectstore.Info) ([]filed, error) {
	all, err := g.load(ctx)
	if err != nil {
		return nil, err
	}
	var kept []filed
	for _, f := range all {
		if f.fate.Until.IsZero() || f.fate.Until.After(g.now) {
			kept = append(kept, f)
		} else if err := g.drop(ctx, f, "expired"); err != nil {
			return nil, err
		}
	}
	return g.fit(ctx, kept, objects)
}

func (g *collector) drop(ctx context.Context, f filed, why string) error {
	if !g.DryRun {
		err := g.records.Delete(ctx, f.ID, f.revision)
		if err != nil && !errors.Is(err, kv.ErrConflict) {
			return fmt.Errorf("delete record %q: %w", f.ID, err)
		}
		fault.At("checkpoint.dropped")
	}
	g.done.Checkpoints = append(g.done.Checkpoints, Dropped{ID: f.ID, Plan: f.PlanID, Why: why})
	return nil
}

// ours tells whether the name is of a kind of object that only records of checkpoints name.
func ours(name string) bool {
	stem, delta := strings.CutSuffix(name, deltaSuffix)
	return layer.IsStoredName(name) || delta && layer.IsStoredName(stem+".tar.zst")
}

// mark marks the objects that no record names, takes marks from those that one names, and
// returns the ones whose mark is old enough.
func (g *collector) mark(ctx context.Context, objects []objectstore.Info, kept []filed) (ripe []objectstore.Info, err error) {
	need := newNeeds(kept, nil)
	for _, o := range objects {
		if !ours(o.Name) {
			g.done.Foreign++
			continue
		}
		if need.count[o.Name] > 0 {
			err = g.spare(ctx, o)
		} else if o.Marked.IsZero() && !g.DryRun {
			o, err = g.marker.Mark(ctx, o)
			fault.At("checkpoint.marked")
		}
		switch {
		case errors.Is(err, objectstore.ErrChanged), err == nil && need.count[o.Name] > 0:
			// Somebody uses it.
		case err != nil:
			return nil, err
		case g.Grace <= 0, !o.Marked.IsZero() && g.now.Sub(o.Marked) >= g.Grace:
			ripe = append(ripe, o)
		default:
			g.done.Marked, g.done.MarkedBytes = g.done.Marked+1, g.done.MarkedBytes+o.Size
		}
	}
	return ripe, nil
}

func (g *collector) spare(ctx context.Context, o objectstore.Info) error {
	if o.Marked.IsZero() || g.DryRun {
		return nil
	}
	_, err := g.marker.Spare(ctx, o.Name)
	fault.At("checkpoint.spared")
	if gone(err) {
		g.Log.Warn().Err(err).Msg("a checkpoint needs what is not whole in the store: see warmfleet verify")
		return nil
	}
	return err
}

// reap removes objects that still nobody names.
func (g *collector) reap(ctx context.Context, ripe []objectstore.Info) error {
	if len(ripe) == 0 {
		return nil
	}
	if g.Grace < settle && !g.DryRun {
		if err := pause(ctx, settle); err != nil {
			return err
		}
	}
	now, err := g.load(ctx)
	if err != nil {
		return err
	}
	if g.DryRun { // what would be dropped is still there
		now = slices.DeleteFunc(now, func(f filed) bool {
			return slices.ContainsFunc(g.done.Checkpoints, func(d Dropped) bool { return d.ID == f.ID })
		})
	}
	need := newNeeds(now, nil)
	for _, o := range ripe {
		if need.count[o.Name] > 0 && !fault.Off("checkpoint.named-again") {
			continue
		}
		err := g.remove(ctx, o)
		if errors.Is(err, objectstore.ErrChanged) {
			continue
		}
		if err != nil {
			return err
		}
		g.removed = append(g.removed, o.Name)
		g.done.Objects, g.done.Bytes = g.done.Objects+1, g.done.Bytes+o.Size
	}
	return nil
}

func (g *collector) remove(ctx context.Context, o objectstore.Info) error {
	if g.DryRun {
		return nil
	}
	fault.At("checkpoint.ripe")
	err := g.marker.Reap(ctx, o)
	fault.At("checkpoint.reaped")
	return err
}

// dropUnwhole removes records that name what was removed: their writers were killed before they
// could look again. A live one takes its record back itself. What is missing for another
// reason stays, for verify to tell of.
func (g *collector) dropUnwhole(ctx context.Context) error {
	if len(g.removed) == 0 {
		return nil
	}
	all, err := g.load(ctx)
	if err != nil {
		return err
	}
	for _, f := range all {
		for _, name := range f.objects() {
			if !slices.Contains(g.removed, name) {
				continue
			}
			if _, err := g.store.Stat(ctx, name); !errors.Is(err, objectstore.ErrNotFound) {
				continue // stored again, or it can't be told
			}
			if err := g.drop(ctx, f, "not whole"); err != nil {
				return err
			}
			break
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
