package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"

	"github.com/klauspost/compress/zstd"

	"github.com/warmfleet/warmfleet/internal/fault"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
	"github.com/warmfleet/warmfleet/pkg/plan/diff"
)

// Limits of what a delta keeps of the base, so that a three-way apply works days later
// without holding the base twice.
const (
	// MaxBaseFile is the largest base file kept, in bytes.
	MaxBaseFile = 1 << 20
	// MaxBaseTotal is the most bytes of base files kept in one delta.
	MaxBaseTotal = 64 << 20
)

// Delta is what a sandbox changed against its base, kept with its post_execute checkpoint.
// Its JSON form is stored, compressed: fields may be added, none renamed.
type Delta struct {
	Changes []layer.Change `json:"changes"`
	// Base holds the base's bytes of changed regular files within the limits.
	Base map[layer.Path][]byte `json:"base,omitempty"`
	// Diff is the rendered difference, cut where it would be large, and Notes what rendering found out about each change.
	Diff  diff.Text   `json:"diff"`
	Notes []diff.Note `json:"notes,omitempty"`
}

// Files describes the changes, with renames and counts of lines.
func (d Delta) Files() []diff.File { return diff.Join(d.Changes, d.Notes) }

// ReadBase collects the base's bytes of the changed files, within the limits.
func ReadBase(base layer.Chain, changes []layer.Change) (map[layer.Path][]byte, error) {
	tree, kept, total := layer.NewTree(base), map[layer.Path][]byte{}, int64(0)
	for _, c := range changes {
		if c.Before == nil || c.Before.Type != layer.File || c.Before.Size > MaxBaseFile || total+c.Before.Size > MaxBaseTotal {
			continue
		}
		b, err := readAll(tree, c.Path)
		if err != nil {
			return nil, fmt.Errorf("checkpoint: read base of %q: %w", c.Path, err)
		}
		kept[c.Path] = b
		total += int64(len(b))
	}
	return kept, nil
}

func readAll(tree *layer.Tree, p layer.Path) ([]byte, error) {
	r, err := tree.Open(p)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// PutDelta stores a delta and returns its object's name, which holds its digest.
func PutDelta(ctx context.Context, store objectstore.Store, d Delta) (string, error) {
	plain, err := json.Marshal(d)
	if err != nil {
		return "", fmt.Errorf("checkpoint: encode delta: %w", err)
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return "", fmt.Errorf("checkpoint: encode delta: %w", err)
	}
	defer enc.Close()
	sum := sha256.Sum256(plain)
	name := "sha256-" + hex.EncodeToString(sum[:]) + ".delta.json.zst"
	if err := putJSON(ctx, store, name, enc.EncodeAll(plain, nil)); err != nil {
		return "", fmt.Errorf("checkpoint: store delta: %w", err)
	}
	return name, nil
}

// GetDelta reads a stored delta and checks it against its name.
func GetDelta(ctx context.Context, store objectstore.Store, name string) (Delta, error) {
	r, err := store.Get(ctx, name)
	if err != nil {
		return Delta{}, fmt.Errorf("checkpoint: read delta %s: %w", name, err)
	}
	defer r.Close()
	packed, err := io.ReadAll(r)
	if err != nil {
		return Delta{}, fmt.Errorf("checkpoint: read delta %s: %w", name, err)
	}
	return unpackDelta(name, packed)
}

func unpackDelta(name string, packed []byte) (Delta, error) {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(1<<30))
	if err != nil {
		return Delta{}, fmt.Errorf("checkpoint: read delta %s: %w", name, err)
	}
	defer dec.Close()
	plain, err := dec.DecodeAll(packed, nil)
	if err != nil {
		return Delta{}, fmt.Errorf("checkpoint: read delta %s: %w: %w", name, objectstore.ErrCorrupt, err)
	}
	if sum := sha256.Sum256(plain); name != "sha256-"+hex.EncodeToString(sum[:])+".delta.json.zst" {
		return Delta{}, fmt.Errorf("checkpoint: read delta %s: %w", name, objectstore.ErrCorrupt)
	}
	var d Delta
	if err := json.Unmarshal(plain, &d); err != nil {
		return Delta{}, fmt.Errorf("checkpoint: decode delta %s: %w", name, err)
	}
	return d, nil
}

// Open reads the base's bytes of a changed file; fs.ErrNotExist if the limits left them out.
func (d Delta) Open(p layer.Path) ([]byte, error) {
	if b, ok := d.Base[p]; ok {
		return b, nil
	}
	return nil, fmt.Errorf("checkpoint: base of %q: %w", p, fs.ErrNotExist)
}

// Describe computes what a local checkpoint changed against its base, stores that, and
// notes the stored name on the checkpoint. Call it before Store.
func (m *Manager) Describe(ctx context.Context, id string) (Delta, error) {
	m.mu.Lock()
	l := m.local[id]
	m.mu.Unlock()
	if l == nil {
		return Delta{}, fmt.Errorf("%w: %q has no layers on this worker", ErrNotFound, id)
	}
	base := l.chain[:l.base]
	changes, err := layer.Changes(base, l.chain)
	if err != nil {
		return Delta{}, fmt.Errorf("checkpoint: compare %q with its base: %w", id, err)
	}
	d := Delta{Changes: changes}
	if d.Base, err = ReadBase(base, changes); err != nil {
		return Delta{}, err
	}
	rendered, err := diff.Render(ctx, diff.Request{
		Changes: changes, Base: layer.NewTree(base), Ours: layer.NewTree(l.chain), More: "warmfleet checkpoint diff " + id,
	})
	if err != nil {
		return Delta{}, fmt.Errorf("checkpoint: render the difference of %q: %w", id, err)
	}
	d.Diff = diff.Text(rendered.Text)
	for _, f := range rendered.Files {
		d.Notes = append(d.Notes, f.Note)
	}
	name, err := PutDelta(ctx, m.cfg.Store, d)
	if err != nil {
		return Delta{}, err
	}
	fault.At("checkpoint.described")
	m.mu.Lock()
	l.cp.Delta = name
	m.mu.Unlock()
	return d, nil
}
