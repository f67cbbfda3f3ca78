package events

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"
)

// Redeclare declares every stream once more and returns the names of those that changed.
func Redeclare(ctx context.Context, js jetstream.JetStream, s Subjects) ([]string, error) {
	var changed []string
	for _, d := range declarations(s, Options{Replicas: 1}) {
		did, err := d.declare(ctx, js)
		if err != nil {
			return nil, err
		}
		if did {
			changed = append(changed, d.name)
		}
	}
	return changed, nil
}
