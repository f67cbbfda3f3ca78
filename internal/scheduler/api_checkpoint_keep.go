package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
)

// checkpointVerify reads everything that a checkpoint's record names.
func (s *Scheduler) checkpointVerify(ctx context.Context, body []byte) (any, error) {
	req, err := idOf(body)
	if err != nil {
		return nil, err
	}
	return checkpoint.VerifyOne(ctx, s.fleet.Store, s.fleet.Checkpoints, req.ID)
}

// checkpointDelete removes a record that no plan needs any more. What only it named goes with
// the next collection.
func (s *Scheduler) checkpointDelete(ctx context.Context, body []byte) (any, error) {
	id, err := idOf(body)
	if err != nil {
		return nil, err
	}
	var req api.Delete
	_ = json.Unmarshal(body, &req) // a bare id is no JSON, and forces nothing
	cp, err := checkpoint.Load(ctx, s.fleet.Checkpoints, id.ID)
	if errors.Is(err, checkpoint.ErrNotFound) {
		return nil, err
	}
	if err == nil { // else nobody can use it
		err := s.deletable(cp, req.Force)
		for name, i := range s.pools.latestImages() {
			if i.Checkpoint == cp.ID && !req.Force {
				err = fail(api.CodeRefused, "checkpoint %s: pool %s starts from its image %s: remove the pool, build another image, or use --force", cp.ID, name, i.ID)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	if err := checkpoint.Remove(ctx, s.fleet.Checkpoints, id.ID); err != nil {
		return nil, err
	}
	return api.Done{ID: id.ID, State: "deleted"}, nil
}

// deletable refuses a checkpoint that a plan needs which has not ended.
func (s *Scheduler) deletable(cp checkpoint.Checkpoint, force bool) error {
	f, known := s.index.get(cp.PlanID)
	if !known || f.Final() {
		return nil
	}
	state := strings.ReplaceAll(f.State, "_", " ")
	if f.Checkpoint != nil && f.Checkpoint.ID == cp.ID || f.Intent != nil && f.Intent.Checkpoint == cp.ID {
		return fail(api.CodeRefused, "checkpoint %s: plan %s goes on from it and is %s: wait for its end, or cancel the plan first", cp.ID, cp.PlanID, state)
	}
	if !force {
		return fail(api.CodeRefused, "checkpoint %s: belongs to plan %s, which is %s: wait for its end, or use --force", cp.ID, cp.PlanID, state)
	}
	return nil
}

// gcRun collects garbage now.
func (s *Scheduler) gcRun(ctx context.Context, body []byte) (any, error) {
	var req api.Collect
	if len(body) > 0 {
		if err := json.Unmarshal(body, &req); err != nil {
			return nil, fail(api.CodeInvalid, "request is not JSON: %v", err)
		}
	}
	grace := s.keep.Grace
	if req.Grace != "" {
		var err error
		if grace, err = time.ParseDuration(req.Grace); err != nil || grace < 0 {
			return nil, fail(api.CodeInvalid, "grace %q: write a time such as 0s or 24h", req.Grace)
		}
	}
	done, err := s.collect(ctx, grace, req.DryRun)
	if errors.Is(err, kv.ErrHeld) {
		return nil, fail(api.CodeConflict, "gc: another one is running: try again when it is done")
	}
	return done, err
}
