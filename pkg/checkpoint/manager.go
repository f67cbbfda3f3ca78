package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/fault"
	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
)

// Config is what a Manager is made of; every field but Worker and Log is required.
type Config struct {
	Cache   *layer.Cache
	Store   objectstore.Store
	Records kv.Store
	// Scratch is a directory for layers being packed, on a file system with room.
	Scratch string
	Worker  string
	// PlanBudget bounds what the layers that a plan adds to its base may take in the store,
	// compressed bytes of one chain; 0 is no bound. Store fails with ErrBudget beyond it.
	PlanBudget int64
	Log        zerolog.Logger
	// NewID makes checkpoint ids (upper-case ULIDs).
	NewID func() string
}

// Manager takes, stores, restores and deletes checkpoints. It is safe for concurrent use.
type Manager struct {
	cfg     Config
	uploads flight // one upload of a layer at a time, by layer id
	fetches flight // one download of a layer at a time, by stored name

	mu    sync.Mutex
	local map[string]*local   // checkpoints whose layers lie in this cache, by id
	live  map[string]*tracked // sandboxes that live here, by id
	pins  map[string]int      // layers of restored checkpoints that were not released, by id
	idle  map[string]bool     // layers that the last SweepCache found unused and left, by id
}

type local struct {
	cp    Checkpoint
	base  int // how many layers of chain are the base
	chain layer.Chain
	own   string // id of the layer this checkpoint closed, "" if nothing changed
	// recorded: Store made a record of it, portable or not.
	recorded bool
}

type tracked struct {
	sandbox Sandbox
	base    int
	last    string // id of the top layer at the last checkpoint
}

// New returns a manager.
func New(cfg Config) *Manager {
	return &Manager{cfg: cfg, local: map[string]*local{}, live: map[string]*tracked{}, pins: map[string]int{}}
}

// Adopt makes a live sandbox known whose lowest baseLayers layers are its base, so that
// checkpoints tell base from layers and RollbackTo reaches it. Forget ends that.
func (m *Manager) Adopt(s Sandbox, baseLayers int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.live[s.ID()] = &tracked{sandbox: s, base: baseLayers, last: topID(s.Chain())}
}

// Forget drops a sandbox that is gone and what was never made portable of it. What is portable and of no plan, whose end
// would tell, is left to SweepCache.
func (m *Manager) Forget(sandboxID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.live, sandboxID)
	m.drop(func(c Checkpoint) bool { return c.SandboxID == sandboxID && !c.Portable })
	m.leave(func(c Checkpoint) bool { return c.SandboxID == sandboxID && c.PlanID == "" })
}

// ForgetPlan drops from this worker's cache what only the checkpoints of an ended plan held.
// What is portable stays in the store.
func (m *Manager) ForgetPlan(planID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(func(c Checkpoint) bool { return c.PlanID == planID })
}

// Plans returns the plans with checkpoints in this worker's cache.
func (m *Manager) Plans() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	found := map[string]bool{}
	for _, l := range m.local {
		if l.cp.PlanID != "" {
			found[l.cp.PlanID] = true
		}
	}
	return slices.Collect(maps.Keys(found))
}

// drop forgets the local checkpoints that goes selects, and removes their layers above the
// base unless another checkpoint, a live sandbox or whoever restored one needs them.
func (m *Manager) drop(goes func(Checkpoint) bool) {
	keep, gone := map[string]bool{}, map[string]bool{}
	for id, l := range m.local {
		chain, into := l.chain, keep
		if goes(l.cp) {
			delete(m.local, id)
			chain, into = l.chain[l.base:], gone
		}
		for _, x := range chain {
			into[x.ID] = true
		}
	}
	for _, t := range m.live {
		for _, x := range t.sandbox.Chain() {
			keep[x.ID] = true
		}
	}
	for id := range gone {
		if !keep[id] && m.pins[id] == 0 {
			m.remove(id)
		}
	}
}

func (m *Manager) remove(layerID string) {
	if err := m.cfg.Cache.Remove(layerID); err != nil {
		m.cfg.Log.Warn().Err(err).Str("layer", layerID).Msg("remove layer")
	}
}

