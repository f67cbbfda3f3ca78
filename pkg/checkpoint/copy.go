package checkpoint

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/warmfleet/warmfleet/internal/fault"
	"github.com/warmfleet/warmfleet/internal/layer"
)

// Copier is a sandbox that can be copied beside what runs in it.
type Copier interface {
	Sandbox
	// Copy closes a copy of the open layer, which stays open, and returns base and layers with the copy on top. What
	// runs is stopped meanwhile, and goes on.
	Copy(ctx context.Context) (layer.Chain, error)
}

// Copy takes a checkpoint, marked fuzzy, beside what runs in a sandbox, which stays as it is. Of want only PlanID, Phase
// and Metadata are read. Everything since the last checkpoint that was no copy is copied and stored, by each anew; of a
// copy that is portable the layer is left to SweepCache with the next one.
func (m *Manager) Copy(ctx context.Context, s Copier, want Checkpoint) (Checkpoint, error) {
	t := m.track(s)
	chain, err := s.Copy(ctx)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("checkpoint: create %s of sandbox %q: %w", want.Phase, s.ID(), err)
	}
	fault.At("checkpoint.copied")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leave(func(c Checkpoint) bool { return c.SandboxID == s.ID() && c.Fuzzy && c.Portable })
	l := &local{base: min(t.base, len(chain)), chain: chain}
	l.cp = Checkpoint{
		ID: m.cfg.NewID(), SandboxID: s.ID(), PlanID: want.PlanID, Phase: want.Phase, Worker: m.cfg.Worker, Fuzzy: true,
		CreatedAt: time.Now().UTC(), Metadata: maps.Clone(want.Metadata), Lost: lost(chain[l.base:]),
		Live: len(chain) > 0 && chain[0].Live,
	}
	if top := topID(chain); top != t.last {
		l.own = top
	}
	m.local[l.cp.ID] = l
	return l.cp, nil
}

// leave forgets the local checkpoints that goes selects, and leaves their layers to SweepCache. The lock is held.
func (m *Manager) leave(goes func(Checkpoint) bool) {
	maps.DeleteFunc(m.local, func(_ string, l *local) bool { return goes(l.cp) })
}
