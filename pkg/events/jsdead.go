package events

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// JetStreamDeadLetters is the DeadLetters in the dead letter stream.
type JetStreamDeadLetters struct {
	js       jetstream.JetStream
	subjects Subjects
	stream   streamHandle
}

// NewDeadLetters returns the dead letters of a fleet whose streams were made by Declare.
func NewDeadLetters(js jetstream.JetStream, s Subjects) *JetStreamDeadLetters {
	return &JetStreamDeadLetters{js: js, subjects: s, stream: streamHandle{js: js, name: s.DeadLettersStream()}}
}

// Add implements DeadLetters.
func (q *JetStreamDeadLetters) Add(ctx context.Context, d DeadLetter) error {
	msg := nats.NewMsg(q.subjects.DeadLetter(letterKind(d.Subject), NewID()))
	msg.Data = d.Body
	if limit := payloadLimit(q.js.Conn()); len(d.Body) > limit {
		// A foreign message may fill a whole payload. It must not come back for ever because its copy has headers.
		msg.Data = d.Body[:limit]
		d.Reason = fmt.Sprintf("%s (cut from %d bytes)", d.Reason, len(d.Body))
	}
	msg.Header.Set(HeaderReason, headerText(d.Reason))
	msg.Header.Set(HeaderOrigSubject, d.Subject)
	if _, err := publish(ctx, q.js, msg, jetstream.WithMsgID(NewID())); err != nil {
		return fmt.Errorf("events: set message of %q aside: %w", d.Subject, err)
	}
	return nil
}

// List implements DeadLetters.
func (q *JetStreamDeadLetters) List(ctx context.Context) ([]DeadLetter, error) {
	var letters []DeadLetter
	for seq := uint64(1); ; seq = letters[len(letters)-1].Seq + 1 {
		m, err := q.stream.next(ctx, seq, q.subjects.DeadLetter("*", "*"))
		if errors.Is(err, ErrNotFound) {
			return letters, nil
		}
		if err != nil {
			return nil, fmt.Errorf("events: list dead letters: %w", err)
		}
		letters = append(letters, DeadLetter{
			Seq: m.Sequence, Subject: m.Header.Get(HeaderOrigSubject), Reason: m.Header.Get(HeaderReason), Body: m.Data, Time: m.Time,
		})
	}
}

// Delete implements DeadLetters.
func (q *JetStreamDeadLetters) Delete(ctx context.Context, seq uint64) error {
	s, err := q.stream.get(ctx)
	if err != nil {
		return err
	}
	err = s.DeleteMsg(ctx, seq)
	if err != nil && !errors.Is(notFound(err), ErrNotFound) && !errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
		return fmt.Errorf("events: delete dead letter %d: %w", seq, err)
	}
	return nil
}

// letterKind is the second token of the subject a letter came from: cmd, submit, ...
func letterKind(subject string) string {
	parts := strings.Split(subject, ".")
	if len(parts) < 2 || ValidToken(parts[1]) != nil {
		return "other"
	}
	return parts[1]
}

// headerText makes a text fit for a header: one line, bounded.
func headerText(s string) string {
	return truncate(strings.Join(strings.Fields(s), " "), 256)
}
