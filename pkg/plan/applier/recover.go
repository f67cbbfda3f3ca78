package applier

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
)

// Direction is where a recovery should go.
type Direction int

const (
	// Forward completes the apply when every remaining operation finds what it was planned on, else goes Back.
	Forward Direction = iota
	// Back undoes the apply. Choose it for a plan that may not be applied any more.
	Back
)

// Outcome is where a recovery went.
type Outcome string

// The outcomes of Recover.
const (
	Applied Outcome = "applied" // exactly after: record it, then Finish
	Undone  Outcome = "undone"  // exactly before: the session may Check again
)

// Pending is an apply that a crash interrupted.
type Pending struct {
	Plan  string
	Epoch uint64
	// Done says that every operation was made, and only Finish is missing.
	Done bool
}

// Pending returns the interrupted apply that Recover must settle before anything else, false for none.
func (s *Session) Pending() (Pending, bool) {
	if s.phase != phasePending {
		return Pending{}, false
	}
	return Pending{Plan: s.journal.Plan, Epoch: s.journal.Epoch, Done: s.state == stateDone}, true
}

// Recover settles an interrupted apply. One that was complete stays so, whatever the direction; an undo that was begun is
// always completed. What the original gained since the
// crash is respected like any other change: when it is in the way of both directions, the error is a *Blocked, nothing
// is changed and the journal stays.
func (s *Session) Recover(ctx context.Context, d Direction) (Outcome, error) {
	if s.phase != phasePending {
		return "", fmt.Errorf("applier: recover: %w", ErrOrder)
	}
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("applier: recover: %w", err)
	}
	ctx = context.WithoutCancel(ctx)
	if s.state == stateDone {
		s.phase = phaseCommitted
		return Applied, nil
	}
	var blocked Blocked
	if s.state == stateApplying && d == Forward {
		cs, err := s.outlook(ctx, true)
		if err != nil {
			return "", err
		}
		if len(cs) == 0 {
			err := s.goForward(ctx)
			if err == nil {
				return Applied, nil
			}
			var conflict *LateConflict
			if !errors.As(err, &conflict) {
				return "", err
			}
			cs = []Conflict{conflict.Conflict}
		}
		blocked.Forward = cs
	}
	cs, err := s.outlook(ctx, false)
	if err != nil {
		return "", err
	}
	if len(cs) > 0 {
		blocked.Back = cs
		return "", &blocked
	}
	if err := s.takeBack(ctx); err != nil {
		return "", err
	}
	return Undone, nil
}

// outlook asks every operation what is in its way in one direction, and changes nothing.
func (s *Session) outlook(ctx context.Context, forward bool) ([]Conflict, error) {
	look := (*executor).back
	if forward {
		look = (*executor).forward
	}
	x, err := s.executor()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("applier: recover: stage is gone: %w", ErrJournal)
	}
	if err != nil {
		return nil, err
	}
	defer x.stage.dir.Close()
	var conflicts []Conflict
	for i := range s.journal.Ops {
		o := &s.journal.Ops[i]
		l, err := look(x, o)
		if err != nil {
			return nil, err
		}
		if l.blocked != "" {
			conflicts = append(conflicts, o.conflict(l.blocked, nil))
		}
	}
	more, err := s.extrasOutlook(ctx, forward)
	return append(conflicts, more...), err
}
