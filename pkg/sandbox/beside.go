package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/layer"
)

// resumeLimit bounds the wait for an init to let go on what it stopped.
const resumeLimit = 10 * time.Second

// Start runs a command that goes on by itself until the next Freeze, Reset or Close; see isolate.Init.Start.
func (s *Sandbox) Start(ctx context.Context, c isolate.Command) (isolate.Detached, error) {
	in, err := s.live()
	if err != nil {
		return isolate.Detached{}, err
	}
	return in.Start(ctx, c)
}

// Detached is how many processes of Start run.
func (s *Sandbox) Detached(ctx context.Context) (int, error) {
	in, err := s.live()
	if err != nil {
		return 0, err
	}
	return in.Detached(ctx)
}

// Copy closes a copy of what changed since the last Freeze into a layer, and returns the whole chain with it on top. What
// runs, commands and what Start started, is stopped meanwhile and then goes on, and the open layer stays open: of the sandbox
// nothing changes. The cost follows what changed since the last Freeze.
func (s *Sandbox) Copy(ctx context.Context) (layer.Chain, error) {
	chain, err := s.copy(ctx)
	if err != nil {
		return nil, fmt.Errorf("sandbox: checkpoint %q beside what runs: %w", s.spec.ID, err)
	}
	return chain, nil
}

func (s *Sandbox) copy(ctx context.Context) (chain layer.Chain, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.state.Next(Checkpointed); err != nil {
		return nil, err
	}
	view, ok := s.view.(layer.Copier)
	if !ok {
		return nil, fmt.Errorf("%s: %w", s.shown.Driver, errors.ErrUnsupported)
	}
	if err := s.init.Pause(ctx); err != nil {
		return nil, err
	}
	defer func() {
		again, cancel := context.WithTimeout(context.WithoutCancel(ctx), resumeLimit)
		defer cancel()
		err = errors.Join(err, s.init.Resume(again))
	}()
	l, changed, err := view.Copy(ctx)
	if err != nil {
		return nil, err
	}
	s.moveLocked(Checkpointed, nil)
	s.moveLocked(Active, nil)
	chain = s.view.Chain()
	if changed {
		chain = append(chain, l)
	}
	return chain, nil
}
