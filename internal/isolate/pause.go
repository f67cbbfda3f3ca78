package isolate

import (
	"context"
	"fmt"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

// Pause stops what Start started, with all it has made, until Resume, so that the workspace stands still while it stays
// attached. It waits for a command that runs, and commands and file calls wait for Resume. A process that sleeps in the
// kernel, as for a slow disk, may still end the call that it is in. After an error nothing is stopped.
func (i *Init) Pause(ctx context.Context) error {
	for n, lock := range i.locks() {
		select {
		case lock <- struct{}{}:
			continue
		case <-ctx.Done():
			i.unlock(n)
			return ctx.Err()
		case <-i.done:
			i.unlock(n)
			return i.lost()
		}
	}
	if _, err := i.call(ctx, wire.KindPause, nil); err != nil {
		// It may have been stopped all the same, when the answer was not waited for.
		_, _ = i.call(context.WithoutCancel(ctx), wire.KindResume, nil)
		i.unlock(len(i.locks()))
		return fmt.Errorf("isolate: stop what runs: %w", err)
	}
	return nil
}

// Resume ends a Pause that succeeded.
func (i *Init) Resume(ctx context.Context) error {
	defer i.unlock(len(i.locks()))
	if _, err := i.call(ctx, wire.KindResume, nil); err != nil {
		return fmt.Errorf("isolate: let go on what was stopped: %w", err)
	}
	return nil
}

// locks are held by Pause, in this order.
func (i *Init) locks() []chan struct{} { return []chan struct{}{i.turn, i.fileUse} }

func (i *Init) unlock(n int) {
	for _, lock := range i.locks()[:n] {
		<-lock
	}
}
