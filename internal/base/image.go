package base

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/warmfleet/warmfleet/internal/fault"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/statedir"
)

// Names in the store's directory.
const (
	imagesDir   = "paths" // <key>/{record,lock,index-*}: one path each
	recordFile  = "record"
	lockFile    = "lock"
	indexPrefix = "index-"
)

// recordVersion is the form of record. Fields may be added, none renamed; another meaning is another version.
const recordVersion = 1

// storeAgain is the age at which the record of an unchanged image is stored again. Until then a restart
// only costs a few more file reads and an older place in the order of eviction.
const storeAgain = time.Minute

// record is what is stored of one path. It is written last, so that what it names is whole.
type record struct {
	V        int        `json:"v"`
	Path     string     `json:"path"`
	Layers   []layerRef `json:"layers"` // bottom first
	Index    string     `json:"index"`  // its file
	IndexSum string     `json:"index_sum"`
	Used     time.Time  `json:"used"`
	// Garbage are layers of older images that were still in use when they were replaced.
	Garbage []string `json:"garbage,omitempty"`
}

// layerRef names a layer.
type layerRef struct {
	ID string `json:"id"`
}

func (r *record) ids() []string {
	ids := make([]string, len(r.Layers))
	for i, l := range r.Layers {
		ids[i] = l.ID
	}
	return ids
}

// image is an up-to-date image of a path.
type image struct {
	chain   layer.Chain
	index   *layer.Index
	changed bool
}

// home is where what is stored of a path lies.
func (s *Store) home(path string) string {
	sum := sha256.Sum256([]byte(path))
	return filepath.Join(s.opt.Dir, imagesDir, hex.EncodeToString(sum[:16]))
}

// refresh brings the image of a path up to date, under the lock of the path.
func (s *Store) refresh(ctx context.Context, path string) (image, error) {
	home := s.home(path)
	if err := os.MkdirAll(home, 0o700); err != nil {
		return image{}, err
	}
	img, err := s.refreshLocked(ctx, home, path)
	if err != nil || len(img.chain) <= maxLayers {
		return img, err
	}
	if len(img.chain) <= mostLayers {
		s.wantSquash(path)
		return img, nil
	}
	if err := s.squash(ctx, path); err != nil {
		return image{}, err
	}
	return s.refreshLocked(ctx, home, path)
}

func (s *Store) refreshLocked(ctx context.Context, home, path string) (image, error) {
	lock, err := statedir.Lock(ctx, filepath.Join(home, lockFile))
	if err != nil {
		return image{}, err
	}
	defer func() { _ = lock.Close() }()
	rec, old, err := s.load(home, path)
	if err != nil {
		return image{}, err
	}
	img, err := s.capture(ctx, path, old)
	if err != nil {
		return image{}, err
	}
	return img, s.save(home, rec, img)
}

// capture makes the image that follows old, which is empty for a first one.
func (s *Store) capture(ctx context.Context, path string, old image) (image, error) {
	added, index, changed, err := s.opt.Cache.CaptureAgain(ctx, path, old.index)
	if err != nil {
		return image{}, err
	}
	if err := readable(index.Lost()); err != nil {
		if changed {
			err = errors.Join(err, s.opt.Cache.Remove(added.ID))
		}
		return image{}, err
	}
	img := image{chain: slices.Clone(old.chain), index: index, changed: changed}
	if changed {
		img.chain = append(img.chain, added)
	}
	return img, nil
}

// load reads what is stored of a path. Whatever is missing or damaged, the image is made anew.
func (s *Store) load(home, path string) (*record, image, error) {
	rec := &record{V: recordVersion, Path: path}
	err := statedir.ReadRecord(filepath.Join(home, recordFile), rec)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return rec, image{}, statedir.SweepTemp(home)
	case errors.Is(err, statedir.ErrDamaged) || err == nil && rec.V != recordVersion:
		s.opt.Log.Warn().Err(err).Str("path", path).Msg("record of a base image is unusable, making a new image")
		return &record{V: recordVersion, Path: path}, image{}, nil
	case err != nil:
		return nil, image{}, err
	}
	img, err := s.loadImage(home, rec)
	if err != nil {
		s.opt.Log.Warn().Err(err).Str("path", path).Msg("base image is incomplete, making a new one")
		rec.Garbage, rec.Layers = append(rec.Garbage, rec.ids()...), nil
		return rec, image{}, nil
	}
	return rec, img, nil
}

