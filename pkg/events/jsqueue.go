package events

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// QueueOptions are settings of the consumers of a queue. Zero values mean the defaults.
type QueueOptions struct {
	// AckWait is DefaultAckWait unless a test shortens it.
	AckWait time.Duration
	// Replicas of the consumers' state; 0 follows the stream.
	Replicas int
}

// JetStreamQueue is the Queue in the commands stream. It is a PoolQueues too.
type JetStreamQueue struct {
	js       jetstream.JetStream
	subjects Subjects
	opts     QueueOptions
	stream   streamHandle
	puller   puller
}

// NewQueue returns the work queue of a fleet whose streams were made by Declare.
func NewQueue(js jetstream.JetStream, s Subjects, o QueueOptions) *JetStreamQueue {
	if o.AckWait == 0 {
		o.AckWait = DefaultAckWait
	}
	return &JetStreamQueue{
		js: js, subjects: s, opts: o,
		stream: streamHandle{js: js, name: s.CommandsStream()},
		puller: puller{js: js, stream: s.CommandsStream(), dead: NewDeadLetters(js, s)},
	}
}

// Publish implements Queue.
func (q *JetStreamQueue) Publish(ctx context.Context, c Command) error {
	data, err := c.encode(payloadLimit(q.js.Conn()))
	if err != nil {
		return fmt.Errorf("events: publish command %q for plan %q: %w", c.Verb, c.PlanID, err)
	}
	msg := nats.NewMsg(q.subjects.Command(c.Pool, c.Verb, c.PlanID))
	msg.Data = data
	msg.Header.Set(HeaderType, c.Type)
	msg.Header.Set(HeaderPlanID, c.PlanID)
	msg.Header.Set(HeaderEpoch, strconv.FormatUint(c.Epoch, 10))
	setTrace(msg.Header, c.TraceParent)
	// The id is new at each call: a plan's second command within the window of deduplication must not be swallowed.
	_, err = publish(ctx, q.js, msg, jetstream.WithMsgID(NewID()))
	if isCode(err, codeMaxPerSubject) {
		err = ErrQueued
	}
	if err != nil {
		return fmt.Errorf("events: publish command %q for plan %q: %w", c.Verb, c.PlanID, err)
	}
	return nil
}

// Pull implements Queue.
func (q *JetStreamQueue) Pull(ctx context.Context, p Pull) ([]Delivery, error) {
	if err := ValidPool(p.Pool); err != nil {
		return nil, err
	}
	messages, err := q.puller.pull(ctx, p.Pool, p.Max, p.Wait,
		jetstream.FetchPriorityGroup(priorityGroup), jetstream.FetchPrioritized(uint8(min(max(p.Priority, 0), 9))))
	if err != nil {
		return nil, err
	}
	deliveries := make([]Delivery, len(messages))
	for i, m := range messages {
		deliveries[i] = &delivery{settler{nc: q.js.Conn(), msg: m, dead: q.puller.dead}}
	}
	return deliveries, nil
}

// Remove implements Queue.
func (q *JetStreamQueue) Remove(ctx context.Context, c Command) error {
	s, err := q.stream.get(ctx)
	if err != nil {
		return err
	}
	m, err := q.stream.last(ctx, q.subjects.Command(c.Pool, c.Verb, c.PlanID))
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err == nil {
		err = s.DeleteMsg(ctx, m.Sequence)
	}
	if err != nil && !errors.Is(notFound(err), ErrNotFound) && !errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
		return fmt.Errorf("events: remove command %q for plan %q: %w", c.Verb, c.PlanID, err)
	}
	return nil
}

// EnsurePool implements Queue.
func (q *JetStreamQueue) EnsurePool(ctx context.Context, pool string) error {
	if err := ValidPool(pool); err != nil {
		return err
	}
	filter := q.subjects.Command(pool, "*", "*")
	return declareConsumer(ctx, q.js, q.subjects.CommandsStream(), pool, func(c *jetstream.ConsumerConfig) {
		commonConsumer(c, q.opts)
		c.FilterSubject = filter
		c.PriorityPolicy = jetstream.PriorityPolicyPrioritized // workers with a warm sandbox are served first
		c.PriorityGroups = []string{priorityGroup}
	})
}

// HasPool implements Queue.
func (q *JetStreamQueue) HasPool(ctx context.Context, pool string) (bool, error) {
	_, err := q.info(ctx, pool)
	if errors.Is(err, ErrNoPool) {
		return false, nil
	}
	return err == nil, err
}

// Depth implements PoolQueues.
func (q *JetStreamQueue) Depth(ctx context.Context, pool string) (Depth, error) {
	info, err := q.info(ctx, pool)
	if err != nil {
		return Depth{}, err
	}
	return Depth{Queued: int(info.NumPending), Held: info.NumAckPending, Waiting: info.NumWaiting}, nil
}

// RemovePool implements PoolQueues. A command published at this very moment stays in the stream and is
// delivered when the queue is made again.
func (q *JetStreamQueue) RemovePool(ctx context.Context, pool string) error {
	err := q.drained(ctx, pool)
	if errors.Is(err, ErrNoPool) {
		return nil
	}
	if err == nil {
		err = q.js.DeleteConsumer(ctx, q.subjects.CommandsStream(), pool)
	}
	q.puller.forget(pool)
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("events: remove pool %q: %w", pool, err)
	}
	return nil
}

// drained is ErrNotDrained while the pool has commands. The consumer's counts lag behind a publish, so the stream is asked too.
func (q *JetStreamQueue) drained(ctx context.Context, pool string) error {
	info, err := q.info(ctx, pool)
	if err != nil {
		return err
	}
	if info.NumPending > 0 || info.NumAckPending > 0 {
		return ErrNotDrained
	}
	last, err := q.stream.last(ctx, q.subjects.Command(pool, "*", "*"))
	switch {
	case errors.Is(err, ErrNotFound):
		return nil
	case err == nil && last.Sequence > info.Delivered.Stream:
		return ErrNotDrained
	}
	return err
}

// Has implements PoolQueues.
func (q *JetStreamQueue) Has(ctx context.Context, c Command) (bool, error) {
	_, err := q.stream.last(ctx, q.subjects.Command(c.Pool, c.Verb, c.PlanID))
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

func (q *JetStreamQueue) info(ctx context.Context, pool string) (*jetstream.ConsumerInfo, error) {
	if err := ValidPool(pool); err != nil {
		return nil, err
	}
	c, err := q.js.Consumer(ctx, q.subjects.CommandsStream(), pool)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		err = ErrNoPool
	}
	if err != nil {
		return nil, fmt.Errorf("events: look up pool %q: %w", pool, err)
	}
	return c.CachedInfo(), nil
}

// delivery is a Delivery of JetStream.
type delivery struct{ settler }

// Command implements Delivery.
func (d *delivery) Command() (Command, error) {
	c, err := DecodeCommand(d.msg.Data())
	c.TraceParent = d.msg.Headers().Get(HeaderTraceParent)
	return c, err
}

// Redelivered implements Delivery.
func (d *delivery) Redelivered() int { return d.redelivered() }
