package events

import "context"

// Log is the event log: the truth about every plan. Safe for concurrent use.
type Log interface {
	// Append stores a plan's event if the last event of that plan has the sequence expect (0: there is none yet)
	// and returns its own sequence. An event that does not fit into a message is stored smaller (EncodeEvent).
	// It retries a lost answer until ctx ends, or 10 s when ctx has no deadline; the event's id makes that once only.
	// Errors: ErrSequence (not stored, nothing changed), ErrTooLarge, ErrUnknown (sent, no answer: may be stored).
	Append(ctx context.Context, ev Event, expect uint64) (uint64, error)
	// Last returns the last event of a plan as the leader has it, or ErrNotFound.
	Last(ctx context.Context, planID string) (Record, error)
	// Events returns all events of a plan in order, or ErrNotFound.
	Events(ctx context.Context, planID string) ([]Record, error)
	// Follow delivers what the filter selects, in order, each once: first what is stored, then what is stored
	// later. The channel closes when ctx ends. A reader that falls behind slows only itself.
	Follow(ctx context.Context, f Filter) (<-chan Record, error)
	// Publish stores an event of another noun (sandbox, session, image, worker, pool) without a fence.
	Publish(ctx context.Context, ev Event) error
}

// Filter selects events to follow.
type Filter struct {
	// Subject is a NATS subject filter, as fleet.evt.plan.*.applied. If empty, Plan, then Noun, then everything counts.
	Subject string
	Plan    string
	Noun    string
	// From is the sequence to begin with; 0 means the first.
	From uint64
	// Mark asks for one record with sequence 0 and no event after all that was stored when Follow was called.
	Mark bool
}

// subject returns the subject filter that f stands for.
func (f Filter) subject(s Subjects) string {
	switch {
	case f.Subject != "":
		return f.Subject
	case f.Plan != "":
		return s.PlanEvents(f.Plan)
	}
	return s.Events(f.Noun)
}
