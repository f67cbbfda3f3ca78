package events

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// JetStreamSubmissions is the Submissions in the submissions stream.
type JetStreamSubmissions struct {
	js       jetstream.JetStream
	subjects Subjects
	puller   puller
}

// NewSubmissions returns the submissions of a fleet whose streams were made by Declare.
func NewSubmissions(js jetstream.JetStream, s Subjects) *JetStreamSubmissions {
	return &JetStreamSubmissions{
		js: js, subjects: s,
		puller: puller{js: js, stream: s.SubmissionsStream(), dead: NewDeadLetters(js, s)},
	}
}

// Publish implements Submissions.
func (q *JetStreamSubmissions) Publish(ctx context.Context, planID string, s Submission) error {
	if _, err := ParseID(planID); err != nil {
		return err
	}
	data, err := s.encode(payloadLimit(q.js.Conn()))
	if err != nil {
		return fmt.Errorf("events: submit plan %q: %w", planID, err)
	}
	msg := nats.NewMsg(q.subjects.Submit(planID))
	msg.Data = data
	msg.Header.Set(HeaderType, s.Type)
	msg.Header.Set(HeaderPlanID, planID)
	setTrace(msg.Header, s.TraceParent)
	// The id is new at each call: another body under the same plan id has to reach the scheduler, which refuses it.
	if _, err := publish(ctx, q.js, msg, jetstream.WithMsgID(NewID())); err != nil {
		return fmt.Errorf("events: submit plan %q: %w", planID, err)
	}
	return nil
}

// Pull implements Submissions.
func (q *JetStreamSubmissions) Pull(ctx context.Context, limit int, wait time.Duration) ([]SubmissionDelivery, error) {
	messages, err := q.puller.pull(ctx, submissionsConsumer, limit, wait)
	if err != nil {
		return nil, err
	}
	deliveries := make([]SubmissionDelivery, len(messages))
	for i, m := range messages {
		deliveries[i] = &submissionDelivery{settler{nc: q.js.Conn(), msg: m, dead: q.puller.dead}}
	}
	return deliveries, nil
}

// submissionDelivery is a SubmissionDelivery of JetStream.
type submissionDelivery struct{ settler }

// PlanID implements SubmissionDelivery.
func (d *submissionDelivery) PlanID() (string, error) { return lastID(d.msg.Subject()) }

// Submission implements SubmissionDelivery.
func (d *submissionDelivery) Submission() (Submission, error) {
	id, err := d.PlanID()
	if err != nil {
		return Submission{}, err
	}
	s, err := DecodeSubmission(id, d.msg.Data())
	s.TraceParent = d.msg.Headers().Get(HeaderTraceParent)
	return s, err
}

// lastID returns the id that ends a subject.
func lastID(subject string) (string, error) {
	return ParseID(subject[strings.LastIndexByte(subject, '.')+1:])
}
