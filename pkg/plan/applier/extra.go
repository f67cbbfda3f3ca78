package applier

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// ErrMoved is the error of an Extra that found something else than it was made for, and changed nothing.
var ErrMoved = errors.New("changed by somebody else")

// ErrNoExtra: a journal names an extra change, and the session was opened without the way to make one.
var ErrNoExtra = errors.New("no way to make an extra change")

// Extra is one change outside the root's files that belongs to an apply, such as the branch of a repository. Extras are made
// in order once every file is in place and on disk, and taken back in reverse before any file is. Every method may be called
// again after a crash, in another process, on a value made anew from the journal; each is durable when it returns.
type Extra interface {
	// Look says where the change stands, and changes nothing.
	Look(ctx context.Context) (Standing, error)
	// Do makes the change. With ErrMoved nothing is made.
	Do(ctx context.Context) error
	// Undo takes the change back. With ErrMoved it is as it was.
	Undo(ctx context.Context) error
	// Forget removes what the extra keeps aside, when the apply is over in either direction. Nothing there is success.
	Forget(ctx context.Context) error
}

// Standing is where an Extra's change stands.
type Standing struct {
	// Made: the change is there.
	Made bool
	// Moved: somebody else changed it since. If it is made, it cannot be taken back; else it cannot be made.
	Moved bool
}

// ExtraSpec is what a journal stores of an Extra: fields may be added, none renamed.
type ExtraSpec struct {
	// Name says what is changed; a conflict has it for a path.
	Name string          `json:"name"`
	Kind string          `json:"kind"`
	Data json.RawMessage `json:"data"`
}

// ExtraFunc makes an Extra of what a journal stores.
type ExtraFunc func(ExtraSpec) (Extra, error)

// extras makes all extra changes of the journal.
func (s *Session) extras() ([]Extra, error) {
	var all []Extra
	for _, spec := range s.journal.Extras {
		if s.extra == nil {
			return nil, fmt.Errorf("applier: change %q: %w", spec.Name, ErrNoExtra)
		}
		x, err := s.extra(spec)
		if err != nil {
			return nil, fmt.Errorf("applier: change %q: %w", spec.Name, err)
		}
		all = append(all, x)
	}
	return all, nil
}

// makeExtras makes those that are not made yet, in order.
func (s *Session) makeExtras(ctx context.Context) error {
	all, err := s.extras()
	if err != nil {
		return err
	}
	for i, x := range all {
		name := s.journal.Extras[i].Name
		if err := s.hook("do extra " + name); err != nil {
			return err
		}
		at, err := x.Look(ctx)
		if err == nil && !at.Made {
			if at.Moved {
				err = ErrMoved
			} else {
				err = x.Do(ctx)
			}
		}
		if errors.Is(err, ErrMoved) {
			return &LateConflict{Conflict: s.movedExtra(i)}
		}
		if err != nil {
			return fmt.Errorf("applier: change %q: %w", name, err)
		}
	}
	return nil
}

// undoExtras takes back those that are made, in reverse.
func (s *Session) undoExtras(ctx context.Context) error {
	all, err := s.extras()
	if err != nil {
		return err
	}
	for i := len(all) - 1; i >= 0; i-- {
		name := s.journal.Extras[i].Name
		if err := s.hook("undo extra " + name); err != nil {
			return err
		}
		at, err := all[i].Look(ctx)
		if err == nil && at.Made {
			if at.Moved {
				err = ErrMoved
			} else {
				err = all[i].Undo(ctx)
			}
		}
		if errors.Is(err, ErrMoved) {
			return &Blocked{Back: []Conflict{s.movedExtra(i)}}
		}
		if err != nil {
			return fmt.Errorf("applier: take back %q: %w", name, err)
		}
	}
	return nil
}

// forgetExtras removes what extras keep aside.
func (s *Session) forgetExtras() error {
	all, err := s.extras()
	for _, x := range all {
		err = errors.Join(err, x.Forget(context.Background())) // tidying up is not cut short
	}
	return err
}

// extrasOutlook lists the extras that keep a recovery from going forward, or back.
func (s *Session) extrasOutlook(ctx context.Context, forward bool) ([]Conflict, error) {
	all, err := s.extras()
	if err != nil {
		return nil, err
	}
	var conflicts []Conflict
	for i, x := range all {
		at, err := x.Look(ctx)
		if err != nil {
			return nil, fmt.Errorf("applier: look at %q: %w", s.journal.Extras[i].Name, err)
		}
		if at.Moved && at.Made != forward {
			conflicts = append(conflicts, s.movedExtra(i))
		}
	}
	return conflicts, nil
}

func (s *Session) movedExtra(i int) Conflict {
	return Conflict{Path: layer.Path(s.journal.Extras[i].Name), Kind: KindMoved}
}
