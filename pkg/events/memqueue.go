package events

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// memoryQueue is a work queue in memory: messages in order, each delivered until it is settled, again after ackWait without
// a sign of life. It needs no goroutine: time is looked at when somebody pulls.
type memoryQueue struct {
	ackWait time.Duration
	dead    *MemoryDeadLetters

	mu       sync.Mutex
	messages []*memoryMessage
	waiting  map[string]int // pulls that wait, by key
	changed  chan struct{}
}

type memoryMessage struct {
	subject    string
	key        string // which pulls see it
	data       []byte
	trace      string
	deliveries int
	due        time.Time // zero: never delivered; else when it may be delivered again
}

func newMemoryQueue(ackWait time.Duration, dead *MemoryDeadLetters) *memoryQueue {
	if ackWait == 0 {
		ackWait = DefaultAckWait
	}
	return &memoryQueue{ackWait: ackWait, dead: dead, waiting: map[string]int{}, changed: make(chan struct{})}
}

// add appends a message; unique refuses one whose subject is queued.
func (q *memoryQueue) add(m *memoryMessage, unique bool) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if unique && q.find(m.subject) >= 0 {
		return ErrQueued
	}
	q.messages = append(q.messages, m)
	q.wake()
	return nil
}

func (q *memoryQueue) wake() {
	close(q.changed)
	q.changed = make(chan struct{})
}

func (q *memoryQueue) find(subject string) int {
	return slices.IndexFunc(q.messages, func(m *memoryMessage) bool { return m.subject == subject })
}

