package isolate

import (
	"context"
	"fmt"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

// Hold makes the workspace read-only from now on, for commands (EROFS) and file calls
// (ErrHeld), but for those that say Sync; reading goes on. It waits for a command that runs,
// and lasts until Release, whatever is detached and attached meanwhile. EBUSY: a detached
// process has a file open for writing, and nothing was changed. It keeps what is done in
// good faith in order and is no boundary: a detached process can reach the writable view
// of a sync that runs by way of /proc. On RungBare, which has no mounts, only file calls are held.
func (i *Init) Hold(ctx context.Context) error { return i.gate(ctx, wire.KindHold, "hold") }

// Release ends Hold, when a command that runs has ended.
func (i *Init) Release(ctx context.Context) error { return i.gate(ctx, wire.KindRelease, "release") }

func (i *Init) gate(ctx context.Context, kind wire.Kind, verb string) error {
	select {
	case i.turn <- struct{}{}:
		defer func() { <-i.turn }()
	case <-ctx.Done():
		return ctx.Err()
	case <-i.done:
		return i.lost()
	}
	if _, err := i.call(ctx, kind, nil); err != nil {
		return fmt.Errorf("isolate: %s workspace: %w", verb, err)
	}
	return nil
}
