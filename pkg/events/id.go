package events

import (
	"errors"
	"fmt"

	"github.com/oklog/ulid/v2"
)

// ErrID is returned for a string that is no id of ours.
var ErrID = errors.New("not an upper-case ULID")

// NewID returns a new ULID in upper case. Ids made by one process sort in the order they were made.
func NewID() string { return ulid.Make().String() }

// ParseID returns s if it is a ULID in upper case, else an error that wraps ErrID.
// It is the gate before any foreign string becomes a token of a subject.
func ParseID(s string) (string, error) {
	id, err := ulid.ParseStrict(s)
	if err != nil || id.String() != s {
		return "", fmt.Errorf("events: parse id %q: %w", truncate(s, 64), ErrID)
	}
	return s, nil
}
