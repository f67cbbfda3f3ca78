package checkpoint_test

import (
	"errors"
	"testing"

	"github.com/warmfleet/warmfleet/internal/sandboxtest"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
)

// A plan may end while somebody makes a sandbox of one of its checkpoints.
func TestManager_RestoredLayersStayUntilRelease(t *testing.T) {
	bed := sandboxtest.New(t)
	s := box(t, bed)
	sandboxtest.Run(t, s, "echo 1 >f")
	cp := store(t, bed, take(t, bed, s, checkpoint.Step).ID)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	bed.Manager.Forget(s.ID())
	r, err := bed.Manager.Restore(t.Context(), cp.ID)
	if err != nil {
		t.Fatal(err)
	}
	top := r.Chain[len(r.Chain)-1].ID
	bed.Manager.ForgetPlan(cp.PlanID)
	if _, err := bed.Host.Cache.Get(top); err != nil {
		t.Errorf("a layer in use: %v", err)
	}
	r.Release()
	r.Release()
	if again, err := bed.Manager.Restore(t.Context(), cp.ID); err != nil {
		t.Errorf("restore again: %v", err)
	} else {
		again.Release()
	}
}

// Whoever owns a base may remove layers that nothing uses: they are fetched again.
func TestManager_RestoreAfterTheBaseWasRemoved(t *testing.T) {
	bed := sandboxtest.New(t)
	s := box(t, bed)
	base := s.Chain()
	sandboxtest.Run(t, s, "echo 1 >f")
	cp := store(t, bed, take(t, bed, s, checkpoint.Step).ID)
	local := take(t, bed, s, checkpoint.Step)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := bed.Host.Cache.Remove(base[0].ID); err != nil {
		t.Fatal(err)
	}
	r, err := bed.Manager.Restore(t.Context(), cp.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	if got := sandboxtest.Run(t, bed.Sandbox(t, r.Chain), "cat a f"); got != "one\n1\n" {
		t.Errorf("restored tree %q, want it whole", got)
	}
	if _, err := bed.Manager.Restore(t.Context(), local.ID); !errors.Is(err, checkpoint.ErrMissingLayer) {
		t.Errorf("a local checkpoint without its base: %v, want %v", err, checkpoint.ErrMissingLayer)
	}
}
