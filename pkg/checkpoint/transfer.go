package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/warmfleet/warmfleet/internal/fault"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
)

// upload packs a layer, which lies on those below, and puts it into the store, once however
// many ask. fits may refuse its size; nothing of it is kept then. Size and digest are those of the stored object: another
// build may have compressed the same tar to other bytes.
func (m *Manager) upload(ctx context.Context, below layer.Chain, x layer.Layer, fits func(size int64) error) (LayerRef, error) {
	var info objectstore.Info
	err := m.uploads.do(ctx, x.ID, func() error {
		known, err := m.cfg.Cache.Get(x.ID)
		if err != nil {
			return fmt.Errorf("%w: %s: %w", ErrMissingLayer, x.ID, err)
		}
		if known.Name != "" {
			if info, err = m.unmarked(ctx, known.Name); err == nil {
				return fits(info.Size)
			}
			if !gone(err) {
				return err
			}
		}
		info, err = m.packAndPut(ctx, below, known, fits)
		return err
	})
	if err != nil {
		return LayerRef{}, err
	}
	done, err := m.cfg.Cache.Get(x.ID)
	if err != nil {
		return LayerRef{}, fmt.Errorf("%w: %s: %w", ErrMissingLayer, x.ID, err)
	}
	return LayerRef{Name: done.Name, Size: info.Size, TarSize: done.TarSize, Digest: info.Digest}, nil
}

// packAndPut uploads a layer while it is being packed.
func (m *Manager) packAndPut(ctx context.Context, below layer.Chain, x layer.Layer, fits func(size int64) error) (objectstore.Info, error) {
	f, err := unnamedFile(m.cfg.Scratch)
	if err != nil {
		return objectstore.Info{}, fmt.Errorf("pack layer %s: %w", x.ID, err)
	}
	defer f.Close()
	ctx, cancel := context.WithCancel(ctx)
	spool := newSpool(f)
	packed := make(chan packResult, 1)
	go func() {
		p, err := m.cfg.Cache.Pack(ctx, below, x, spool)
		if err == nil {
			err = fits(p.Size)
		}
		err = errors.Join(err, fault.Err("checkpoint.pack"))
		spool.finish(err)
		packed <- packResult{p.Name, err}
	}()
	result := sync.OnceValues(func() (string, error) { r := <-packed; return r.name, r.err })
	info, err := objectstore.PutLate(ctx, m.cfg.Store, spool.reader(), result)
	cancel()
	if _, failure := result(); failure != nil && !errors.Is(failure, context.Canceled) {
		return objectstore.Info{}, failure // what made the upload fail, too
	}
	return info, err
}

type packResult struct {
	name string
	err  error
}

// fetch brings a layer, which lies on those below, into the cache.
func (m *Manager) fetch(ctx context.Context, below layer.Chain, ref LayerRef) (layer.Layer, error) {
	err := m.fetches.do(ctx, ref.Name, func() error {
		if _, ok := m.cfg.Cache.Find(ref.Name); ok {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, deadline(ref.Size))
		defer cancel()
		fault.At("checkpoint.fetch")
		return m.download(ctx, below, ref)
	})
	if err != nil {
		return layer.Layer{}, err
	}
	x, ok := m.cfg.Cache.Find(ref.Name)
	if !ok {
		return layer.Layer{}, fmt.Errorf("%w: %s", ErrMissingLayer, ref.Name)
	}
	if x.TarSize != ref.TarSize {
		return layer.Layer{}, fmt.Errorf("%w: %s is a tar of %d bytes, the record says %d", ErrBadLayer, ref.Name, x.TarSize, ref.TarSize)
	}
	return x, nil
}

// download unpacks a stored layer into the cache.
func (m *Manager) download(ctx context.Context, below layer.Chain, ref LayerRef) error {
	info, err := m.cfg.Store.Stat(ctx, ref.Name)
	if err == nil {
		err = ref.fits(info)
	}
	var r io.ReadCloser
	if err == nil {
		r, err = m.cfg.Store.Get(ctx, ref.Name)
	}
	if err == nil {
		defer r.Close()
		_, err = m.cfg.Cache.Unpack(ctx, below, ref.Name, r)
	}
	return m.blame(ctx, ref.Name, err)
}

// blame says what an error of reading a stored layer means for who wants it.
func (m *Manager) blame(ctx context.Context, name string, err error) error {
	if errors.Is(err, objectstore.ErrCorrupt) {
		if _, now := m.cfg.Store.Stat(ctx, name); errors.Is(now, objectstore.ErrNotFound) {
			err = now // it was deleted while it was read
		}
	}
	switch {
	case err == nil, errors.Is(err, ErrBadLayer):
		return err
	case errors.Is(err, objectstore.ErrNotFound):
		return fmt.Errorf("%w: %s is not in the object store", ErrMissingLayer, name)
	case errors.Is(err, objectstore.ErrCorrupt), errors.Is(err, layer.ErrCorrupt), errors.Is(err, layer.ErrLimit):
		return fmt.Errorf("%w: %w", ErrBadLayer, err)
	}
	return err
}

// fits compares a record with the stored object it names. That both size and digest differ is
// what another compression of the same tar looks like, which its name then proves; one alone
// is damage.
func (r LayerRef) fits(o objectstore.Info) error {
	if (r.Size == o.Size) == (r.Digest == o.Digest) {
		return nil
	}
	return fmt.Errorf("%w: %s has %d bytes and digest %s, the record says %d and %s", ErrBadLayer, r.Name, o.Size, o.Digest, r.Size, r.Digest)
}

// deadline gives a download a minute plus a second per 2 MB: far below any disk or network
// worth running on, so only a stuck one meets it.
func deadline(size int64) time.Duration {
	return time.Minute + time.Duration(size/(2<<20))*time.Second
}
