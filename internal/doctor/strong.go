package doctor

import (
	"context"
	"fmt"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

// tryStrong runs one command on a kernel of its own, if gVisor is installed. That takes longer than all the rest.
func (e *examination) tryStrong(ctx context.Context) error {
	if _, err := isolate.FindRunsc(); err != nil {
		return err
	}
	found, err := isolate.FindPrograms(ctx, isolate.RungStrong, e.subdir("strong"), []string{"sh"})
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("%w: a command on it finds no sh", isolate.ErrNoStrong)
	}
	return err
}
