package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// planDiff gives the difference that was rendered when the steps had ended.
func (s *Scheduler) planDiff(ctx context.Context, body []byte) (any, error) {
	req, err := idOf(body)
	if err != nil {
		return nil, err
	}
	records, err := s.fleet.Log.Events(ctx, req.ID)
	if err != nil {
		return nil, err
	}
	for i := len(records) - 1; i >= 0; i-- {
		cp := records[i].Event.Data.Checkpoint
		if cp != nil && cp.Phase == events.PhasePostExecute {
			return s.diffOf(ctx, req.ID, cp.ID)
		}
	}
	return nil, fail(api.CodeConflict, "plan %s: has no difference yet: its steps have not ended", req.ID)
}

func (s *Scheduler) diffOf(ctx context.Context, planID, checkpointID string) (any, error) {
	cp, err := checkpoint.Load(ctx, s.fleet.Checkpoints, checkpointID)
	if errors.Is(err, checkpoint.ErrNotFound) {
		return nil, fail(api.CodeNotFound, "checkpoint %s: deleted, and with it the difference of plan %s", checkpointID, planID)
	}
	if err != nil {
		return nil, err
	}
	d, err := checkpoint.GetDelta(ctx, s.fleet.Store, cp.Delta)
	if err != nil {
		return nil, err
	}
	out := api.Diff{ID: planID, Checkpoint: cp.ID, Diff: string(d.Diff)}
	if !utf8.ValidString(out.Diff) {
		out.Patch = []byte(d.Diff)
		out.Diff = strings.ToValidUTF8(out.Diff, "\ufffd")
	}
	out.Files, err = json.Marshal(d.Files())
	return out, err
}
