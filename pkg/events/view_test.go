package events_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// record makes the records of one plan by folding facts, as a Writer does.
type recorder struct {
	id      string
	fold    events.Fold
	records []events.Record
}

func (r *recorder) add(typ string, d events.Data) *recorder {
	next, err := r.fold.Next(typ, d)
	if err != nil {
		panic(err)
	}
	d.Final = next.Final() && !r.fold.Final()
	d.Plan = &next
	r.fold = next
	ev := events.NewEvent(events.TypeOf(events.NounPlan, typ), r.id, "/test", d)
	r.records = append(r.records, events.Record{Event: ev, Seq: uint64(len(r.records) + 1)})
	return r
}

func accepting(apply string, steps ...string) *recorder {
	r := &recorder{id: "01JD0000000000000000000000"}
	return r.add(events.TypeAccepted, events.Data{Steps: steps, Plan: &events.Fold{
		Name: "demo", Strategy: "copy_on_write", Apply: apply, Resource: events.Resource{Path: "/src", Host: "h1"},
	}})
}

func ref(id, phase string, cursor int, size int64, portable bool) *events.CheckpointRef {
	return &events.CheckpointRef{ID: id, Phase: phase, Cursor: cursor, SizeBytes: size, Portable: portable}
}

// life is a plan whose first worker dies in the second step.
func life() []events.Record {
	at := func(epoch uint64, i int) events.Data { return events.Data{Epoch: epoch, StepIndex: &i} }
	end := func(epoch uint64, i, code int) events.Data {
		d := at(epoch, i)
		d.ExitCode, d.Cause, d.DurationMS = ptr(code), "exit", ptr(int64(10*i+int(epoch)))
		return d
	}
	return accepting(events.ApplyNever, "first", "slow", "third").
		add(events.TypeClaimed, events.Data{Epoch: 1, Worker: "wa", Source: "cold", Checkpoint: ref("pre-a", events.PhasePreExecute, 0, 0, false)}).
		add(events.TypeStepStarted, at(1, 0)).
		add(events.TypeStepFinished, end(1, 0, 0)).
		add(events.TypeCheckpointed, events.Data{Epoch: 1, Checkpoint: ref("one", events.PhaseStep, 1, 0, false)}).
		add(events.TypeStepStarted, at(1, 1)).
		add(events.TypeCheckpointed, events.Data{Epoch: 1, Checkpoint: ref("one", events.PhaseStep, 1, 77, true)}).
		add(events.TypeClaimed, events.Data{Epoch: 2, Worker: "wb", Source: events.SourceCheckpoint, Checkpoint: ref("pre-b", events.PhasePreExecute, 0, 0, false)}).
		add(events.TypeStepStarted, at(2, 1)).
		add(events.TypeStepFinished, end(2, 1, 0)).
		add(events.TypeStepStarted, at(2, 2)).
		add(events.TypeStepFinished, end(2, 2, 0)).
		add(events.TypeExecuted, events.Data{Epoch: 2, Checkpoint: ref("post", events.PhasePostExecute, 3, 99, true), Changed: ptr(2)}).
		records
}

func TestBuildView(t *testing.T) {
	got, err := json.MarshalIndent(events.BuildView(life()), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(got, &m); err != nil {
		t.Fatal(err)
	}
	delete(m, "created_at")
	step := func(id string, ms float64) map[string]any {
		return map[string]any{"id": id, "state": "succeeded", "exit_code": 0.0, "signal": nil, "cause": "exit", "duration_ms": ms}
	}
	want := map[string]any{
		"id": "01JD0000000000000000000000", "name": "demo", "state": "executed", "final": true, "worker": "wb", "attempt": 2.0, "epoch": 2.0,
		"strategy": "copy_on_write", "resource": map[string]any{"path": "/src", "host": "h1"}, "error": nil, "code": nil, "reason": nil, "exit_code": 0.0,
		"steps": []any{step("first", 1), step("slow", 12), step("third", 22)},
		"checkpoints": []any{
			map[string]any{"id": "pre-a", "phase": "pre_execute", "size_bytes": 0.0, "portable": false},
			map[string]any{"id": "one", "phase": "step", "size_bytes": 77.0, "portable": true},
			map[string]any{"id": "post", "phase": "post_execute", "size_bytes": 99.0, "portable": true},
		},
		"conflicts": []any{}, "conflict_count": 0.0, "undo": nil, "commit": nil, "changed": 2.0, "rolled_back": nil, "cancel_requested": false, "isolation": nil, "guarantees": nil, "notes": []any{}, "retry_of": nil,
	}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Errorf("view (-want +got):\n%s", diff)
	}
}

