package events

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// JetStreamOutput is the Output in the output stream.
type JetStreamOutput struct {
	js       jetstream.JetStream
	subjects Subjects
	stream   streamHandle
}

// NewOutput returns the output of a fleet whose streams were made by Declare.
func NewOutput(js jetstream.JetStream, s Subjects) *JetStreamOutput {
	return &JetStreamOutput{js: js, subjects: s, stream: streamHandle{js: js, name: s.OutputStream()}}
}

// Publish implements Output.
func (o *JetStreamOutput) Publish(ctx context.Context, c Chunk) error {
	if err := c.check(); err != nil {
		return err
	}
	msg := nats.NewMsg(o.subjects.Output(c.PlanID, c.Step))
	msg.Data = c.Data
	msg.Header.Set(HeaderEpoch, strconv.FormatUint(c.Epoch, 10))
	msg.Header.Set(HeaderTry, strconv.Itoa(c.Try))
	msg.Header.Set(HeaderOffset, strconv.FormatInt(c.Offset, 10))
	if c.Dropped > 0 {
		msg.Header.Set(HeaderDropped, strconv.FormatInt(c.Dropped, 10))
	}
	if _, err := publish(ctx, o.js, msg, jetstream.WithMsgID(c.key())); err != nil {
		return fmt.Errorf("events: store output of plan %q: %w", c.PlanID, err)
	}
	return nil
}

// check refuses what is no chunk of ours.
func (c Chunk) check() error {
	if _, err := ParseID(c.PlanID); err != nil {
		return err
	}
	if len(c.Data) > ChunkSize {
		return fmt.Errorf("events: store output of plan %q: %w", c.PlanID, &SizeError{What: "chunk", Size: len(c.Data), Max: ChunkSize})
	}
	return nil
}

// key is the same for the same chunk and no other.
func (c Chunk) key() string {
	return fmt.Sprintf("%s.%d.%d.%d.%d.%d", c.PlanID, c.Step, c.Epoch, c.Try, c.Offset, c.Dropped)
}

// Read implements Output.
func (o *JetStreamOutput) Read(ctx context.Context, q OutputQuery) iter.Seq2[Chunk, error] {
	return func(yield func(Chunk, error) bool) {
		read := o.stored
		if q.Follow {
			read = o.follow
		}
		if _, err := ParseID(q.PlanID); err != nil {
			yield(Chunk{}, err)
			return
		}
		if err := read(ctx, q, yield); err != nil {
			yield(Chunk{}, fmt.Errorf("events: read output of plan %q: %w", q.PlanID, err))
		}
	}
}

// stored yields what is stored now.
func (o *JetStreamOutput) stored(ctx context.Context, q OutputQuery, yield func(Chunk, error) bool) error {
	filter := q.subject(o.subjects)
	last, err := o.stream.last(ctx, filter)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	for seq := max(q.From, 1); seq <= last.Sequence; {
		m, err := o.stream.next(ctx, seq, filter)
		if errors.Is(err, ErrNotFound) {
			return nil // it grew too old meanwhile
		}
		if err != nil {
			return err
		}
		if !yield(o.decode(m.Subject, m.Header, m.Data, m.Sequence), nil) {
			return nil
		}
		seq = m.Sequence + 1
	}
	return nil
}

func (o *JetStreamOutput) follow(ctx context.Context, q OutputQuery, yield func(Chunk, error) bool) error {
	s, err := o.stream.get(ctx)
	if err != nil {
		return err
	}
	run := &follower{stream: s, filter: q.subject(o.subjects), next: max(q.From, 1)}
	run.message = func(m jetstream.Msg, seq uint64) bool {
		return yield(o.decode(m.Subject(), m.Headers(), m.Data(), seq), nil)
	}
	run.loop(ctx)
	return nil
}

// decode reads a chunk. Numbers that are missing, as from a foreign publisher, are 0.
func (o *JetStreamOutput) decode(subject string, h nats.Header, data []byte, seq uint64) Chunk {
	c := Chunk{Data: data, Seq: seq}
	if tokens := o.subjects.parse("out", subject, 2); tokens != nil {
		c.PlanID = tokens[0]
		c.Step, _ = strconv.Atoi(tokens[1])
	}
	c.Epoch, _ = strconv.ParseUint(h.Get(HeaderEpoch), 10, 64)
	c.Try, _ = strconv.Atoi(h.Get(HeaderTry))
	c.Offset, _ = strconv.ParseInt(h.Get(HeaderOffset), 10, 64)
	c.Dropped, _ = strconv.ParseInt(h.Get(HeaderDropped), 10, 64)
	return c
}
