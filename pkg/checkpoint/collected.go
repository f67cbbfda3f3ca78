package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/warmfleet/warmfleet/internal/fault"
	"github.com/warmfleet/warmfleet/internal/kv"
)

// lastCollection is the record of a collection. Fields may be added, none renamed.
type lastCollection struct {
	// Removed are the objects that went last, newest last.
	Removed []string `json:"removed"`
}

// maxRemoved bounds lastCollection.Removed to what fits into any message.
const maxRemoved = 300

func (g *collector) removedBefore(ctx context.Context) ([]string, error) {
	e, err := g.records.Get(ctx, collectedKey)
	if errors.Is(err, kv.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var last lastCollection
	return last.Removed, json.Unmarshal(e.Value, &last)
}

func (g *collector) note(ctx context.Context) error {
	last := lastCollection{Removed: g.removed[max(0, len(g.removed)-maxRemoved):]}
	b, err := json.Marshal(last)
	if err != nil {
		return err
	}
	_, err = g.records.Put(ctx, collectedKey, b)
	fault.At("checkpoint.noted")
	return err
}

// LastCollected is when the last collection ended by the server's clock, zero for never.
func LastCollected(ctx context.Context, records kv.Bucket) (time.Time, error) {
	e, err := records.Get(ctx, collectedKey)
	if errors.Is(err, kv.ErrNotFound) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("checkpoint: read when garbage was collected: %w", err)
	}
	return e.Created, nil
}
