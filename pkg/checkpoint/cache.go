package checkpoint

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/warmfleet/warmfleet/internal/fault"
	"github.com/warmfleet/warmfleet/internal/layer"
)

// CacheSweep says what SweepCache may remove from this worker's cache.
type CacheSweep struct {
	// Owned are layers of others: base images, and whatever is to be rolled back. They are not
	// looked at.
	Owned []string
	// Budget is what the layers may take that nothing here uses and that can be fetched again, in
	// bytes of their tars. The least recently used go first.
	Budget int64
	// Start: nothing was begun here yet, so what is unused now is left over. Else a layer goes
	// only when it was unused at the sweep before as well: it may just be being made.
	Start bool
}

// CacheSwept is what a sweep did.
type CacheSwept struct {
	// Removed layers; Bytes of their tars, as far as known.
	Removed int
	Bytes   int64
	// Unused is how many layers stay that nothing here uses, and UnusedBytes what they take.
	Unused      int
	UnusedBytes int64
}

// idle is a layer of the cache that nothing uses.
type idle struct {
	layer.Layer
	used time.Time
}

// SweepCache removes layers of the cache that nothing uses: those without a stored name at
// once, since nobody could find them again, the others beyond the budget. A layer of a local
// checkpoint, of a live sandbox or of whoever restored one is in use.
func (m *Manager) SweepCache(o CacheSweep) (CacheSwept, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	unused, err := m.unused(o.Owned)
	if err != nil {
		return CacheSwept{}, fmt.Errorf("checkpoint: sweep the cache: %w", err)
	}
	before := m.idle
	m.idle = map[string]bool{}
	var done CacheSwept
	for _, l := range unused { // most recently used first
		fits := l.Name != "" && done.UnusedBytes+l.TarSize <= o.Budget
		if fits || !o.Start && !before[l.ID] {
			m.idle[l.ID] = true
			done.Unused, done.UnusedBytes = done.Unused+1, done.UnusedBytes+l.TarSize
			continue
		}
		fault.At("checkpoint.unused")
		m.remove(l.ID)
		fault.At("checkpoint.cache-swept")
		done.Removed, done.Bytes = done.Removed+1, done.Bytes+l.TarSize
	}
	return done, nil
}

// unused lists what nothing here uses, most recently used first. The lock is held.
func (m *Manager) unused(owned []string) ([]idle, error) {
	ids, err := m.cfg.Cache.Layers()
	if err != nil {
		return nil, err
	}
	busy := m.busy()
	for _, id := range owned {
		busy[id] = true
	}
	var out []idle
	for _, id := range ids {
		if busy[id] {
			continue
		}
		l, err := m.cfg.Cache.Get(id)
		if errors.Is(err, layer.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		used, err := m.cfg.Cache.Used(id)
		if err != nil {
			return nil, err
		}
		out = append(out, idle{l, used})
	}
	slices.SortFunc(out, func(a, b idle) int { return b.used.Compare(a.used) })
	return out, nil
}

// busy are the layers that something here uses. The lock is held.
func (m *Manager) busy() map[string]bool {
	ids := map[string]bool{}
	for _, l := range m.local {
		for _, x := range l.chain {
			ids[x.ID] = true
		}
	}
	for _, t := range m.live {
		for _, x := range t.sandbox.Chain() {
			ids[x.ID] = true
		}
	}
	for id := range m.pins {
		ids[id] = true
	}
	return ids
}
