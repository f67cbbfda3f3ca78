package worker

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// maxDiffPage is the most text of a difference in one reply, in bytes; a file that has more has a reply of its own.
const maxDiffPage = 4 << 20

// Restoring brings a checkpoint into a cache until release.
type Restoring func(ctx context.Context, id string) (r checkpoint.Restored, release func(), err error)

// apiDiff compares checkpoints that this worker has or can fetch.
func (w *Worker) apiDiff(ctx context.Context, body []byte) (any, error) {
	var req api.CheckpointDiff
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, fmt.Errorf("worker: read request: %w: %w", errRequest, err)
	}
	return CheckpointDiff(ctx, req, w.restore)
}

// CheckpointDiff answers a request to compare checkpoints, from wherever they are restored.
func CheckpointDiff(ctx context.Context, req api.CheckpointDiff, restore Restoring) (api.DiffPage, error) {
	var after layer.Path
	if err := after.UnmarshalText([]byte(req.After)); err != nil {
		return api.DiffPage{}, fmt.Errorf("worker: read request: %w: %w", errRequest, err)
	}
	to, release, err := restoreID(ctx, req.To, restore)
	if err != nil {
		return api.DiffPage{}, err
	}
	defer release()
	from := to.Base()
	if req.From != "" {
		if from, release, err = restoreID(ctx, req.From, restore); err != nil {
			return api.DiffPage{}, err
		}
		defer release()
	}
	set, err := checkpoint.Compare(ctx, from, to)
	if err != nil {
		return api.DiffPage{}, err
	}
	if !req.Files {
		text, next, err := set.Page(ctx, after, maxDiffPage)
		if err != nil {
			return api.DiffPage{}, err
		}
		token, err := next.MarshalText()
		return api.DiffPage{Patch: text, Next: string(token)}, err
	}
	files, err := set.Files(ctx)
	if err != nil {
		return api.DiffPage{}, err
	}
	b, err := json.Marshal(files)
	return api.DiffPage{Files: b}, err
}

func restoreID(ctx context.Context, id string, restore Restoring) (checkpoint.Restored, func(), error) {
	id, err := events.ParseID(id)
	if err != nil {
		return checkpoint.Restored{}, nil, err
	}
	return restore(ctx, id)
}