// pull waits up to wait for a message of a key.
func (q *memoryQueue) pull(key string, limit int, wait time.Duration) []memorySettler {
	q.count(key, 1)
	defer q.count(key, -1)
	end := time.Now().Add(wait)
	for {
		got, next, changed := q.take(key, limit)
		left := time.Until(end)
		if len(got) > 0 || left <= 0 {
			return got
		}
		if !next.IsZero() {
			left = min(left, time.Until(next))
		}
		timer := time.NewTimer(left)
		select {
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (q *memoryQueue) count(key string, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting[key] += n
}

// take returns what is ready, else when the next message becomes ready and a channel that closes when something changed.
func (q *memoryQueue) take(key string, limit int) (got []memorySettler, next time.Time, changed <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	for _, m := range q.messages {
		if m.key != key || len(got) == limit {
			continue
		}
		if m.due.After(now) {
			if next.IsZero() || m.due.Before(next) {
				next = m.due
			}
			continue
		}
		m.deliveries++
		m.due = now.Add(q.ackWait)
		got = append(got, memorySettler{queue: q, msg: m, before: m.deliveries - 1})
	}
	return got, next, q.changed
}

// depth counts the messages of a key.
func (q *memoryQueue) depth(key string) Depth {
	q.mu.Lock()
	defer q.mu.Unlock()
	d := Depth{Waiting: q.waiting[key]}
	for _, m := range q.messages {
		switch {
		case m.key != key:
		case m.deliveries == 0:
			d.Queued++
		default:
			d.Held++
		}
	}
	return d
}

func (q *memoryQueue) remove(subject string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := q.find(subject); i >= 0 {
		q.messages = slices.Delete(q.messages, i, i+1)
	}
}

// memorySettler is the Settler of a memoryQueue.
type memorySettler struct {
	queue  *memoryQueue
	msg    *memoryMessage
	before int
}

func (s memorySettler) InProgress(ctx context.Context) error {
	return s.delay(ctx, s.queue.ackWait)
}

func (s memorySettler) Nak(ctx context.Context, delay time.Duration) error {
	return s.delay(ctx, delay)
}

func (s memorySettler) delay(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	s.msg.due = time.Now().Add(d)
	s.queue.wake()
	return nil
}

func (s memorySettler) Ack(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	s.queue.messages = slices.DeleteFunc(s.queue.messages, func(m *memoryMessage) bool { return m == s.msg })
	return nil
}

func (s memorySettler) Term(ctx context.Context, reason string) error {
	if err := s.queue.dead.Add(ctx, DeadLetter{Subject: s.msg.subject, Reason: reason, Body: s.msg.data}); err != nil {
		return err
	}
	return s.Ack(ctx)
}

// MemoryQueue is a Queue and PoolQueues in the memory of one process. Priorities of pulls are ignored.
type MemoryQueue struct {
	subjects Subjects
	queue    *memoryQueue

	mu    sync.Mutex
	pools map[string]bool
}

// NewMemoryQueue returns an empty queue that sets aside to dead.
func NewMemoryQueue(s Subjects, o QueueOptions, dead *MemoryDeadLetters) *MemoryQueue {
	return &MemoryQueue{subjects: s, queue: newMemoryQueue(o.AckWait, dead), pools: map[string]bool{}}
}

// Publish implements Queue.
func (q *MemoryQueue) Publish(ctx context.Context, c Command) error {
	data, err := c.encode(memoryLimit)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = q.queue.add(&memoryMessage{subject: q.subjects.Command(c.Pool, c.Verb, c.PlanID), key: c.Pool, data: data, trace: c.TraceParent}, true)
	}
	if err != nil {
		return fmt.Errorf("events: publish command %q for plan %q: %w", c.Verb, c.PlanID, err)
	}
	return nil
}

// Pull implements Queue.
func (q *MemoryQueue) Pull(ctx context.Context, p Pull) ([]Delivery, error) {
	if has, err := q.HasPool(ctx, p.Pool); err != nil || !has {
		return nil, fmt.Errorf("events: pull from %q: %w", p.Pool, ErrNoPool)
	}
	var deliveries []Delivery
	for _, s := range q.queue.pull(p.Pool, p.Max, p.Wait) {
		deliveries = append(deliveries, memoryDelivery{s})
	}
	return deliveries, nil
}

// Remove implements Queue.
func (q *MemoryQueue) Remove(_ context.Context, c Command) error {
	q.queue.remove(q.subjects.Command(c.Pool, c.Verb, c.PlanID))
	return nil
}

// EnsurePool implements Queue.
func (q *MemoryQueue) EnsurePool(_ context.Context, pool string) error {
	if err := ValidPool(pool); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pools[pool] = true
	return nil
}

// HasPool implements Queue.
func (q *MemoryQueue) HasPool(_ context.Context, pool string) (bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pools[pool], ValidPool(pool)
}

// Depth implements PoolQueues.
func (q *MemoryQueue) Depth(ctx context.Context, pool string) (Depth, error) {
	if has, err := q.HasPool(ctx, pool); err != nil || !has {
		return Depth{}, fmt.Errorf("events: look up pool %q: %w", pool, ErrNoPool)
	}
	return q.queue.depth(pool), nil
}

// RemovePool implements PoolQueues.
func (q *MemoryQueue) RemovePool(_ context.Context, pool string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if d := q.queue.depth(pool); d.Queued+d.Held > 0 {
		return fmt.Errorf("events: remove pool %q: %w", pool, ErrNotDrained)
	}
	delete(q.pools, pool)
	return nil
}

// Has implements PoolQueues.
func (q *MemoryQueue) Has(_ context.Context, c Command) (bool, error) {
	q.queue.mu.Lock()
	defer q.queue.mu.Unlock()
	return q.queue.find(q.subjects.Command(c.Pool, c.Verb, c.PlanID)) >= 0, nil
}

// memoryDelivery is a Delivery in memory.
type memoryDelivery struct{ memorySettler }

// Command implements Delivery.
func (d memoryDelivery) Command() (Command, error) {
	c, err := DecodeCommand(d.msg.data)
	c.TraceParent = d.msg.trace
	return c, err
}

// Redelivered implements Delivery.
func (d memoryDelivery) Redelivered() int { return d.before }
