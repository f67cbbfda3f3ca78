package events

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/internal/fault"
)

// JetStreamLog is the Log in the events stream.
type JetStreamLog struct {
	js       jetstream.JetStream
	subjects Subjects
	stream   streamHandle
}

// NewLog returns the log of a fleet whose streams were made by Declare.
func NewLog(js jetstream.JetStream, s Subjects) *JetStreamLog {
	return &JetStreamLog{js: js, subjects: s, stream: streamHandle{js: js, name: s.EventsStream()}}
}

// Append implements Log.
func (l *JetStreamLog) Append(ctx context.Context, ev Event, expect uint64) (uint64, error) {
	msg, err := l.message(ev)
	if err != nil {
		return 0, err
	}
	filter := l.subjects.PlanEvents(ev.Subject)
	fence := jetstream.WithExpectLastSequenceForSubject(expect, filter)
	if fault.Off("events.fence") {
		fence = jetstream.WithMsgID(ev.ID)
	}
	ack, err := publish(ctx, l.js, msg, jetstream.WithMsgID(ev.ID), fence)
	if err == nil {
		return ack.Sequence, nil
	}
	if !isSequence(err) {
		return 0, fmt.Errorf("events: append %s to plan %q: %w", ev.Kind(), ev.Subject, err)
	}
	// The server looks at the sequence before it looks for duplicates, so a repeated try whose first answer was
	// lost ends here, maybe with other events stored after it.
	seq, found := l.find(ctx, ev, expect)
	if found == nil {
		return seq, nil
	}
	if errors.Is(found, ErrNotFound) {
		found = ErrSequence
	} else {
		found = fmt.Errorf("%w: %w", ErrUnknown, found)
	}
	return 0, fmt.Errorf("events: append %s to plan %q after sequence %d: %w", ev.Kind(), ev.Subject, expect, found)
}

// find returns the sequence of an event of the plan stored after a sequence, or ErrNotFound.
func (l *JetStreamLog) find(ctx context.Context, ev Event, after uint64) (uint64, error) {
	filter := l.subjects.PlanEvents(ev.Subject)
	for {
		m, err := l.stream.next(ctx, after+1, filter)
		if err != nil {
			return 0, err
		}
		if m.Header.Get(HeaderMsgID) == ev.ID {
			return m.Sequence, nil
		}
		after = m.Sequence
	}
}

// Last implements Log.
func (l *JetStreamLog) Last(ctx context.Context, planID string) (Record, error) {
	m, err := l.stream.last(ctx, l.subjects.PlanEvents(planID))
	if err != nil {
		return Record{}, fmt.Errorf("events: read last event of plan %q: %w", planID, err)
	}
	ev, err := DecodeEvent(m.Data)
	return Record{Event: ev, Seq: m.Sequence}, err
}

// Events implements Log.
func (l *JetStreamLog) Events(ctx context.Context, planID string) ([]Record, error) {
	last, err := l.Last(ctx, planID)
	if err != nil {
		return nil, err
	}
	var records []Record
	for seq := uint64(1); seq < last.Seq; seq = records[len(records)-1].Seq + 1 {
		m, err := l.stream.next(ctx, seq, l.subjects.PlanEvents(planID))
		if err != nil {
			return nil, fmt.Errorf("events: read events of plan %q: %w", planID, err)
		}
		if m.Sequence >= last.Seq {
			break
		}
		ev, err := DecodeEvent(m.Data)
		if err != nil {
			return nil, err
		}
		records = append(records, Record{Event: ev, Seq: m.Sequence})
	}
	return append(records, last), nil
}

// Publish implements Log.
func (l *JetStreamLog) Publish(ctx context.Context, ev Event) error {
	if err := checkFree(ev); err != nil {
		return err
	}
	msg, err := l.message(ev)
	if err != nil {
		return err
	}
	if _, err := publish(ctx, l.js, msg, jetstream.WithMsgID(ev.ID)); err != nil {
		return fmt.Errorf("events: publish %s of %q: %w", ev.Type, ev.Subject, err)
	}
	return nil
}

// checkFree refuses what must go through Append, and subjects that aren't one token.
func checkFree(ev Event) error {
	if ev.Noun() == NounPlan {
		return fmt.Errorf("events: publish %s of %q: plan events need Append", ev.Type, ev.Subject)
	}
	if err := ValidToken(ev.Subject); err != nil {
		return err
	}
	return ValidToken(ev.Kind())
}

func (l *JetStreamLog) message(ev Event) (*nats.Msg, error) {
	data, err := EncodeEvent(ev, payloadLimit(l.js.Conn()))
	if err != nil {
		return nil, err
	}
	msg := nats.NewMsg(l.subjects.Event(ev.Noun(), ev.Subject, ev.Kind()))
	msg.Data = data
	msg.Header.Set(HeaderType, ev.Type)
	if ev.Noun() == NounPlan {
		msg.Header.Set(HeaderPlanID, ev.Subject)
	}
	if ev.Data.Epoch != 0 {
		msg.Header.Set(HeaderEpoch, strconv.FormatUint(ev.Data.Epoch, 10))
	}
	setTrace(msg.Header, ev.TraceParent)
	return msg, nil
}

// Follow implements Log. What doesn't decode is none of our events and is passed over.
func (l *JetStreamLog) Follow(ctx context.Context, f Filter) (<-chan Record, error) {
	s, err := l.stream.get(ctx)
	if err != nil {
		return nil, err
	}
	info, err := s.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("events: follow %q: %w", f.subject(l.subjects), err)
	}
	out := make(chan Record)
	run := &follower{stream: s, filter: f.subject(l.subjects), next: max(f.From, 1), oldest: info.State.LastSeq}
	run.message = func(m jetstream.Msg, seq uint64) bool {
		ev, err := DecodeEvent(m.Data())
		return err != nil || send(ctx, out, Record{Event: ev, Seq: seq})
	}
	if f.Mark {
		run.mark = func() bool { return send(ctx, out, Record{}) }
	}
	go func() {
		defer close(out)
		run.loop(ctx)
	}()
	return out, nil
}
