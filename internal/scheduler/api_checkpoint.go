package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
)

func (s *Scheduler) checkpointList(ctx context.Context, body []byte) (any, error) {
	var f api.CheckpointFilter
	if len(body) > 0 {
		if err := json.Unmarshal(body, &f); err != nil {
			return nil, fail(api.CodeInvalid, "request is not JSON: %v", err)
		}
	}
	if f.Plan != "" {
		return s.checkpointsOfPlan(ctx, f.Plan)
	}
	all, err := checkpoint.All(ctx, s.fleet.Checkpoints)
	if err != nil {
		return nil, err
	}
	out := []api.Checkpoint{}
	for _, c := range all {
		if f.Sandbox == "" || f.Sandbox == c.SandboxID {
			out = append(out, shown(c))
		}
	}
	return out, nil
}

// checkpointsOfPlan joins what the plan's events name with the records of what is portable.
func (s *Scheduler) checkpointsOfPlan(ctx context.Context, planID string) (any, error) {
	id, err := events.ParseID(planID)
	if err != nil {
		return nil, fail(api.CodeInvalid, "%v", err)
	}
	records, err := s.fleet.Log.Events(ctx, id)
	if err != nil {
		return nil, err
	}
	found := map[string]api.Checkpoint{}
	for _, r := range records {
		d := r.Event.Data
		if d.Checkpoint == nil {
			continue
		}
		c, err := checkpoint.Load(ctx, s.fleet.Checkpoints, d.Checkpoint.ID)
		if errors.Is(err, checkpoint.ErrNotFound) {
			c = checkpoint.Checkpoint{ID: d.Checkpoint.ID, PlanID: id, Phase: checkpoint.Phase(d.Checkpoint.Phase), CreatedAt: r.Event.Time, Worker: d.Worker}
		} else if err != nil {
			return nil, err
		}
		found[c.ID] = shown(c)
	}
	return slices.SortedFunc(maps.Values(found), func(a, b api.Checkpoint) int { return strings.Compare(a.ID, b.ID) }), nil
}

func (s *Scheduler) checkpointGet(ctx context.Context, body []byte) (any, error) {
	req, err := idOf(body)
	if err != nil {
		return nil, err
	}
	c, err := checkpoint.Load(ctx, s.fleet.Checkpoints, req.ID)
	if err != nil {
		return nil, err
	}
	return shown(c), nil
}

// shown is a record as people see it.
func shown(c checkpoint.Checkpoint) api.Checkpoint {
	out := api.Checkpoint{
		ID: c.ID, Plan: c.PlanID, Sandbox: c.SandboxID, Phase: string(c.Phase), CreatedAt: c.CreatedAt,
		SizeBytes: c.SizeBytes, Portable: c.Portable, Fuzzy: c.Fuzzy, Worker: c.Worker, Layers: []string{}, Metadata: c.Metadata, Lost: json.RawMessage("[]"),
	}
	if out.Metadata == nil {
		out.Metadata = map[string]string{}
	}
	if c.Live {
		out.Base = "live"
	}
	if n := len(c.Base); n > 0 {
		out.Base = c.Base[n-1].Name
	}
	for _, l := range c.Layers {
		out.Layers = append(out.Layers, l.Name)
	}
	if b, err := json.Marshal(c.Lost); err == nil && len(c.Lost) > 0 {
		out.Lost = b
	}
	return out
}

func (s *Scheduler) workerList(context.Context, []byte) (any, error) {
	workers := s.index.workers()
	out := []events.Worker{}
	for _, name := range slices.Sorted(maps.Keys(workers)) {
		out = append(out, workers[name])
	}
	return out, nil
}
