package isolate

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

// ErrNoStrong reports that RungStrong was asked for and does not work here.
var ErrNoStrong = errors.New("gVisor does not work here")

// strong is the rung of inits that start each command on a kernel of its own.
type strong struct{ namespaced }

func (s strong) check(c Config) error {
	if _, err := FindRunsc(); err != nil {
		return err
	}
	return s.namespaced.check(c)
}

func (strong) tell(spec *wire.Spec) {
	spec.Runsc, _ = FindRunsc() // check found it
}

func (strong) qualify(r Report) {
	r.Guarantees[KernelSurface] = Guarantee{State: Enforced, Why: "each command has a kernel of its own, gVisor's"}
}

// FindRunsc is the path of gVisor's program, looked for on the PATH of this process.
func FindRunsc() (string, error) {
	found, err := exec.LookPath("runsc")
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("%w: its program runsc is not on the PATH", ErrNoStrong)
	}
	if err == nil {
		found, err = filepath.Abs(found)
	}
	if err == nil {
		found, err = filepath.EvalSymlinks(found)
	}
	if err != nil {
		return "", fmt.Errorf("%w: find its program runsc: %w", ErrNoStrong, err)
	}
	return found, nil
}

// ProbeStrong is Probe of RungStrong alone. Where that does not work the error is ErrNoStrong, and says why.
func ProbeStrong(ctx context.Context, scratch string) (Report, error) {
	if _, err := FindRunsc(); err != nil {
		return Report{}, err
	}
	r, err := ProbeOf(ctx, scratch, RungStrong)
	switch {
	case err != nil:
		err = fmt.Errorf("%w: %w", ErrNoStrong, err)
	case r.Rung != RungStrong:
		err = fmt.Errorf("%w: %s", ErrNoStrong, r.Guarantees[Writes].Why)
	}
	return r, err
}
