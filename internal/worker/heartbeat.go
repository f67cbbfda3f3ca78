package worker

import (
	"context"
	"errors"
	"time"

	"github.com/warmfleet/warmfleet/pkg/events"
)

const (
	// heartbeatEvery renews the lease on a command: four may be lost before the worker stops by itself.
	heartbeatEvery = time.Second
	// fenceAfter is how long a worker works on without an acknowledged round trip. It is
	// below AckWait (5 s), so a worker stops before its command can be handed to another.
	fenceAfter = 4 * time.Second
	// lockPoll is how often a busy path is tried again.
	lockPoll = 50 * time.Millisecond
)

// errSilent is the cause of work given up because the server was not heard of for too long.
var errSilent = errors.New("worker: no acknowledged round trip: fencing itself")

// heartbeat renews the lease on a delivery until stop is called. Whoever works on the
// delivery uses the returned context, which ends when the lease can no longer be trusted.
func (w *Worker) heartbeat(ctx context.Context, d events.Delivery) (lease context.Context, stop func()) {
	lease, cancel := context.WithCancelCause(ctx)
	fence := time.AfterFunc(fenceAfter, func() {
		w.log.Error().Err(errSilent).Msg("lease lost")
		cancel(errSilent)
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		heard := time.Now()
		tick := time.NewTicker(heartbeatEvery)
		defer tick.Stop()
		for {
			select {
			case <-lease.Done():
				return
			case <-tick.C:
			}
			// First the clock: after a stop of the whole process the server still answers, but
			// another worker may have the command. The server's own clock starts after asked.
			if asked := time.Now(); asked.Sub(heard) <= fenceAfter && beat(lease, d) == nil {
				heard = asked
				fence.Reset(fenceAfter - time.Since(asked))
			}
		}
	}()
	return lease, func() {
		cancel(nil)
		<-done
		fence.Stop()
	}
}

func beat(ctx context.Context, d events.Delivery) error {
	ctx, cancel := context.WithTimeout(ctx, heartbeatEvery)
	defer cancel()
	return d.InProgress(ctx)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
