package checkpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"time"

	"github.com/warmfleet/warmfleet/internal/fault"
	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
)

// storeTries bounds how often a checkpoint is stored whose layers were swept in between.
const storeTries = 3

// Store makes a local checkpoint portable: layers first, then the record, then the layers
// are looked at once more, since a sweep may have begun before the record was there: a layer
// that it marked is spared, and for one that it removed all is done again. It is idempotent;
// a failed call may be repeated. Of a checkpoint on a live base the layers
// above it are stored, and the record says that it is not portable.
func (m *Manager) Store(ctx context.Context, id string) (Checkpoint, error) {
	m.mu.Lock()
	l := m.local[id]
	m.mu.Unlock()
	if l == nil {
		return Checkpoint{}, fmt.Errorf("%w: %q has no layers on this worker", ErrNotFound, id)
	}
	m.mu.Lock()
	cp, recorded := l.cp, l.recorded
	m.mu.Unlock()
	if recorded {
		return cp, nil
	}
	if fault.Off("checkpoint.layers-first") {
		if err := m.record(ctx, m.snapshot(l)); err != nil {
			return Checkpoint{}, err
		}
	}
	var swept error
	for range storeTries {
		cp, err := m.store(ctx, l)
		if err == nil {
			err = m.record(ctx, cp)
		}
		if swept = err; gone(err) {
			continue
		}
		if err != nil {
			return Checkpoint{}, fmt.Errorf("checkpoint: store %q: %w", id, err)
		}
		fault.At("checkpoint.recorded")
		if swept = m.recheck(ctx, cp); swept == nil {
			m.mu.Lock()
			l.cp, l.recorded = cp, true
			m.mu.Unlock()
			return cp, nil
		}
		if !gone(swept) {
			break // nothing is known to be missing: the record may stay for another call
		}
		// One that names what is not there must not, whatever comes of the next try.
		if err := m.withdraw(ctx, id); err != nil {
			return Checkpoint{}, fmt.Errorf("checkpoint: store %q: take its record back: %w", id, errors.Join(swept, err))
		}
	}
	return Checkpoint{}, fmt.Errorf("checkpoint: store %q: %w", id, swept)
}

// withdrawLimit bounds the removal of a record, also when the caller has given up.
const withdrawLimit = 5 * time.Second

func (m *Manager) withdraw(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawLimit)
	defer cancel()
	return m.cfg.Records.Delete(ctx, id, 0)
}

// store uploads what of a checkpoint is not in the store, and returns its record. Nothing it
// names is marked, or was a moment ago: a collection that begins now reads the records again
// before it removes any of it (see settle), so one that is written at once is seen.
func (m *Manager) store(ctx context.Context, l *local) (Checkpoint, error) {
	start := time.Now()
	cp := m.snapshot(l)
	chain, base := l.chain, l.base
	if cp.Live {
		chain, base = chain[base:], 0
	}
	refs := make([]LayerRef, len(chain))
	room := m.cfg.PlanBudget
	for i, x := range chain {
		bounded := m.cfg.PlanBudget > 0 && cp.PlanID != "" && i >= base
		ref, err := m.upload(ctx, chain[:i], x, func(size int64) error {
			if bounded && size > room {
				return fmt.Errorf("%w: its layers are more than %d bytes: let its steps write less, or raise the worker's --plan-budget", ErrBudget, m.cfg.PlanBudget)
			}
			return nil
		})
		if err != nil {
			return Checkpoint{}, err
		}
		if refs[i] = ref; bounded {
			room -= ref.Size
		}
		if x.ID == l.own {
			cp.SizeBytes = ref.Size
		}
	}
	if err := m.keepDelta(ctx, cp); err != nil {
		return Checkpoint{}, err
	}
	cp.Base, cp.Layers, cp.Portable = refs[:base:base], refs[base:], !cp.Live
	if time.Since(start) < settle/2 {
		return cp, nil
	}
	return cp, m.recheck(ctx, cp)
}

// keepDelta stores the difference again that a sweep took before the record named it.
func (m *Manager) keepDelta(ctx context.Context, cp Checkpoint) error {
	if cp.Delta == "" {
		return nil
	}
	_, err := m.unmarked(ctx, cp.Delta)
	if gone(err) {
		_, err = m.Describe(ctx, cp.ID)
	}
	return err
}

// recheck looks at what a record names, now that everybody can see it.
func (m *Manager) recheck(ctx context.Context, cp Checkpoint) error {
	for _, name := range cp.objects() {
		if _, err := m.unmarked(ctx, name); err != nil {
			return fmt.Errorf("%s went away: %w", name, err)
		}
	}
	return nil
}

// unmarked is Stat of an object that is to be used again: a mark is taken away.
func (m *Manager) unmarked(ctx context.Context, name string) (objectstore.Info, error) {
	info, err := m.cfg.Store.Stat(ctx, name)
	if marker, able := m.cfg.Store.(objectstore.Marker); able && err == nil && !info.Marked.IsZero() && !fault.Off("checkpoint.spare") {
		return marker.Spare(ctx, name)
	}
	return info, err
}

// gone tells whether an error of the store means that storing the object again helps.
func gone(err error) bool {
	return errors.Is(err, objectstore.ErrNotFound) || errors.Is(err, objectstore.ErrCorrupt)
}

