// Package session is the pure core of sessions: their states, who commits in them, how long they live, and the gate
// that holds writes and commands back until the sandbox is fresh.
//
// It must not know NATS, sandboxes or layers.
package session

import (
	"errors"
	"fmt"
	"slices"
)

// State is a point in a session's life.
type State string

// The states. Lost is never written: it is an active or starting session whose worker is gone.
const (
	Starting State = "starting"
	Active   State = "active"
	Ended    State = "ended"
	Expired  State = "expired"
	Failed   State = "failed"
	Lost     State = "lost"
)

// ErrTransition is wrapped by every refused move between states.
var ErrTransition = errors.New("session: no such transition")

// Next returns nil if a session may move from s to next, else an error that names both.
func (s State) Next(next State) error {
	if slices.Contains(s.exits(), next) {
		return nil
	}
	return fmt.Errorf("%w: %s -> %s", ErrTransition, s, next)
}

// Final tells whether nothing follows.
func (s State) Final() bool { return len(s.exits()) == 0 }

func (s State) exits() []State {
	switch s {
	case Starting:
		return []State{Active, Failed, Lost}
	case Active:
		return []State{Ended, Expired, Failed, Lost}
	default:
		return nil
	}
}

// Seen is a recorded state as people see it: one that has not ended is lost when its worker is gone.
func Seen(recorded State, workerGone bool) State {
	if workerGone && recorded.Next(Lost) == nil {
		return Lost
	}
	return recorded
}
