package events

import (
	"errors"
	"fmt"
)

// Errors that callers tell apart with errors.Is.
var (
	// ErrStorage is a server that has less room than the streams need.
	ErrStorage = errors.New("not enough storage")
	// ErrNotFound: nothing is stored under that id.
	ErrNotFound = errors.New("not found")
	// ErrSequence: another event of the plan was stored since the caller looked; nothing was written.
	ErrSequence = errors.New("not the last sequence of the plan")
	// ErrFenced: the writer's epoch is over (a higher claim, or a final event). It must stop and change nothing.
	ErrFenced = errors.New("fenced")
	// ErrFinal: the plan has ended; final is final.
	ErrFinal = errors.New("plan is final")
	// ErrTransition: the fact does not fit the plan's state. See TransitionError.
	ErrTransition = errors.New("transition not allowed")
	// ErrCancelRequested: the fact is refused because a cancel came first; the holder has to append cancelled.
	ErrCancelRequested = errors.New("cancel was requested")
	// ErrUnknown: the write was sent and no answer came; it may or may not be stored.
	ErrUnknown = errors.New("outcome unknown")
	// ErrTooLarge: the message is over a limit. See SizeError.
	ErrTooLarge = errors.New("too large")
	// ErrQueued: a command of that verb for that plan is queued or running already.
	ErrQueued = errors.New("already queued")
	// ErrNoPool: nobody has made a queue for that pool.
	ErrNoPool = errors.New("no such pool")
	// ErrNotDrained: the pool still has commands.
	ErrNotDrained = errors.New("pool still has commands")
	// ErrMalformed: the message is not one of ours, or of a version this program does not know.
	ErrMalformed = errors.New("malformed message")
)

// TransitionError says which event did not fit which state, and why.
type TransitionError struct {
	State string // state of the plan; "" when it has no event yet
	Type  string // type of the event that was refused
	Why   string
}

func (e *TransitionError) Error() string {
	state := e.State
	if state == "" {
		state = "unknown"
	}
	return fmt.Sprintf("plan is %s, event %q refused: %s", state, e.Type, e.Why)
}

// Is makes errors.Is(err, ErrTransition) true.
func (e *TransitionError) Is(target error) bool { return target == ErrTransition }

// SizeError says how large a message was and how large it may be, in bytes.
type SizeError struct {
	What      string
	Size, Max int
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("%s is %d bytes, at most %d are allowed", e.What, e.Size, e.Max)
}

// Is makes errors.Is(err, ErrTooLarge) true.
func (e *SizeError) Is(target error) bool { return target == ErrTooLarge }
