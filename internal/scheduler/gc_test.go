package scheduler

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
)

// keeper is a scheduler that is not run, on stores in memory.
func keeper(t *testing.T) *Scheduler {
	t.Helper()
	return New(Fleet{
		Plans: kv.NewMemory(), Checkpoints: kv.NewMemory(), Leases: kv.NewMemoryTTL(events.LeaseTTL), Store: objectstore.NewMemory(),
	}, 0, zerolog.Nop())
}

func (s *Scheduler) tell(id string, f events.Fold) {
	s.index.observe(events.Record{Seq: 1, Event: events.Event{Subject: id, Time: time.Now(), Data: events.Data{Final: f.Final(), Plan: &f}}})
}

func (s *Scheduler) file(t *testing.T, planID string) string {
	t.Helper()
	cp := checkpoint.Checkpoint{ID: events.NewID(), PlanID: planID, Phase: checkpoint.Step, Portable: true}
	b, err := json.Marshal(cp)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.fleet.Checkpoints.Put(t.Context(), cp.ID, b); err != nil {
		t.Fatal(err)
	}
	return cp.ID
}

func TestScheduler_CollectsByHowPlansEnded(t *testing.T) {
	s := keeper(t)
	s.keep = Keep{Applied: 0, Executed: time.Hour, Failed: -1, Conflict: 0, Cancelled: time.Hour, Session: time.Hour}
	gone := map[string]bool{
		events.StateRunning: false, events.StateAwaitingApproval: false, "unknown": false, "session": false,
		events.StateApplied: true, events.StateExecuted: false, events.StateFailed: false, events.StateDead: false,
		events.StateConflict: true, events.StateCancelled: false, events.StateRejected: false, events.StateExpired: false,
	}
	ids := map[string]string{}
	for state := range gone {
		plan := events.NewID()
		switch state {
		case "unknown":
		case "session":
			plan = ""
		case events.StateConflict: // only the record that outlives the log knows
			if err := writeFold(t.Context(), s.fleet.Plans, plan, events.Fold{State: state}); err != nil {
				t.Fatal(err)
			}
		default:
			s.tell(plan, events.Fold{State: state})
		}
		ids[state] = s.file(t, plan)
	}
	done, err := s.gcRun(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for state, want := range gone {
		_, err := checkpoint.Load(t.Context(), s.fleet.Checkpoints, ids[state])
		if got := errors.Is(err, checkpoint.ErrNotFound); got != want {
			t.Errorf("%s: gone %v, want %v (%v)", state, got, want, err)
		}
	}
	if got := done.(checkpoint.Collected); len(got.Checkpoints) != 2 || got.Kept != len(gone)-2 {
		t.Errorf("collected %+v", got)
	}
}

func TestScheduler_OneCollectionAtATime(t *testing.T) {
	s := keeper(t)
	lease, err := kv.Acquire(t.Context(), s.fleet.Leases, kv.LeaseOptions{Key: "gc", Owner: "other", TTL: events.LeaseTTL})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.gcRun(t.Context(), nil); errorCode(err) != api.CodeConflict {
		t.Errorf("beside another: %v, want code %s", err, api.CodeConflict)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := s.gcRun(t.Context(), []byte(`{"grace":"1h","dry_run":true}`)); err != nil {
			t.Errorf("alone: %v", err)
		}
	}
	for _, bad := range []string{`{"grace":"1 day"}`, `{"grace":"-1s"}`, `x`} {
		if _, err := s.gcRun(t.Context(), []byte(bad)); errorCode(err) != api.CodeInvalid {
			t.Errorf("%s: %v, want code %s", bad, err, api.CodeInvalid)
		}
	}
}

func TestScheduler_DeletesNothingThatAPlanNeeds(t *testing.T) {
	s := keeper(t)
	runs, over := events.NewID(), events.NewID()
	plain, goesOn, ended := s.file(t, runs), s.file(t, runs), s.file(t, over)
	s.tell(runs, events.Fold{State: events.StateRunning, Checkpoint: &events.FoldCheckpoint{ID: goesOn}})
	s.tell(over, events.Fold{State: events.StateApplied})
	for _, tc := range []struct{ body, code string }{
		{plain, api.CodeRefused},
		{`{"id":"` + goesOn + `","force":true}`, api.CodeRefused},
		{`{"id":"` + plain + `","force":true}`, ""},
		{ended, ""},
		{ended, api.CodeNotFound},
	} {
		_, err := s.checkpointDelete(t.Context(), []byte(tc.body))
		if got := map[bool]string{true: errorCode(err)}[err != nil]; got != tc.code || err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("delete %s: %v, want code %q", tc.body, err, tc.code)
		}
	}
}

func TestKeep_Validate(t *testing.T) {
	if err := DefaultKeep().Validate(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Keep){
		"gc-grace": func(k *Keep) { k.Grace = -1 }, "gc-every": func(k *Keep) { k.Every = 0 }, "checkpoint-budget": func(k *Keep) { k.Budget = -1 },
	} {
		k := DefaultKeep()
		change(&k)
		if err := k.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error that names %s", err, want)
		}
	}
}

// The image that a pool starts from is kept for ever; one that was replaced goes, record and checkpoint.
func TestScheduler_FateOfImages(t *testing.T) {
	images := kv.NewMemory()
	s := New(Fleet{Plans: kv.NewMemory(), Images: images}, 0, zerolog.Nop())
	old := time.Now().Add(-2 * keepReplaced)
	for key, v := range map[string]any{
		"old": events.Image{ID: "old", Pool: "api", Checkpoint: "cp-old", BuiltAt: old}, "new": events.Image{ID: "new", Pool: "api", Checkpoint: "cp-new", BuiltAt: old},
		events.LatestKey("api"): events.Latest{Pool: "api", Image: "new"},
	} {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := images.Create(t.Context(), key, b); err != nil {
			t.Fatal(err)
		}
		if err := s.pools.takeImage(kv.Entry{Key: key, Value: b}); err != nil {
			t.Fatal(err)
		}
	}
	fate, err := s.fates(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]checkpoint.Fate{"cp-new": {Pinned: true}, "cp-old": {Until: old.Add(keepReplaced)}} {
		if got := fate(checkpoint.Checkpoint{ID: id, Phase: events.PhaseImage}, old); got != want {
			t.Errorf("%s: %+v, want %+v", id, got, want)
		}
	}
	s.dropReplaced(t.Context())
	left, err := images.List(t.Context(), "")
	if err != nil || len(left) != 2 || left[0].Key != "new" {
		t.Errorf("records left: %v, %v, want the latest image and its pointer", left, err)
	}
}
