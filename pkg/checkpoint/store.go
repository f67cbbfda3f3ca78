package checkpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
)

// Store makes a local checkpoint portable: layers first, then the record, then the layers
// are looked at once more. It is idempotent; a failed call may be repeated. Of a checkpoint on a live base the
// layers above it are stored, and the record says that it is not portable.
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
	chain, base := l.chain, l.base
	if cp.Live {
		chain, base = chain[base:], 0
	}
	refs := make([]LayerRef, len(chain))
	var own int64
	for i, x := range chain {
		ref, err := m.upload(ctx, chain[:i], x)
		if err != nil {
			return Checkpoint{}, fmt.Errorf("checkpoint: store %q: %w", id, err)
		}
		refs[i] = ref
		if x.ID == l.own {
			own = ref.Size
		}
	}
	cp = m.snapshot(l)
	cp.Base, cp.Layers, cp.SizeBytes, cp.Portable = refs[:base:base], refs[base:], own, !cp.Live
	if err := m.record(ctx, cp); err != nil {
		return Checkpoint{}, err
	}
	for _, ref := range refs {
		if _, err := m.cfg.Store.Stat(ctx, ref.Name); err != nil {
			return Checkpoint{}, fmt.Errorf("checkpoint: store %q: layer %s went away: %w", id, ref.Name, err)
		}
	}
	m.mu.Lock()
	l.cp, l.recorded = cp, true
	m.mu.Unlock()
	return cp, nil
}

func (m *Manager) record(ctx context.Context, cp Checkpoint) error {
	b, err := json.Marshal(cp)
	if err != nil {
		return fmt.Errorf("checkpoint: encode record %q: %w", cp.ID, err)
	}
	_, err = m.cfg.Records.Create(ctx, cp.ID, b)
	if err != nil && !errors.Is(err, kv.ErrExists) {
		return fmt.Errorf("checkpoint: write record %q: %w", cp.ID, err)
	}
	return nil
}

// upload packs a layer, which lies on those below, and puts it into the store, once however many ask.
func (m *Manager) upload(ctx context.Context, below layer.Chain, x layer.Layer) (LayerRef, error) {
	var ref LayerRef
	err := m.uploads.do(ctx, x.ID, func() error {
		known, err := m.cfg.Cache.Get(x.ID)
		if err != nil {
			return fmt.Errorf("%w: %s: %w", ErrMissingLayer, x.ID, err)
		}
		if known.Name != "" {
			if info, err := m.cfg.Store.Stat(ctx, known.Name); err == nil && info.Size == known.Size {
				return nil
			}
		}
		return m.packAndPut(ctx, below, known)
	})
	if err != nil {
		return ref, err
	}
	done, err := m.cfg.Cache.Get(x.ID)
	if err != nil {
		return ref, fmt.Errorf("%w: %s: %w", ErrMissingLayer, x.ID, err)
	}
	return LayerRef{Name: done.Name, Size: done.Size, TarSize: done.TarSize, Digest: done.Digest}, nil
}

// packAndPut uploads a layer while it is being packed.
func (m *Manager) packAndPut(ctx context.Context, below layer.Chain, x layer.Layer) error {
	f, err := os.CreateTemp(m.cfg.Scratch, "pack-*")
	if err != nil {
		return fmt.Errorf("checkpoint: pack layer %s: %w", x.ID, err)
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil { // the open file is all we need; a crash leaves nothing
		return fmt.Errorf("checkpoint: pack layer %s: %w", x.ID, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	spool := newSpool(f)
	packed := make(chan packResult, 1)
	go func() {
		p, err := m.cfg.Cache.PackOn(ctx, below, x, spool)
		spool.finish(err)
		packed <- packResult{p.Name, err}
	}()
	result := sync.OnceValues(func() (string, error) { r := <-packed; return r.name, r.err })
	_, err = objectstore.PutLate(ctx, m.cfg.Store, spool.reader(), result)
	cancel()
	if _, failure := result(); failure != nil && !errors.Is(failure, context.Canceled) {
		return failure // what made the upload fail, too
	}
	return err
}

type packResult struct {
	name string
	err  error
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

// fetch brings a layer, which lies on those below, into the cache.
func (m *Manager) fetch(ctx context.Context, below layer.Chain, ref LayerRef) (layer.Layer, error) {
	err := m.fetches.do(ctx, ref.Name, func() error {
		if _, ok := m.cfg.Cache.Find(ref.Name); ok {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, deadline(ref.Size))
		defer cancel()
		r, err := m.cfg.Store.Get(ctx, ref.Name)
		if errors.Is(err, objectstore.ErrNotFound) {
			return fmt.Errorf("%w: %s is not in the object store", ErrMissingLayer, ref.Name)
		}
		if err != nil {
			return err
		}
		defer r.Close()
		_, err = m.cfg.Cache.UnpackOn(ctx, below, ref.Name, r)
		return err
	})
	if err != nil {
		return layer.Layer{}, err
	}
	x, ok := m.cfg.Cache.Find(ref.Name)
	if !ok {
		return layer.Layer{}, fmt.Errorf("%w: %s", ErrMissingLayer, ref.Name)
	}
	return x, nil
}

// deadline gives a download a minute plus a second per 2 MB: far below any disk or network
// worth running on, so only a stuck one meets it.
func deadline(size int64) time.Duration {
	return time.Minute + time.Duration(size/(2<<20))*time.Second
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
