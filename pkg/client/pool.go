package client

import (
	"context"
	"encoding/json"

	"github.com/warmfleet/warmfleet/pkg/api"
)

// ApplyPool brings a pool to what a file says, given as JSON. A file that was applied before changes nothing; one that is
// not valid is an *Error of code api.CodeInvalid with every fault, and changes nothing either.
func (c *Client) ApplyPool(ctx context.Context, spec json.RawMessage) (api.PoolChanged, error) {
	return call[api.PoolChanged](ctx, c, "pool", "apply", api.PoolApply{Spec: spec})
}

// Pools returns all pools by name, those being removed included.
func (c *Client) Pools(ctx context.Context) ([]api.Pool, error) {
	return call[[]api.Pool](ctx, c, "pool", "list", nil)
}

// Pool returns a pool as it is now.
func (c *Client) Pool(ctx context.Context, name string) (api.Pool, error) {
	return call[api.Pool](ctx, c, "pool", "get", api.Name{Name: name})
}

// DeletePool removes a pool. One that plans wait for is an *Error of code api.CodeRefused unless forced.
func (c *Client) DeletePool(ctx context.Context, name string, force bool) (api.PoolChanged, error) {
	return call[api.PoolChanged](ctx, c, "pool", "delete", api.PoolDelete{Name: name, Force: force})
}

// PrewarmPool has one more sandbox made ready on the worker that it returns, until the time that it returns.
func (c *Client) PrewarmPool(ctx context.Context, name string) (api.Prewarmed, error) {
	return call[api.Prewarmed](ctx, c, "pool", "prewarm", api.Name{Name: name})
}

// RefreshPool asks for a build of a pool's image now, or names the one that is under way.
func (c *Client) RefreshPool(ctx context.Context, name string, scratch bool) (api.Building, error) {
	return call[api.Building](ctx, c, "pool", "refresh", api.PoolRefresh{Name: name, Scratch: scratch})
}

// Images returns images, oldest first.
func (c *Client) Images(ctx context.Context, f api.ImageFilter) ([]api.Image, error) {
	return call[[]api.Image](ctx, c, "image", "list", f)
}

// Image returns one image.
func (c *Client) Image(ctx context.Context, id string) (api.Image, error) {
	return call[api.Image](ctx, c, "image", "get", api.ID{ID: id})
}

// DeleteImage removes an image's record. One that a pool starts from is an *Error of code api.CodeRefused unless forced.
func (c *Client) DeleteImage(ctx context.Context, id string, force bool) (api.Done, error) {
	return call[api.Done](ctx, c, "image", "delete", api.Delete{ID: id, Force: force})
}

// BuildImage is RefreshPool by another name.
func (c *Client) BuildImage(ctx context.Context, pool string, scratch bool) (api.Building, error) {
	return call[api.Building](ctx, c, "image", "build", api.ImageBuild{Pool: pool, Scratch: scratch})
}

// ExplainImage asks a worker which steps a build of a pool's image would run, and what in the repository says so. Nothing is
// built. No live worker that serves the pool is an *Error of code api.CodeConflict.
func (c *Client) ExplainImage(ctx context.Context, pool string) (api.ImageExplained, error) {
	return transferOn[api.ImageExplained](ctx, c, c.subjects.API("image", "build"), api.ImageBuild{Pool: pool, Explain: true})
}
