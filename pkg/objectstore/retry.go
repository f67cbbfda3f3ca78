package objectstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// retryable reports whether the same content may fare better a moment later.
func retryable(err error) bool {
	var source *sourceError
	if errors.As(err, &source) || errors.Is(err, ErrFull) {
		return false
	}
	var api *jetstream.APIError
	if errors.As(err, &api) {
		switch api.ErrorCode {
		case errCodeTooManyReqs, errCodeWrongSequence, errCodeWrongSequenceR, errCodeStoreFailed:
			return true
		}
		return api.Code >= 500
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, nats.ErrConnectionClosed) ||
		errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrPermissionViolation) {
		return false
	}
	return true
}

// pause waits between attempts: doubling, with jitter so that workers do not meet again.
func pause(ctx context.Context, attempt int) error {
	d := min(firstBackoff<<(attempt-1), maxBackoff)
	return sleep(ctx, d/2+rand.N(d))
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
