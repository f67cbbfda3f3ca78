package session

import (
	"errors"
	"fmt"
	"time"
)

const (
	// DefaultIdle is how long a session may go unused: long enough for a person to think, short enough that a forgotten
	// sandbox does not stay for the whole of DefaultTimeout.
	DefaultIdle = 30 * time.Minute
	// DefaultTimeout is how long a session may last however much it is used: half a working day.
	DefaultTimeout = 4 * time.Hour
	// MaxTimeout bounds what may be asked for.
	MaxTimeout = 24 * time.Hour
)

// ErrTimeout: a timeout that no session can have.
var ErrTimeout = errors.New("session: timeout")

// Timeouts are how long a session may go unused, and how long it may last.
type Timeouts struct{ Idle, Absolute time.Duration }

// ParseTimeouts reads durations as Go writes them; "" is the default. Errors wrap ErrTimeout.
func ParseTimeouts(idle, absolute string) (Timeouts, error) {
	t := Timeouts{Idle: DefaultIdle, Absolute: DefaultTimeout}
	for _, f := range []struct {
		name, text string
		into       *time.Duration
	}{{"idle_timeout", idle, &t.Idle}, {"timeout", absolute, &t.Absolute}} {
		if f.text == "" {
			continue
		}
		d, err := time.ParseDuration(f.text)
		if err != nil || d <= 0 || d > MaxTimeout {
			return t, fmt.Errorf("%w: %s %q: use a duration above 0 and up to %s, as 30m", ErrTimeout, f.name, f.text, MaxTimeout)
		}
		*f.into = d
	}
	return t, nil
}

// Expires is when a session of that start and last use ends: use extends it, up to the absolute timeout only.
func (t Timeouts) Expires(started, used time.Time) time.Time {
	end, idle := started.Add(t.Absolute), used.Add(t.Idle)
	if idle.Before(end) {
		return idle
	}
	return end
}