// record writes the record. One that is there is of an earlier call, whose answer was lost.
func (m *Manager) record(ctx context.Context, cp Checkpoint) error {
	fault.At("checkpoint.stored")
	b, err := json.Marshal(cp)
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	_, err = m.cfg.Records.Create(ctx, cp.ID, b)
	if errors.Is(err, kv.ErrExists) {
		var there kv.Entry
		if there, err = m.cfg.Records.Get(ctx, cp.ID); err == nil && !bytes.Equal(there.Value, b) {
			_, err = m.cfg.Records.Update(ctx, cp.ID, b, there.Revision)
		}
	}
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// Restored is a checkpoint whose layers lie in this worker's cache.
type Restored struct {
	Checkpoint
	// Chain is base and layers, bottom first; the lowest BaseLayers of it are the base.
	Chain      layer.Chain
	BaseLayers int
	release    func()
}

// Release tells that the chain is no longer in use, or that a live sandbox stands on it.
func (r Restored) Release() {
	if r.release != nil {
		r.release()
	}
}

// restoreTries bounds how often a checkpoint is restored whose layers went away in between.
const restoreTries = 3

// Restore brings a checkpoint's layers into the cache, each verified against its digest
// before it is visible, and keeps the manager from removing them until Release. The base's
// owner may: retain it there. It works for local checkpoints that are not portable yet, too. A checkpoint on a live
// base fails with ErrLive.
func (m *Manager) Restore(ctx context.Context, id string) (Restored, error) {
	r, err := m.RestoreChanges(ctx, id)
	if err == nil && r.Live {
		r.Release()
		return Restored{}, fmt.Errorf("checkpoint: restore %q: %w", id, ErrLive)
	}
	return r, err
}

// RestoreChanges is Restore for whoever needs what the checkpoint changed and no more: on a live base Chain is the
// layers above it.
func (m *Manager) RestoreChanges(ctx context.Context, id string) (r Restored, err error) {
	for range restoreTries {
		if r, err = m.restore(ctx, id); err != nil {
			return Restored{}, err
		}
		r.release = m.pin(r.Chain)
		if err = m.present(r.Chain); err == nil {
			return r, nil
		}
		r.release()
	}
	return Restored{}, fmt.Errorf("checkpoint: restore %q: %w: %w", id, ErrMissingLayer, err)
}

func (m *Manager) restore(ctx context.Context, id string) (Restored, error) {
	m.mu.Lock()
	l := m.local[id]
	m.mu.Unlock()
	if l != nil {
		cp, chain, base := m.snapshot(l), l.chain, l.base
		if cp.Live {
			chain, base = chain[base:], 0
		}
		if !cp.Portable && !cp.Live || m.present(chain) == nil {
			return Restored{Checkpoint: cp, Chain: chain, BaseLayers: base}, nil
		}
	}
	cp, err := Load(ctx, m.cfg.Records, id)
	if err != nil {
		return Restored{}, err
	}
	r := Restored{Checkpoint: cp, BaseLayers: len(cp.Base)}
	for _, refs := range [][]LayerRef{cp.Base, cp.Layers} {
		for _, ref := range refs {
			x, err := m.fetch(ctx, r.Chain, ref)
			if err != nil {
				return Restored{}, fmt.Errorf("checkpoint: restore %q: %w", id, err)
			}
			r.Chain = append(r.Chain, x)
		}
	}
	return r, nil
}

// pin keeps the layers of a chain in the cache until unpin, which may be called more than once.
func (m *Manager) pin(chain layer.Chain) (unpin func()) {
	count := func(by int) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, l := range chain {
			if m.pins[l.ID] += by; m.pins[l.ID] == 0 {
				delete(m.pins, l.ID)
			}
		}
	}
	count(1)
	for _, l := range chain {
		if err := m.cfg.Cache.Touch(l.ID); err != nil && !errors.Is(err, fs.ErrNotExist) {
			m.cfg.Log.Debug().Err(err).Msg("note that a layer is used")
		}
	}
	return sync.OnceFunc(func() { count(-1) })
}

// present fails if a layer left the cache: whoever owns a base may remove what is not in use.
func (m *Manager) present(chain layer.Chain) error {
	for _, l := range chain {
		if _, err := m.cfg.Cache.Get(l.ID); err != nil {
			return err
		}
	}
	return nil
}

// Export writes the full tree of a stored checkpoint as a tar; see layer.Export.
func Export(ctx context.Context, cp Checkpoint, store objectstore.Store, w io.Writer) error {
	if cp.Live {
		return fmt.Errorf("checkpoint: export %q: %w", cp.ID, ErrLive)
	}
	var tars []layer.Source
	for _, refs := range [][]LayerRef{cp.Base, cp.Layers} {
		for _, ref := range refs {
			tars = append(tars, layer.Source{Name: ref.Name, Open: func() (io.ReadCloser, error) {
				return store.Get(ctx, ref.Name)
			}})
		}
	}
	return layer.Export(ctx, tars, w)
}

func putJSON(ctx context.Context, store objectstore.Store, name string, b []byte) error {
	_, err := store.Put(ctx, name, bytes.NewReader(b))
	return err
}