func TestBuildView_TakenOver(t *testing.T) {
	records := life()
	for n, want := range map[int][]string{
		1: {"pending", "pending", "pending"},
		6: {"succeeded", "running", "pending"},
		8: {"succeeded", "pending", "pending"},
		9: {"succeeded", "running", "pending"},
	} {
		if diff := cmp.Diff(want, stepStates(events.BuildView(records[:n]))); diff != "" {
			t.Errorf("after %d events (-want +got):\n%s", n, diff)
		}
	}
}

func stepStates(v events.View) []string {
	var states []string
	for _, s := range v.Steps {
		states = append(states, s.State)
	}
	return states
}

func TestBuildView_Failed(t *testing.T) {
	records := accepting(events.ApplyAuto, "a", "b", "c").
		add(events.TypeClaimed, events.Data{Epoch: 1, Worker: "w"}).
		add(events.TypeStepStarted, events.Data{Epoch: 1, StepIndex: ptr(0)}).
		add(events.TypeStepFinished, events.Data{Epoch: 1, StepIndex: ptr(0), State: "failed", Signal: "KILL", Cause: "signal", ExitCode: ptr(-1)}).
		add(events.TypeStepStarted, events.Data{Epoch: 1, StepIndex: ptr(1)}).
		add(events.TypeFailed, events.Data{Epoch: 1, Error: "step b: gone", RolledBack: "sandbox"}).
		records
	v := events.BuildView(records)
	if diff := cmp.Diff([]string{"failed", "failed", "skipped"}, stepStates(v)); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	if s := v.Steps[0]; s.ExitCode != nil || s.Signal == nil || *s.Signal != "KILL" || *s.Cause != "signal" {
		t.Errorf("signalled step %+v", s)
	}
	if v.ExitCode != nil || v.Error == nil || *v.Error != "step b: gone" || *v.RolledBack != "sandbox" {
		t.Errorf("view %+v", v)
	}
}

func TestBuildView_Conflict(t *testing.T) {
	want := []events.Conflict{{Path: "src/a.txt", Kind: "content"}}
	v := events.BuildView(accepting(events.ApplyAuto).
		add(events.TypeClaimed, events.Data{Epoch: 1}).
		add(events.TypeExecuted, events.Data{Epoch: 1}).
		add(events.TypeConflict, events.Data{Epoch: 1, Conflicts: want}).records)
	if diff := cmp.Diff(want, v.Conflicts); diff != "" || v.State != "conflict" {
		t.Errorf("state %s, conflicts (-want +got):\n%s", v.State, diff)
	}
}

func TestBuildView_States(t *testing.T) {
	r := accepting(events.ApplyManual, "a")
	seen := []string{r.fold.State}
	add := func(typ string, d events.Data) {
		r.add(typ, d)
		if s := events.BuildView(r.records).State; s != seen[len(seen)-1] {
			seen = append(seen, s)
		}
	}
	add(events.TypeWaiting, events.Data{Reason: "no worker of host h1"})
	if v := events.BuildView(r.records); v.Reason == nil || *v.Reason != "no worker of host h1" {
		t.Errorf("reason %v", v.Reason)
	}
	add(events.TypeClaimed, events.Data{Epoch: 1})
	add(events.TypeExecuted, events.Data{Epoch: 1})
	add(events.TypeAwaitingApproval, events.Data{Epoch: 1})
	add(events.TypeApproved, events.Data{By: "me"})
	add(events.TypeClaimed, events.Data{Epoch: 2})
	add(events.TypeApplyIntent, events.Data{Epoch: 2})
	add(events.TypeApplied, events.Data{Epoch: 2, Changed: ptr(1)})
	if diff := cmp.Diff([]string{"accepted", "waiting", "running", "awaiting_approval", "applying", "applied"}, seen); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
}
