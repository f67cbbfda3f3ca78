package objectstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Direct gets (ADR-31) read stored messages by plain requests: no consumer to create or
// to lose, and the end of the messages is an answer, not a silence.

const (
	// chunkBatch chunks are asked for at once: 2 MiB, which a link of 256 KiB/s passes
	// within the server's write deadline of 10 s.
	chunkBatch = 4
	// metaBatch records are asked for at once.
	metaBatch = 256
	// pollReconnect is how often a waiting reader looks whether the connection was
	// replaced: answers to a request of the old one never come.
	pollReconnect = 250 * time.Millisecond

	statusHeader   = "Status"
	lastSeqHeader  = "Nats-Last-Sequence" // of the message before in the batch
	pendingHeader  = "Nats-Num-Pending"   // messages after this one
	statusBatchEnd = "204"
	statusNoMsg    = "404"
)

// directGet is the request; field names are the server's (JSApiMsgGetRequest).
type directGet struct {
	Seq     uint64 `json:"seq,omitempty"`
	LastFor string `json:"last_by_subj,omitempty"`
	NextFor string `json:"next_by_subj,omitempty"`
	Batch   int    `json:"batch,omitempty"`
}

func (s *JetStream) directSubject() string {
	o := s.js.Options()
	prefix := "$JS.API."
	switch {
	case o.APIPrefix != "":
		prefix = o.APIPrefix + "."
	case o.Domain != "":
		prefix = "$JS." + o.Domain + ".API."
	}
	return prefix + "DIRECT.GET." + s.streamName()
}

// lastMsg returns the newest message of a subject, or ErrNotFound.
func (s *JetStream) lastMsg(ctx context.Context, subject string) (*nats.Msg, error) {
	req, err := json.Marshal(directGet{LastFor: subject})
	if err != nil {
		return nil, err
	}
	msg, err := ask(ctx, s.o.Stall, func(ctx context.Context) (*nats.Msg, error) {
		return s.js.Conn().RequestWithContext(ctx, s.directSubject(), req)
	})
	if err != nil {
		return nil, s.noBucket(err)
	}
	switch status := msg.Header.Get(statusHeader); status {
	case "":
		return msg, nil
	case statusNoMsg:
		return nil, ErrNotFound
	default:
		return nil, directError(msg)
	}
}

// ask repeats a request that changes nothing when its answer does not come: a connection
// that is replaced loses both. It gives up with ErrStalled after stall. The answer comes as a
// value, since a request that was given up lives on and must write nothing that others read.
func ask[T any](ctx context.Context, stall time.Duration, request func(context.Context) (T, error)) (T, error) {
	var none T
	whole, cancel := context.WithTimeout(ctx, stall)
	defer cancel()
	for {
		once, cancel := context.WithTimeout(whole, requestTimeout)
		answer, err := unblocked(once, func() (T, error) { return request(once) })
		cancel()
		switch {
		case err == nil:
			return answer, nil
		case ctx.Err() != nil:
			return none, ctx.Err()
		case whole.Err() != nil:
			return none, fmt.Errorf("%w for %v: the server does not answer", ErrStalled, stall)
		case !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout):
			return none, err
		}
	}
}

// unblocked returns what fn does, or the error of ctx when that ends first. The client writes
// under a lock: on a link that stands still even to ask for its state blocks, until its
// write fails (nats.FlusherTimeout, a minute by default), and so long does fn live on.
func unblocked[T any](ctx context.Context, fn func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := fn()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// noBucket explains what it means that nobody answers.
func (s *JetStream) noBucket(err error) error {
	if errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("bucket %q is absent, allows no direct gets, or JetStream is not ready: %w", s.o.Bucket, err)
	}
	return err
}

func directError(msg *nats.Msg) error {
	return fmt.Errorf("direct get: status %s %s", msg.Header.Get(statusHeader), msg.Header.Get("Description"))
}

// stored returns the sequence and the time that the server gave a message.
func stored(msg *nats.Msg) (uint64, time.Time, error) {
	seq, err := strconv.ParseUint(msg.Header.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("direct get: header %s: %w", jetstream.SequenceHeader, err)
	}
	at, err := time.Parse(time.RFC3339Nano, msg.Header.Get(jetstream.TimeStampHeaer))
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("direct get: header %s: %w", jetstream.TimeStampHeaer, err)
	}
	return seq, at, nil
}

