package events

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// moreWait is how long Pull waits for a second command that the server said lies ready; another worker may have got it.
const moreWait = 20 * time.Millisecond

// settleWait is how long the server may take to answer: a lost answer must not hold its asker for good.
const settleWait = 3 * time.Second

// Bodies of acknowledgements, from the JetStream wire protocol.
const (
	ackProgress = "+WPI"
	ackAck      = "+ACK"
)

// puller fetches from durable consumers of one stream, which it looks up once.
type puller struct {
	js     jetstream.JetStream
	stream string
	dead   *JetStreamDeadLetters

	mu        sync.Mutex
	consumers map[string]jetstream.Consumer
}

// pull returns up to limit messages: it waits for the first only.
func (p *puller) pull(ctx context.Context, name string, limit int, wait time.Duration, opts ...jetstream.FetchOpt) ([]jetstream.Msg, error) {
	c, err := p.consumer(ctx, name)
	if err != nil {
		return nil, err
	}
	var messages []jetstream.Msg
	for len(messages) < limit {
		// One at a time: the rest of a larger request would go on being filled after we return.
		b, err := c.Fetch(1, append(opts, jetstream.FetchMaxWait(wait))...)
		if err != nil {
			return messages, err
		}
		m := <-b.Messages()
		if m == nil {
			return messages, p.fetchError(name, b.Error(), len(messages) > 0)
		}
		messages = append(messages, m)
		meta, err := m.Metadata()
		if err != nil || meta.NumPending == 0 {
			break
		}
		wait = moreWait
	}
	return messages, nil
}

// fetchError forgets a consumer that is gone. Nothing that arrived is lost over an error.
func (p *puller) fetchError(name string, err error, some bool) error {
	if errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, nats.ErrNoResponders) {
		p.forget(name)
	}
	if err == nil || some {
		return nil
	}
	return fmt.Errorf("events: pull from %q: %w", name, err)
}

func (p *puller) forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.consumers, name)
}

func (p *puller) consumer(ctx context.Context, name string) (jetstream.Consumer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.consumers[name]; c != nil {
		return c, nil
	}
	c, err := p.js.Consumer(ctx, p.stream, name)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		err = ErrNoPool
	}
	if err != nil {
		return nil, fmt.Errorf("events: open consumer %q of stream %q: %w", name, p.stream, err)
	}
	if p.consumers == nil {
		p.consumers = map[string]jetstream.Consumer{}
	}
	p.consumers[name] = c
	return c, nil
}

// settler is the Settler of a JetStream message.
type settler struct {
	nc   *nats.Conn
	msg  jetstream.Msg
	dead *JetStreamDeadLetters
}

// InProgress asks for an answer, which the client's own InProgress does not: fire and forget would not notice a dead
// connection.
func (s *settler) InProgress(ctx context.Context) error { return s.request(ctx, ackProgress) }

func (s *settler) Ack(ctx context.Context) error { return s.request(ctx, ackAck) }

func (s *settler) request(ctx context.Context, body string) error {
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	if _, err := s.nc.RequestWithContext(ctx, s.msg.Reply(), []byte(body)); err != nil {
		return fmt.Errorf("events: send %s for %q: %w", body, s.msg.Subject(), err)
	}
	return nil
}

func (s *settler) Nak(ctx context.Context, delay time.Duration) error {
	body := "-NAK"
	if delay > 0 {
		body = fmt.Sprintf(`-NAK {"delay": %d}`, delay.Nanoseconds())
	}
	return s.request(ctx, body)
}

// Term copies first: a terminated message of a work queue is gone at once.
func (s *settler) Term(ctx context.Context, reason string) error {
	letter := DeadLetter{Subject: s.msg.Subject(), Reason: reason, Body: s.msg.Data()}
	if err := s.dead.Add(ctx, letter); err != nil {
		return err
	}
	return s.request(ctx, "+TERM "+truncate(reason, 128))
}

// redelivered counts the deliveries before this one.
func (s *settler) redelivered() int {
	meta, err := s.msg.Metadata()
	if err != nil || meta.NumDelivered == 0 {
		return 0
	}
	return int(meta.NumDelivered - 1)
}
