package isolate

import (
	"context"
	"fmt"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

// Pause stops everything that runs, a command of Exec and what Start started, with all they have made, until Resume, so that
// the workspace stands still while it stays attached. Commands do not start or end, and file calls wait, until then; the
// end of a command that a timeout or its context asks for waits too. A process that sleeps in the kernel, as for a slow disk, may
// still end the call that it is in. What is stopped gets SIGSTOP and SIGCONT, as from a terminal. After an error
// nothing is stopped.
func (i *Init) Pause(ctx context.Context) error {
	select {
	case i.fileUse <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-i.done:
		return i.lost()
	}
	i.still.Lock()
	if _, err := i.call(ctx, wire.KindPause, nil); err != nil {
		// It may have been stopped all the same, when the answer was not waited for.
		_, _ = i.call(context.WithoutCancel(ctx), wire.KindResume, nil)
		i.move()
		return fmt.Errorf("isolate: stop what runs: %w", err)
	}
	return nil
}

// Resume ends a Pause that succeeded.
func (i *Init) Resume(ctx context.Context) error {
	defer i.move()
	if _, err := i.call(ctx, wire.KindResume, nil); err != nil {
		return fmt.Errorf("isolate: let go on what was stopped: %w", err)
	}
	return nil
}

// move takes back what Pause holds.
func (i *Init) move() {
	i.still.Unlock()
	<-i.fileUse
}