// batchReader yields the messages of a subject in the order stored. It resumes by
// sequence after a lost connection, and has nothing to clean up but its inbox.
type batchReader struct {
	s       *JetStream
	subject string
	batch   int

	nextSeq uint64
	got     int    // messages received of the present batch
	last    uint64 // sequence of the newest of them, 0 before the first
	sub     *nats.Subscription
	conns   uint64 // as in batch
}

func (s *JetStream) newBatchReader(subject string, batch int) *batchReader {
	return &batchReader{s: s, subject: subject, batch: batch, nextSeq: 1}
}

// next returns the next message, or io.EOF after the last one that is stored now.
func (r *batchReader) next(ctx context.Context) (*nats.Msg, error) {
	patient, cancel := context.WithTimeout(ctx, r.s.o.Stall)
	defer cancel()
	for {
		msg, err := r.wait(patient)
		switch {
		case ctx.Err() != nil:
			r.close()
			return nil, ctx.Err()
		case patient.Err() != nil:
			r.close()
			return nil, fmt.Errorf("%w for %v", ErrStalled, r.s.o.Stall)
		case err == nil:
			if msg, err := r.take(msg); msg != nil || err != nil {
				return msg, err
			}
		case errors.Is(err, errReconnected):
			r.close()
		case !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout):
			r.close()
			return nil, r.s.noBucket(err)
		}
	}
}

// errReconnected says that the answers to a request were lost with its connection.
var errReconnected = errors.New("reconnected")

// wait returns a message of the present batch, or an error after pollReconnect. It asks for
// the batch first where there is none.
func (r *batchReader) wait(ctx context.Context) (*nats.Msg, error) {
	if r.sub == nil {
		b, err := unblocked(ctx, func() (batch, error) { return r.request(ctx) })
		if err != nil {
			return nil, err
		}
		r.sub, r.conns, r.got, r.last = b.sub, b.conns, 0, 0
	}
	once, cancel := context.WithTimeout(ctx, min(pollReconnect, r.s.o.Stall))
	defer cancel()
	msg, err := r.sub.NextMsgWithContext(once)
	if err == nil || ctx.Err() != nil {
		return msg, err
	}
	conns, serr := unblocked(ctx, func() (uint64, error) { return r.s.js.Conn().Stats().Reconnects, nil })
	if serr == nil && conns != r.conns {
		return nil, errReconnected
	}
	return nil, err
}

// take sorts out what an answer is: a message, the end of a batch (nil, nil), the end of
// all (io.EOF).
func (r *batchReader) take(msg *nats.Msg) (*nats.Msg, error) {
	status := msg.Header.Get(statusHeader)
	if (status == "" || status == statusBatchEnd) && msg.Header.Get(lastSeqHeader) != strconv.FormatUint(r.last, 10) {
		// The inbox outlives a connection: the old one lost the answers before this one.
		r.close()
		return nil, nil
	}
	switch status {
	case "":
		seq, _, err := stored(msg)
		if err != nil {
			r.close()
			return nil, err
		}
		r.nextSeq, r.last = seq+1, seq
		r.got++
		return msg, nil
	case statusBatchEnd:
		full := r.got == r.batch
		r.close()
		if !full && msg.Header.Get(pendingHeader) == "0" {
			return nil, io.EOF
		}
		return nil, nil
	case statusNoMsg:
		r.close()
		return nil, io.EOF
	default:
		r.close()
		return nil, directError(msg)
	}
}

// batch is a request under way.
type batch struct {
	sub   *nats.Subscription
	conns uint64 // how often the connection had been replaced
}

// request asks for the batch that begins at nextSeq.
func (r *batchReader) request(ctx context.Context) (batch, error) {
	req, err := json.Marshal(directGet{Seq: r.nextSeq, NextFor: r.subject, Batch: r.batch})
	if err != nil {
		return batch{}, err
	}
	conn := r.s.js.Conn()
	sub, err := conn.SubscribeSync(conn.NewInbox())
	if err != nil {
		return batch{}, err
	}
	b := batch{sub: sub, conns: conn.Stats().Reconnects}
	err = conn.PublishRequest(r.s.directSubject(), sub.Subject, req)
	if err == nil {
		err = ctx.Err() // nobody waits any more
	}
	if err != nil {
		return batch{}, errors.Join(err, sub.Unsubscribe())
	}
	return b, nil
}

// close drops the present batch; the next one starts after the last message returned.
func (r *batchReader) close() {
	if r.sub == nil {
		return
	}
	// Not waited for: see unblocked. It fails only if connection or subscription are gone.
	go func(sub *nats.Subscription) { _ = sub.Unsubscribe() }(r.sub)
	r.sub = nil
}
