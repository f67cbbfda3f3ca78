package checkpoint

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/warmfleet/warmfleet/pkg/objectstore"
)

// fit drops records until what the others need is within the budget.
func (g *collector) fit(ctx context.Context, kept []filed, objects []objectstore.Info) ([]filed, error) {
	need := newNeeds(kept, objects)
	for _, group := range evictable(kept) {
		if g.Budget <= 0 || need.bytes <= g.Budget {
			break
		}
		for _, f := range group {
			if err := g.drop(ctx, f, "budget"); err != nil {
				return nil, err
			}
			need.remove(f)
			kept = slices.DeleteFunc(kept, func(k filed) bool { return k.ID == f.ID })
		}
	}
	g.done.Kept, g.done.KeptBytes = len(kept), need.bytes
	if g.Budget > 0 {
		g.done.OverBudget = max(0, need.bytes-g.Budget)
	}
	return kept, nil
}

// evictable are the records that are not pinned, by plan, those that would go next first.
func evictable(kept []filed) [][]filed {
	plans := map[string][]filed{}
	for _, f := range kept {
		if !f.fate.Pinned {
			key := cmp.Or(f.PlanID, f.ID)
			plans[key] = append(plans[key], f)
		}
	}
	next := func(a, b []filed) int {
		if az, bz := a[0].fate.Until.IsZero(), b[0].fate.Until.IsZero(); az != bz {
			return map[bool]int{true: 1, false: -1}[az] // without a time: last
		}
		return cmp.Or(a[0].fate.Until.Compare(b[0].fate.Until), strings.Compare(a[0].ID, b[0].ID))
	}
	return slices.SortedFunc(maps.Values(plans), next)
}

// needs counts how many records need each object, and what all of them take.
type needs struct {
	count map[string]int
	size  map[string]int64
	bytes int64
}

// newNeeds counts; bytes is of those objects that are in the list.
func newNeeds(records []filed, objects []objectstore.Info) *needs {
	n := &needs{count: map[string]int{}, size: map[string]int64{}}
	for _, o := range objects {
		n.size[o.Name] = o.Size
	}
	for _, f := range records {
		for _, name := range f.objects() {
			if n.count[name]++; n.count[name] == 1 {
				n.bytes += n.size[name]
			}
		}
	}
	return n
}

func (n *needs) remove(f filed) {
	for _, name := range f.objects() {
		if n.count[name]--; n.count[name] == 0 {
			n.bytes -= n.size[name]
		}
	}
}
