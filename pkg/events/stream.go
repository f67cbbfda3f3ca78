package events

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go/jetstream"
)

// streamHandle looks a stream up once, on first use, so that constructors do no I/O.
type streamHandle struct {
	js   jetstream.JetStream
	name string

	mu     sync.Mutex
	stream jetstream.Stream
}

func (h *streamHandle) get(ctx context.Context) (jetstream.Stream, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stream != nil {
		return h.stream, nil
	}
	s, err := h.js.Stream(ctx, h.name)
	if err != nil {
		return nil, fmt.Errorf("events: open stream %q: %w", h.name, err)
	}
	h.stream = s
	return s, nil
}

// last returns the last message that matches a subject filter, or ErrNotFound.
func (h *streamHandle) last(ctx context.Context, filter string) (*jetstream.RawStreamMsg, error) {
	s, err := h.get(ctx)
	if err != nil {
		return nil, err
	}
	m, err := s.GetLastMsgForSubject(ctx, filter)
	return m, notFound(err)
}

// next returns the first message at or after a sequence that matches a subject filter, or ErrNotFound.
func (h *streamHandle) next(ctx context.Context, seq uint64, filter string) (*jetstream.RawStreamMsg, error) {
	s, err := h.get(ctx)
	if err != nil {
		return nil, err
	}
	m, err := s.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(filter))
	return m, notFound(err)
}

func notFound(err error) error {
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return ErrNotFound
	}
	return err
}
