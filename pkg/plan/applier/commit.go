package applier

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// Commit makes the staged operations. It returns nil when the original is changed and on disk. A *LateConflict, or an
// error of the file system, comes after everything was taken back and the stage discarded: the original is as before,
// and the session may Check again. When taking back fails too, the error says so, the journal stays, and Recover settles
// it. Commit does not stop half-way when ctx ends.
func (s *Session) Commit(ctx context.Context) error {
	if s.phase != phaseStaged {
		return fmt.Errorf("applier: commit: %w", ErrOrder)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("applier: commit: %w", err)
	}
	ctx = context.WithoutCancel(ctx)
	if err := s.mark(stateApplying); err != nil {
		if s.state == statePrepared {
			return errors.Join(err, s.discard())
		}
		return errors.Join(err, s.takeBack(ctx))
	}
	if err := s.goForward(ctx); err != nil {
		return errors.Join(err, s.takeBack(ctx))
	}
	return nil
}

// goForward makes what is not made yet, in order. What is made already is left alone, so it can follow a crash.
func (s *Session) goForward(ctx context.Context) error {
	s.phase = phasePending
	x, err := s.executor()
	if err != nil {
		return err
	}
	defer x.stage.dir.Close()
	for i := range s.journal.Ops {
		o := &s.journal.Ops[i]
		if err := s.hook("do " + o.Slot); err != nil {
			return err
		}
		done, err := x.done(o)
		if err != nil {
			return err
		}
		if done {
			continue
		}
		if err := x.do(o); err != nil {
			return err
		}
	}
	if err := s.sync("sync original"); err != nil {
		return err
	}
	if err := s.makeExtras(ctx); err != nil {
		return err
	}
	if err := s.mark(stateDone); err != nil {
		return err
	}
	s.phase = phaseCommitted
	return nil
}

// takeBack undoes what is made, in reverse, and discards the stage.
func (s *Session) takeBack(ctx context.Context) error {
	s.phase = phasePending
	x, err := s.executor()
	if err != nil {
		return err
	}
	defer x.stage.dir.Close()
	if s.state != stateUndoing {
		if err := s.mark(stateUndoing); err != nil {
			return err
		}
	}
	if err := s.undoExtras(ctx); err != nil {
		return err
	}
	for i := len(s.journal.Ops) - 1; i >= 0; i-- {
		o := &s.journal.Ops[i]
		if err := s.hook("undo " + o.Slot); err != nil {
			return err
		}
		if err := x.revert(o); err != nil {
			return err
		}
	}
	if err := s.sync("sync undone"); err != nil {
		return err
	}
	if err := s.hook("discard"); err != nil {
		return err
	}
	return s.discard()
}

func (s *Session) executor() (*executor, error) {
	dir, err := openat(s.jdir, s.journal.stage(), unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("applier: open stage: %w", err)
	}
	x, err := newExecutor(s.tree, dir, s.journal.Ops)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return x, nil
}

// sync puts every directory that holds a changed name, and everything whose mode or attributes changed, on disk.
func (s *Session) sync(point string) error {
	if err := s.hook(point); err != nil {
		return err
	}
	touched, all := map[layer.Path]bool{}, len(s.journal.Ops) > syncEach
	for i := range s.journal.Ops {
		o := &s.journal.Ops[i]
		touched[dirOf(o.Path)] = true
		switch {
		case o.Kind != opMeta:
		case o.New.Type == layer.File || o.New.Type == layer.Dir:
			touched[o.Path] = true
		default: // no device or pipe is opened for it
			all = true
		}
	}
	for p := range touched {
		if !all && s.syncPath(p) != nil {
			all = true // gone by now, or not to be opened
		}
	}
	if !all {
		return nil
	}
	if err := unix.Syncfs(int(s.tree.dir.Fd())); err != nil {
		return fmt.Errorf("applier: sync %q: %w", s.tree.dir.Name(), err)
	}
	return nil
}

func (s *Session) syncPath(p layer.Path) error {
	f, err := s.tree.open(p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
