// Package checkpoint takes checkpoints of sandboxes, makes them portable and brings them
// back on this or any other worker.
//
// A checkpoint is a chain of layers plus a record. It is portable once every layer lies in
// the object store; only then is its record written, so a record never names a layer that
// is not there. The package knows layers, an object store and a bucket of records; it must
// not know plans' contents, events or how a sandbox runs commands.
package checkpoint

import (
	"context"
	"errors"
	"time"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// Phase says at which point of a plan or session a checkpoint was taken.
type Phase string

// The phases.
const (
	PreExecute  Phase = "pre_execute"
	Step        Phase = "step"
	PostExecute Phase = "post_execute"
	PreApply    Phase = "pre_apply"
	Session     Phase = "session"
	Image       Phase = "image"
)

// Sentinels for errors.Is.
var (
	// ErrNotFound: no checkpoint of that id, here or in the records.
	ErrNotFound = errors.New("checkpoint: not found")
	// ErrNoSandbox: the checkpoint's sandbox is not live on this worker; restore it instead.
	ErrNoSandbox = errors.New("checkpoint: its sandbox does not live here")
	// ErrLive: the checkpoint stands on the original itself, which may have changed since: only the sandbox it was
	// taken of can go back to it.
	ErrLive = errors.New("checkpoint: stands on a live original, so only its own sandbox can go back to it")
	// ErrMissingLayer: a layer is neither in the cache nor in the object store.
	ErrMissingLayer = errors.New("checkpoint: layer missing")
	// ErrBadLayer: a stored layer is not what the record or its name says; nothing of it is used.
	ErrBadLayer = errors.New("checkpoint: layer is corrupt in the store")
	// ErrBudget: the layers of a plan would take more than a plan may store.
	ErrBudget = errors.New("checkpoint: plan stores too much")
)

// LayerRef names a stored layer.
type LayerRef struct {
	// Name is the object's name, "sha256-<hex of the uncompressed tar>.tar.zst".
	Name string `json:"name"`
	// Size and TarSize are bytes: compressed, uncompressed.
	Size    int64 `json:"size"`
	TarSize int64 `json:"tar_size"`
	// Digest is "sha256:<hex>" of the compressed bytes.
	Digest string `json:"digest"`
}

// Checkpoint is the stored record. Fields may be added, none renamed or given a new meaning.
type Checkpoint struct {
	ID        string            `json:"checkpoint_id"`
	SandboxID string            `json:"sandbox_id"`
	PlanID    string            `json:"plan_id,omitempty"`
	Phase     Phase             `json:"phase"`
	CreatedAt time.Time         `json:"created_at"`
	Metadata  map[string]string `json:"metadata"`
	Worker    string            `json:"worker,omitempty"`
	// Base and Layers are bottom first; both are empty until the checkpoint is portable.
	Base   []LayerRef `json:"base"`
	Layers []LayerRef `json:"layers"`
	// SizeBytes is what this checkpoint's own layer takes in the store, compressed; 0 if it has none.
	SizeBytes int64 `json:"size_bytes"`
	// Portable: the base and all layers are stored.
	Portable bool `json:"portable"`
	// Live: the base was the original itself. Such a checkpoint is never portable: its record names the layers above.
	Live bool `json:"live,omitempty"`
	// Fuzzy: processes ran when it was taken, so files may be as after a crash of theirs: half written, or of different
	// moments.
	Fuzzy bool `json:"fuzzy,omitempty"`
	// Delta names a stored difference: of post_execute from the base; of pre_apply what takes the apply back.
	Delta string `json:"delta,omitempty"`
	// Lost lists what the layers could not keep.
	Lost []layer.Lost `json:"lost,omitempty"`
}

// Sandbox is what the manager needs of a sandbox.
type Sandbox interface {
	ID() string
	// Chain is the closed layers, bottom first.
	Chain() layer.Chain
	// Freeze closes the open layer and returns base and layers, bottom first.
	Freeze(ctx context.Context) (layer.Chain, error)
	// Reset shows exactly chain.
	Reset(ctx context.Context, chain layer.Chain) error
}

// objects are the names of all stored objects that the record needs.
func (c Checkpoint) objects() []string {
	var names []string
	for _, refs := range [][]LayerRef{c.Base, c.Layers} {
		for _, ref := range refs {
			names = append(names, ref.Name)
		}
	}
	if c.Delta != "" {
		names = append(names, c.Delta)
	}
	return names
}
