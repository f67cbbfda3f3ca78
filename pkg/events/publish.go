package events

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// headerRoom is what the headers of a message of ours take at most; max_payload counts them too.
	headerRoom = 1024
	// publishTry is how long one publish waits for its answer before it is sent again.
	publishTry = 2 * time.Second
	// publishLimit ends the tries when the caller's context has no deadline.
	publishLimit = 10 * time.Second
	// publishPause lies between tries, so that a server that comes back isn't flooded.
	publishPause = 100 * time.Millisecond
)

// Answers of the server that nats.go has no name for.
const (
	codeNotAvailable  = 10008 // JetStream is starting or has no leader
	codeRateLimited   = 10167 // the stream's ingest buffer is full
	codeMaxPerSubject = 10077 // DiscardNewPerSubject: that subject is taken
	codeNoStorage     = 10047 // less storage than the stream would reserve
)

// payloadLimit is how many bytes a message of ours may have on this connection.
func payloadLimit(nc *nats.Conn) int { return int(nc.MaxPayload()) - headerRoom }

// publish stores a message and waits for the server's acknowledgement. It sends the message again with the
// same id when no answer comes, until ctx ends (10 s without a deadline). The error wraps ErrUnknown when
// a try without an answer may have been stored.
func publish(ctx context.Context, js jetstream.JetStream, msg *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, publishLimit)
		defer cancel()
	}
	unknown := false
	for {
		try, cancel := context.WithTimeout(ctx, publishTry)
		ack, err := js.PublishMsg(try, msg, opts...)
		cancel()
		if err == nil {
			return ack, nil
		}
		again, sent := retryable(err)
		unknown = unknown || sent
		if !again || !pause(ctx, publishPause) {
			return nil, publishError(err, unknown)
		}
	}
}

func publishError(err error, unknown bool) error {
	if unknown {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return err
}

// retryable tells whether a publish may succeed later, and whether this try may have been stored.
func retryable(err error) (again, sent bool) {
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api):
		return api.ErrorCode == codeNotAvailable || api.ErrorCode == codeRateLimited, false
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		return true, false
	case errors.Is(err, nats.ErrTimeout), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return true, true
	case errors.Is(err, nats.ErrConnectionReconnecting), errors.Is(err, nats.ErrDisconnected), errors.Is(err, nats.ErrReconnectBufExceeded):
		return true, true
	}
	return false, false
}

// pause waits and tells whether ctx is still good.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// isSequence tells whether the server refused because of an expected sequence; replicated streams have a code of their own.
func isSequence(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) &&
		(api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

func isCode(err error, code jetstream.ErrorCode) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == code
}

// setTrace passes a W3C trace context on; anything of another length is none.
func setTrace(h nats.Header, traceParent string) {
	if len(traceParent) == 55 {
		h.Set(HeaderTraceParent, traceParent)
	}
}
