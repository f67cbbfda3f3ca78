package events

import (
	"context"
	"fmt"
)

// firstReader is a Log that can read a plan's accepted event without the others.
type firstReader interface {
	accepted(ctx context.Context, planID string) (Record, error)
}

// Accepted returns the event that holds a plan's body, or ErrNotFound.
func Accepted(ctx context.Context, log Log, planID string) (Record, error) {
	if f, ok := log.(firstReader); ok {
		return f.accepted(ctx, planID)
	}
	records, err := log.Events(ctx, planID)
	if err != nil {
		return Record{}, err
	}
	return records[0], nil
}

func (l *JetStreamLog) accepted(ctx context.Context, planID string) (Record, error) {
	m, err := l.stream.last(ctx, l.subjects.Event(NounPlan, planID, TypeAccepted))
	if err != nil {
		return Record{}, fmt.Errorf("events: read plan %q: %w", planID, err)
	}
	ev, err := DecodeEvent(m.Data)
	return Record{Event: ev, Seq: m.Sequence}, err
}

// PlanID is the plan whose events the writer appends.
func (w *Writer) PlanID() string { return w.planID }
