package client

import (
	"context"
	"encoding/json"
	"time"

	"github.com/warmfleet/warmfleet/pkg/api"
)

// transferTimeout bounds a request that moves layers, or reads all of them, when the context
// has no deadline. The API gives up at the same time.
const transferTimeout = 10 * time.Minute

// transfer is call for such requests.
func transfer[T any](ctx context.Context, c *Client, verb string, req any) (T, error) {
	return transferOn[T](ctx, c, c.subjects.API("checkpoint", verb), req)
}

func transferOn[T any](ctx context.Context, c *Client, subject string, req any) (T, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, transferTimeout)
		defer cancel()
	}
	return ask[T](ctx, c, subject, req)
}

// DeleteCheckpoint removes a checkpoint's record. One that a plan needs which has not ended is an
// *Error of code api.CodeRefused; force leaves such a plan only the one that it goes on from.
func (c *Client) DeleteCheckpoint(ctx context.Context, id string, force bool) (api.Done, error) {
	return call[api.Done](ctx, c, "checkpoint", "delete", api.Delete{ID: id, Force: force})
}

// Rollback makes a sandbox in the state of a checkpoint on a worker ("" is any), kept for an hour.
func (c *Client) Rollback(ctx context.Context, id, worker string) (api.RolledBack, error) {
	return transfer[api.RolledBack](ctx, c, "rollback", api.Rollback{Checkpoint: id, Worker: worker})
}

// Fork makes a new sandbox on the layers of a checkpoint, on a worker ("" is any), kept for an
// hour. Nothing is copied, and neither it nor its origin sees what the other does.
func (c *Client) Fork(ctx context.Context, id, worker string) (api.RolledBack, error) {
	return transfer[api.RolledBack](ctx, c, "fork", api.Rollback{Checkpoint: id, Worker: worker})
}

// VerifyCheckpoint reads everything that a stored checkpoint needs, its base included.
func (c *Client) VerifyCheckpoint(ctx context.Context, id string) (api.Verified, error) {
	return transfer[api.Verified](ctx, c, "verify", api.ID{ID: id})
}

// StoreCheckpoint asks the worker that holds a checkpoint to make it portable.
func (c *Client) StoreCheckpoint(ctx context.Context, id, worker string) error {
	_, err := transferOn[json.RawMessage](ctx, c, c.subjects.Worker(worker, "store"), api.Store{Checkpoint: id})
	return err
}

// CollectGarbage removes what nobody needs any more from the store of checkpoints.
func (c *Client) CollectGarbage(ctx context.Context, req api.Collect) (api.Collected, error) {
	return transferOn[api.Collected](ctx, c, c.subjects.API("gc", "run"), req)
}