// Create takes a checkpoint under a new id; see CreateAs.
func (m *Manager) Create(ctx context.Context, s Sandbox, planID string, phase Phase, metadata map[string]string) (Checkpoint, error) {
	return m.CreateAs(ctx, m.cfg.NewID(), s, Checkpoint{PlanID: planID, Phase: phase, Metadata: metadata})
}

// CreateAs takes a checkpoint under the given id; of want only PlanID, Phase, Metadata, Fuzzy and Lost
// are read, of which Lost is what the base did not keep. The sandbox's open layer is closed, except for PreExecute, which is a record
// only since nothing changed yet. The checkpoint is local until Store made it portable.
// An error means that no checkpoint was taken and the sandbox is as before.
func (m *Manager) CreateAs(ctx context.Context, id string, s Sandbox, want Checkpoint) (Checkpoint, error) {
	t := m.track(s)
	chain := s.Chain()
	if want.Phase != PreExecute {
		frozen, err := s.Freeze(ctx)
		if err != nil {
			return Checkpoint{}, fmt.Errorf("checkpoint: create %s of sandbox %q: %w", want.Phase, s.ID(), err)
		}
		chain = frozen
		fault.At("checkpoint.frozen")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	l := &local{base: min(t.base, len(chain)), chain: slices.Clone(chain)}
	l.cp = Checkpoint{
		ID: id, SandboxID: s.ID(), PlanID: want.PlanID, Phase: want.Phase, Worker: m.cfg.Worker, Fuzzy: want.Fuzzy,
		CreatedAt: time.Now().UTC(), Metadata: maps.Clone(want.Metadata), Lost: append(slices.Clone(want.Lost), lost(chain[l.base:])...),
		Live: len(chain) > 0 && chain[0].Live,
	}
	if top := topID(chain); top != t.last {
		l.own, t.last = top, top
	}
	m.local[id] = l
	return l.cp, nil
}

func (m *Manager) track(s Sandbox) *tracked {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.live[s.ID()]
	if t == nil {
		chain := s.Chain()
		t = &tracked{sandbox: s, base: len(chain), last: topID(chain)}
		m.live[s.ID()] = t
	}
	return t
}

// RollbackTo brings the checkpoint's sandbox back to it. The sandbox must live here
// (ErrNoSandbox otherwise: use Restore and a new sandbox). On error nothing changed.
func (m *Manager) RollbackTo(ctx context.Context, cp Checkpoint) error {
	m.mu.Lock()
	t, l := m.live[cp.SandboxID], m.local[cp.ID]
	m.mu.Unlock()
	if t == nil {
		return fmt.Errorf("checkpoint: roll back to %q: %w (sandbox %q)", cp.ID, ErrNoSandbox, cp.SandboxID)
	}
	if l == nil {
		restored, err := m.Restore(ctx, cp.ID)
		if err != nil {
			return err
		}
		defer restored.Release()
		l = &local{chain: restored.Chain}
	}
	fault.At("checkpoint.rollback")
	if err := t.sandbox.Reset(ctx, l.chain); err != nil {
		return fmt.Errorf("checkpoint: roll back to %q: %w", cp.ID, err)
	}
	fault.At("checkpoint.rolled-back")
	m.mu.Lock()
	t.last = topID(l.chain)
	m.mu.Unlock()
	return nil
}

// Get returns a checkpoint: the record, or the local one if it isn't portable yet.
func (m *Manager) Get(ctx context.Context, id string) (Checkpoint, error) {
	m.mu.Lock()
	l := m.local[id]
	m.mu.Unlock()
	if l != nil {
		return m.snapshot(l), nil
	}
	return Load(ctx, m.cfg.Records, id)
}

// Load reads a stored record.
func Load(ctx context.Context, records kv.Store, id string) (Checkpoint, error) {
	e, err := records.Get(ctx, id)
	if errors.Is(err, kv.ErrNotFound) {
		return Checkpoint{}, fmt.Errorf("%w: %q", ErrNotFound, id)
	}
	if err != nil {
		return Checkpoint{}, fmt.Errorf("checkpoint: read record %q: %w", id, err)
	}
	var cp Checkpoint
	if err := json.Unmarshal(e.Value, &cp); err != nil {
		return Checkpoint{}, fmt.Errorf("checkpoint: decode record %q: %w", id, err)
	}
	return cp, nil
}

// List returns the checkpoints of a sandbox, oldest first, those that are not portable yet included.
func (m *Manager) List(ctx context.Context, sandboxID string) ([]Checkpoint, error) {
	all, err := All(ctx, m.cfg.Records)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	all = slices.DeleteFunc(all, func(c Checkpoint) bool { return c.SandboxID != sandboxID })
	for _, c := range all {
		seen[c.ID] = true
	}
	m.mu.Lock()
	for id, l := range m.local {
		if l.cp.SandboxID == sandboxID && !seen[id] {
			all = append(all, l.cp)
		}
	}
	m.mu.Unlock()
	slices.SortFunc(all, func(a, b Checkpoint) int { return strings.Compare(a.ID, b.ID) })
	return all, nil
}

// All returns every stored record, oldest first.
func All(ctx context.Context, records kv.Store) ([]Checkpoint, error) {
	entries, err := records.List(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("checkpoint: list records: %w", err)
	}
	out := make([]Checkpoint, 0, len(entries))
	for _, e := range entries {
		if e.Key == collectedKey {
			continue
		}
		var cp Checkpoint
		if err := json.Unmarshal(e.Value, &cp); err != nil {
			return nil, fmt.Errorf("checkpoint: decode record %q: %w", e.Key, err)
		}
		out = append(out, cp)
	}
	slices.SortFunc(out, func(a, b Checkpoint) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

// Delete removes the record first, then what only this worker had of it. Stored layers go
// with Collect, once no record names them.
func (m *Manager) Delete(ctx context.Context, id string) error {
	m.mu.Lock()
	_, here := m.local[id]
	m.drop(func(c Checkpoint) bool { return c.ID == id })
	m.mu.Unlock()
	err := Remove(ctx, m.cfg.Records, id)
	if here && errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// Remove removes a stored record, also one that can't be read, or fails with ErrNotFound. What
// only it named goes with the next collection.
func Remove(ctx context.Context, records kv.Store, id string) error {
	if _, err := records.Get(ctx, id); errors.Is(err, kv.ErrNotFound) {
		return fmt.Errorf("%w: %q", ErrNotFound, id)
	} else if err != nil {
		return fmt.Errorf("checkpoint: delete %q: %w", id, err)
	}
	if err := records.Delete(ctx, id, 0); err != nil {
		return fmt.Errorf("checkpoint: delete %q: %w", id, err)
	}
	fault.At("checkpoint.deleted")
	return nil
}

func (m *Manager) snapshot(l *local) Checkpoint {
	m.mu.Lock()
	defer m.mu.Unlock()
	return l.cp
}

func topID(c layer.Chain) string {
	if len(c) == 0 {
		return ""
	}
	return c[len(c)-1].ID
}

func lost(c layer.Chain) []layer.Lost {
	var out []layer.Lost
	for _, l := range c {
		out = append(out, l.Lost...)
	}
	return out
}

// Keep makes a local checkpoint of a single layer that no sandbox closed, such as the bytes
// an apply replaces. Of want only PlanID, Phase, Metadata and Delta are read.
func (m *Manager) Keep(l layer.Layer, want Checkpoint) Checkpoint {
	kept := &local{chain: layer.Chain{l}, own: l.ID}
	kept.cp = Checkpoint{
		ID: m.cfg.NewID(), PlanID: want.PlanID, Phase: want.Phase, Metadata: maps.Clone(want.Metadata), Delta: want.Delta,
		Worker: m.cfg.Worker, CreatedAt: time.Now().UTC(), Lost: l.Lost,
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.local[kept.cp.ID] = kept
	return kept.cp
}