func (s *Store) loadImage(home string, rec *record) (image, error) {
	var img image
	for _, id := range rec.ids() {
		l, err := s.opt.Cache.Get(id)
		if err != nil {
			return image{}, err
		}
		img.chain = append(img.chain, l)
	}
	if img.index = s.memory.get(home, rec.Index); img.index != nil {
		return img, nil
	}
	f, err := os.Open(filepath.Join(home, rec.Index))
	if err != nil {
		return image{}, err
	}
	defer func() { _ = f.Close() }()
	sum := sha256.New()
	if img.index, err = layer.DecodeIndex(io.TeeReader(f, sum)); err != nil {
		return image{}, err
	}
	if _, err := io.Copy(sum, f); err != nil {
		return image{}, err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != rec.IndexSum {
		return image{}, fmt.Errorf("index %q: %w", rec.Index, statedir.ErrDamaged)
	}
	return img, nil
}

// save stores an image: its index, then the record that names it; then what it replaced goes.
func (s *Store) save(home string, rec *record, img image) error {
	now := time.Now().UTC()
	if rec.Index != "" && slices.Equal(rec.ids(), ids(img.chain)) && now.Sub(rec.Used) < storeAgain {
		s.memory.put(home, rec.Index, img.index)
		return nil
	}
	fault.At("base.captured")
	rec.take(img.chain)
	sum := sha256.New()
	rec.Index = fmt.Sprintf("%s%d", indexPrefix, now.UnixNano())
	// Nothing here is waited for: an image that a crash of the machine damaged is made anew.
	err := statedir.WriteFileUnsynced(filepath.Join(home, rec.Index), func(w io.Writer) error {
		return img.index.Encode(io.MultiWriter(w, sum))
	})
	if err != nil {
		return err
	}
	fault.At("base.indexed")
	rec.IndexSum, rec.Used = hex.EncodeToString(sum.Sum(nil)), now
	if err := errors.Join(fault.Err("base.record"), statedir.WriteRecordUnsynced(filepath.Join(home, recordFile), rec)); err != nil {
		return err
	}
	fault.At("base.recorded")
	s.memory.put(home, rec.Index, img.index)
	return s.clean(home, rec)
}

// clean removes indexes and layers that the record no longer needs. Layers in use stay for the next time.
func (s *Store) clean(home string, rec *record) error {
	if err := statedir.SweepTemp(home); err != nil {
		return err
	}
	if err := removeIndexes(home, rec.Index); err != nil {
		return err
	}
	if len(rec.Garbage) == 0 {
		return nil
	}
	var err error
	if rec.Garbage, err = s.removeUnused(rec.Garbage); err != nil {
		return err
	}
	return statedir.WriteRecord(filepath.Join(home, recordFile), rec)
}

// removeIndexes removes all index files but one.
func removeIndexes(home, keep string) error {
	entries, err := os.ReadDir(home)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), indexPrefix) || e.Name() == keep {
			continue
		}
		if err := os.Remove(filepath.Join(home, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// removeUnused removes layers and returns those that are in use.
func (s *Store) removeUnused(layers []string) (left []string, err error) {
	for _, id := range layers {
		removed, err := s.uses.RemoveUnused(id, func() error { return s.opt.Cache.Remove(id) })
		if err != nil {
			return nil, err
		}
		if !removed {
			left = append(left, id)
		}
	}
	return left, nil
}

// take makes the record name the layers of chain; those that it named before are garbage.
func (r *record) take(chain layer.Chain) {
	kept := ids(chain)
	for _, l := range r.Layers {
		if !slices.Contains(kept, l.ID) {
			r.Garbage = append(r.Garbage, l.ID)
		}
	}
	r.Layers = r.Layers[:0:0]
	for _, id := range kept {
		r.Layers = append(r.Layers, layerRef{id})
	}
}
