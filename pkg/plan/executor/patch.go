package executor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/plan/patch"
)

// patch applies a diff to the workspace, all of it or nothing.
func (r *run) patch(ctx context.Context, p *plan.Patch) error {
	set, faults := p.Read()
	if len(faults) > 0 { // validated when it was submitted
		return stepError{msg: fmt.Sprintf("patch: line %d of the diff: %s", faults[0].Line, faults[0].Message)}
	}
	changes, err := set.Apply(func(path string) (*patch.File, error) { return r.lookAt(ctx, path) })
	if errors.Is(err, patch.ErrConflict) {
		return stepError{msg: fmt.Sprintf("patch %v: nothing was changed", err)}
	}
	if err != nil {
		return err
	}
	list := make([]isolate.FileChange, 0, len(changes))
	for _, c := range changes {
		one := isolate.FileChange{Path: c.Path, Remove: c.File == nil}
		if f := c.File; f != nil {
			one.Link, one.Content, one.Mode = f.Link, f.Content, f.Mode
		}
		list = append(list, one)
	}
	err = r.Sandbox.ChangeFiles(ctx, list)
	if err == nil || broken(err) {
		return err
	}
	return stepError{msg: fmt.Sprintf("patch: %v: nothing was changed", err)}
}

// lookAt reads what a diff is about.
func (r *run) lookAt(ctx context.Context, path string) (*patch.File, error) {
	content, mode, err := r.Sandbox.LookAt(ctx, path, MaxEdit)
	reason := ""
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return nil, nil
	case errors.Is(err, syscall.ELOOP):
		reason = "lies behind a symbolic link, which no patch follows"
	case errors.Is(err, syscall.EISDIR):
		reason = "is a directory"
	case errors.Is(err, syscall.EINVAL):
		reason = "is neither a file nor a link"
	case errors.Is(err, isolate.ErrTooLarge):
		reason = fmt.Sprintf("has more than %d MiB, which no patch reads", MaxEdit>>20)
	case err != nil:
		return nil, refusal(err, "patch", path)
	}
	if reason != "" {
		return nil, &patch.Error{Path: path, Reason: reason}
	}
	return &patch.File{Link: mode&fs.ModeSymlink != 0, Mode: uint32(mode.Perm()), Content: content}, nil
}

// broken tells a sandbox that does not work from a tree that does not allow something.
func broken(err error) bool {
	return errors.Is(err, isolate.ErrLost) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
