package checkpoint

import (
	"context"
	"fmt"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/plan/diff"
)

// Base is the checkpoint's base alone.
func (r Restored) Base() Restored {
	return Restored{Chain: r.Chain[:r.BaseLayers], BaseLayers: r.BaseLayers}
}

// Compare lists what differs between two restored checkpoints, of whatever plans and sandboxes, ready to be shown. Its cost
// follows what the layers that they do not share hold. Both must stay in the cache while the result is used.
func Compare(ctx context.Context, from, to Restored) (*diff.Set, error) {
	changes, err := layer.Compare(from.Chain, to.Chain)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: compare: %w", err)
	}
	return diff.New(ctx, diff.Request{
		Changes: changes, Base: layer.NewTree(from.Chain), Ours: layer.NewTree(to.Chain), MaxFile: MaxComparedFile,
	})
}

// MaxComparedFile is the largest file whose lines Compare shows, in bytes.
const MaxComparedFile = 8 << 20
