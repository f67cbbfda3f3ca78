package sandbox

import (
	"errors"
	"fmt"
	"slices"
)

// State is a point in a sandbox's life.
type State string

// The states of a sandbox, in the order a life usually takes.
const (
	Pending      State = "pending"
	Created      State = "created"
	Active       State = "active"
	Checkpointed State = "checkpointed"
	RolledBack   State = "rolled_back"
	Committed    State = "committed"
	Errored      State = "errored"
	CleanedUp    State = "cleaned_up"
)

// ErrTransition is wrapped by every refused move between states.
var ErrTransition = errors.New("sandbox: no such transition")

// Next returns nil if a sandbox may move from s to next, else an error that names both.
func (s State) Next(next State) error {
	if slices.Contains(s.exits(), next) {
		return nil
	}
	return fmt.Errorf("%w: %s -> %s", ErrTransition, s, next)
}

func (s State) exits() []State {
	switch s {
	case Pending:
		return []State{Created, Errored}
	case Created:
		return []State{Active, Errored, CleanedUp}
	case Active:
		return []State{Committed, Checkpointed, RolledBack, Errored}
	case Checkpointed:
		return []State{Active, Committed, CleanedUp}
	case RolledBack:
		return []State{Active, CleanedUp}
	case Committed, Errored:
		return []State{CleanedUp}
	default:
		return nil
	}
}

// Strategy is how a sandbox keeps a plan's changes apart from the original.
type Strategy string

// The strategies. A strategy by itself is not a security boundary; isolation is.
const (
	// None works in place, rolled back from the path's base when the plan fails.
	None Strategy = "none"
	// CopyOnWrite puts layers on the base image of the path, uncommitted files included.
	CopyOnWrite Strategy = "copy_on_write"
	// GitWorktree puts layers on a private clone and checkout of one commit.
	GitWorktree Strategy = "git_worktree"
)
