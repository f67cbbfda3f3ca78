// Package shelf keeps what a worker may use again within a number of bytes: the bases of paths and of
// repositories, whoever keeps them. The least recently used go first, never one that is in use.
//
// It knows layers and how much they take on disk. It must not know what a base was made of, plans or NATS.
package shelf

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// DefaultShare is the part of the file system that may be taken where nobody says: a fifth.
const DefaultShare = 5

// trimEvery is how often a shelf is looked at when nobody asks: others may have filled it.
const trimEvery = 10 * time.Minute

// Item is something that is kept to be used again.
type Item struct {
	// Key names it to its holder, What to people.
	Key, What string
	// Layers are all that it needs or still holds; items may share some.
	Layers []string
	Used   time.Time
}

// Holder keeps items.
type Holder interface {
	Items() ([]Item, error)
	// Remove removes an item with the layers that no other needs. It is false, and nothing is lost, if the item
	// is in use or being made. A call that was cut short at any point may be repeated; an absent item is removed.
	Remove(ctx context.Context, key string) (bool, error)
}

// Options are what a Shelf is made of.
type Options struct {
	Holders []Holder
	Cache   *layer.Cache
	// Budget is in bytes, as allocated on disk. 0 is no bound.
	Budget int64
	Log    zerolog.Logger
}

// Shelf keeps its holders within the budget. Safe for concurrent use.
type Shelf struct {
	opt   Options
	nudge chan struct{}

	mu    sync.Mutex // one trim at a time
	sizes map[string]int64
	over  int64 // what the last trim had to leave beyond the budget
}

// New makes a shelf.
func New(o Options) *Shelf {
	return &Shelf{opt: o, nudge: make(chan struct{}, 1), sizes: map[string]int64{}}
}

// Nudge makes Run look soon: something was put on the shelf or left it. It never waits.
func (s *Shelf) Nudge() {
	select {
	case s.nudge <- struct{}{}:
	default:
	}
}

// Run trims at once, whenever it was nudged and now and then, until ctx ends.
func (s *Shelf) Run(ctx context.Context) {
	tick := time.NewTicker(trimEvery)
	defer tick.Stop()
	for {
		if err := s.Trim(ctx); err != nil && ctx.Err() == nil {
			s.opt.Log.Warn().Err(err).Msg("keep bases within their budget")
		}
		select {
		case <-ctx.Done():
			return
		case <-s.nudge:
		case <-tick.C:
		}
	}
}

// Trim removes the least recently used items until what is left fits, or is in use: then it is over the budget, which
// is logged once. An item that cannot be removed is skipped and its error returned at the end.
func (s *Shelf) Trim(ctx context.Context) error {
	if s.opt.Budget <= 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all, err := s.items()
	if err != nil {
		return fmt.Errorf("shelf: list: %w", err)
	}
	size, err := s.measure(all)
	if err != nil {
		return fmt.Errorf("shelf: measure: %w", err)
	}
	if size > s.opt.Budget { // extents that are shared with an original take no room: look closely before anything goes
		if size, err = s.measureExactly(all); err != nil {
			return fmt.Errorf("shelf: measure: %w", err)
		}
	}
	errs := []error{s.remove(ctx, all, &size)}
	s.report(size)
	return errors.Join(errs...)
}

// held is an item and who holds it.
type held struct {
	Item
	holder Holder
}

func (s *Shelf) items() ([]held, error) {
	var all []held
	for _, h := range s.opt.Holders {
		items, err := h.Items()
		if err != nil {
			return nil, err
		}
		for _, it := range items {
			all = append(all, held{it, h})
		}
	}
	slices.SortStableFunc(all, func(a, b held) int { return a.Used.Compare(b.Used) })
	return all, nil
}

// remove removes items, the least recently used first, until size fits the budget.
func (s *Shelf) remove(ctx context.Context, all []held, size *int64) error {
	users := map[string]int{}
	for _, it := range all {
		for _, id := range distinct(it.Layers) {
			users[id]++
		}
	}
	var errs []error
	for _, it := range all {
		if *size <= s.opt.Budget {
			break
		}
		gone, err := it.holder.Remove(ctx, it.Key)
		if err != nil {
			errs = append(errs, fmt.Errorf("shelf: remove base of %q: %w", it.What, err))
		}
		if !gone {
			continue
		}
		for _, id := range distinct(it.Layers) {
			if users[id]--; users[id] == 0 {
				*size -= s.sizes[id]
				delete(s.sizes, id)
			}
		}
		s.opt.Log.Info().Str("base", it.What).Time("used", it.Used).Msg("base removed: it was the least recently used one beyond the budget")
	}
	return errors.Join(errs...)
}

func distinct(ids []string) []string {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	return slices.Compact(ids)
}

// measure sums up what the layers of all items take, each layer once.
func (s *Shelf) measure(all []held) (int64, error) {
	var size int64
	err := s.each(all, func(id string) error {
		if _, known := s.sizes[id]; !known {
			if err := s.measureLayer(id, layer.Allocated); err != nil {
				return err
			}
		}
		size += s.sizes[id]
		return nil
	})
	return size, err
}

// measureExactly is measure without what is shared with files outside.
func (s *Shelf) measureExactly(all []held) (int64, error) {
	var size int64
	err := s.each(all, func(id string) error {
		if err := s.measureLayer(id, layer.Exclusive); err != nil {
			return err
		}
		size += s.sizes[id]
		return nil
	})
	return size, err
}

// each calls fn once for every layer, and forgets the sizes of those that are gone.
func (s *Shelf) each(all []held, fn func(id string) error) error {
	seen := map[string]bool{}
	for _, it := range all {
		for _, id := range it.Layers {
			if seen[id] {
				continue
			}
			seen[id] = true
			if err := fn(id); err != nil {
				return err
			}
		}
	}
	for id := range s.sizes {
		if !seen[id] {
			delete(s.sizes, id)
		}
	}
	return nil
}

// measureLayer notes the size of a layer; one that is gone, or goes meanwhile, takes nothing.
func (s *Shelf) measureLayer(id string, count layer.Count) error {
	s.sizes[id] = 0
	l, err := s.opt.Cache.Get(id)
	if errors.Is(err, layer.ErrNotFound) {
		return nil
	}
	if err == nil {
		s.sizes[id], err = l.DiskSize(count)
	}
	return err
}

// report warns when the items in use are too many, once for each larger excess.
func (s *Shelf) report(size int64) {
	over := max(size-s.opt.Budget, 0)
	if over > s.over {
		s.opt.Log.Warn().Int64("bytes", size).Int64("budget", s.opt.Budget).
			Msg("bases that are in use take more than their budget: plans go on; raise --base-budget or name smaller paths")
	}
	s.over = over
}
