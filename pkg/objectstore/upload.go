package objectstore

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/oklog/ulid/v2"

	"github.com/warmfleet/warmfleet/internal/fault"
)

// Server error codes without a name in nats.go (nats-server errors.json).
const (
	errCodeAccountFull    jetstream.ErrorCode = 10002 // resource limits exceeded for account
	errCodeInsufficient   jetstream.ErrorCode = 10023 // insufficient resources
	errCodeStorageFull    jetstream.ErrorCode = 10047 // insufficient storage resources available
	errCodeStoreFailed    jetstream.ErrorCode = 10077 // carries the text of the file system or limit
	errCodeTooManyReqs    jetstream.ErrorCode = 10167 // 429, ingest buffer full
	errCodeWrongSequence  jetstream.ErrorCode = 10071 // chunks are not those that were acknowledged
	errCodeWrongSequenceR jetstream.ErrorCode = 10164 // the same on a replicated stream
)

const (
	firstBackoff = 200 * time.Millisecond
	maxBackoff   = 5 * time.Second
	// cleanUpTimeout is short: a cancelled Put must end soon, whatever the link.
	cleanUpTimeout = 2 * time.Second
	// settleTimeout is the part of it for answers to what is under way.
	settleTimeout = time.Second
	// maxStalls is how many attempts of one Put may stand still: one stall is what a lost
	// acknowledgement looks like, two are a server that does not store.
	maxStalls = 2
)

// errLost says that the server no longer holds what it acknowledged.
var errLost = errors.New("acknowledged chunks are gone")

// Put implements Store. Chunks go first, each in a message of its own that is sent once;
// the record follows only when the server holds all of them, in order. A failed attempt is
// abandoned with its chunks, and the next one is a new object.
func (s *JetStream) Put(ctx context.Context, name string, r io.Reader) (Info, error) {
	if err := ValidName(name); err != nil {
		return Info{}, failed("put", name, err)
	}
	return s.put(ctx, &put{s: s, name: name, r: r, rewind: rewinder(r)})
}

// PutLate implements LatePutter. The bytes of an object that is there already are stored and
// dropped again, so a caller who may know the name asks Stat first.
func (s *JetStream) PutLate(ctx context.Context, r io.Reader, name func() (string, error)) (Info, error) {
	return s.put(ctx, &put{s: s, late: name, r: r, rewind: rewinder(r)})
}

func (s *JetStream) put(ctx context.Context, p *put) (Info, error) {
	select {
	case s.uploads <- struct{}{}:
		defer func() { <-s.uploads }()
	case <-ctx.Done():
		return Info{}, failed("put", p.name, ctx.Err())
	}
	info, err := p.run(ctx)
	p.cleanUp(ctx)
	if err != nil {
		return Info{}, failed("put", p.name, err)
	}
	return info, nil
}

// put is one Put: attempts until one is done or there is no point in another.
type put struct {
	s         *JetStream
	name      string                 // "" while only late knows it
	late      func() (string, error) // nil if the name was given
	r         io.Reader
	rewind    func() error // nil: one attempt only
	abandoned []*upload    // failed attempts
}

func (p *put) run(ctx context.Context) (Info, error) {
	stalls := 0
	for attempt := 1; ; attempt++ {
		// Half the window each time: a server that is overrun must not be overrun again.
		info, err := p.attempt(ctx, max(1, p.s.o.Window>>(attempt-1)))
		if err == nil {
			return info, nil
		}
		err = explain(err)
		if errors.Is(err, ErrStalled) {
			stalls++
		}
		if attempt == p.s.o.Attempts || stalls == maxStalls || p.rewind == nil || !retryable(err) || ctx.Err() != nil {
			return Info{}, err
		}
		p.s.o.Log.Warn().Err(err).Str("object", p.name).Int("attempt", attempt).Msg("upload failed, trying again")
		if err := errors.Join(pause(ctx, attempt), p.rewind()); err != nil {
			return Info{}, err
		}
	}
}

// attempt stores the object under a fresh id, unless a complete one exists.
func (p *put) attempt(ctx context.Context, window int) (Info, error) {
	if p.name != "" {
		if info, err := p.existing(ctx); !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrCorrupt) {
			return info, err
		}
	}
	s := p.s
	chunk, err := unblocked(ctx, s.chunkSize)
	if err != nil {
		return Info{}, err
	}
	up := &upload{s: s, window: window, chunk: chunk, subject: s.chunkSubject(ulid.Make().String()), hash: sha256.New()}
	if err := up.run(ctx, p.r); err != nil {
		p.abandoned = append(p.abandoned, up)
		return Info{}, err
	}
	if p.name == "" {
		info, done, err := p.learnName(ctx)
		if done || err != nil {
			p.abandoned = append(p.abandoned, up)
			return info, err
		}
	}
	fault.At("store.chunks")
	// The server takes the record only while the last chunk is the one it acknowledged:
	// a stream that was purged or made anew in between refuses it.
	guard := jetstream.WithExpectLastSequenceForSubject(up.last, up.subject)
	if fault.Off("store.record-guard") {
		guard = jetstream.WithMsgID(ulid.Make().String())
	}
	_, err = s.publishMeta(ctx, up.info(p.name), guard)
	if err != nil {
		// The record may be stored all the same, so its chunks stay; the sweep takes them if not.
		return Info{}, err
	}
	fault.At("store.put")
	m, err := s.readMeta(ctx, p.name)
	if err != nil {
		return Info{}, err
	}
	return m.Info()
}

// existing describes the object when it is there and complete. A mark is taken away.
func (p *put) existing(ctx context.Context) (Info, error) {
	m, err := p.s.readMeta(ctx, p.name)
	if err == nil {
		m, err = p.s.complete(ctx, m)
	}
	if err != nil {
		return Info{}, err
	}
	if m.Metadata[metaMarked] != "" {
		return p.s.Spare(ctx, p.name)
	}
	return m.Info()
}

// learnName asks for the name of what was uploaded; done means that there was such an object.
func (p *put) learnName(ctx context.Context) (info Info, done bool, err error) {
	name, err := p.late()
	if err == nil {
		err = ValidName(name)
	}
	if err != nil {
		return Info{}, false, &sourceError{err}
	}
	p.name = name
	info, err = p.existing(ctx)
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrCorrupt) {
		return Info{}, false, nil
	}
	return info, err == nil, err
}

// cleanUp drops the chunks of failed attempts where that is possible at once; the sweep
// finds the others, so an error here matters to nobody.
func (p *put) cleanUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	for _, up := range p.abandoned {
		connected, err := unblocked(ctx, func() (bool, error) { return p.s.js.Conn().IsConnected(), nil })
		if !connected || err != nil {
			return
		}
		up.settle(ctx)
		if err := p.s.purge(ctx, jetstream.WithPurgeSubject(up.subject)); err != nil {
			p.s.o.Log.Debug().Err(err).Str("subject", up.subject).Msg("chunks left to the sweep")
		}
	}
}

// rewinder returns what takes r back to where it is now, or nil when r cannot seek: a pipe
// in an *os.File has a Seek that only fails.
func rewinder(r io.Reader) func() error {
	seeker, ok := r.(io.Seeker)
	if !ok {
		return nil
	}
	start, err := seeker.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil
	}
	return func() error {
		_, err := seeker.Seek(start, io.SeekStart)
		return err
	}
}

// upload is one attempt to store one object's chunks.
type upload struct {
	s       *JetStream
	window  int
	chunk   int // bytes of all chunks but the last
	subject string
	hash    hash.Hash
	size    uint64
	sent    uint32
	last    uint64 // sequence of the newest acknowledged chunk
	flight  []jetstream.PubAckFuture
}

// run stores all chunks and checks that the server holds them.
func (u *upload) run(ctx context.Context, r io.Reader) error {
	for {
		// A new buffer per chunk: the client keeps it until the acknowledgement.
		buf := make([]byte, u.chunk)
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			if err := u.send(ctx, buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			break
		}
		if err != nil {
			return &sourceError{err}
		}
	}
	for len(u.flight) > 0 {
		if err := u.await(ctx); err != nil {
			return err
		}
	}
	held, err := u.s.countChunks(ctx, nuidOf(u.subject))
	if err != nil {
		return err
	}
	if held != uint64(u.sent) && !fault.Off("store.count") {
		return fmt.Errorf("%w: server holds %d of %d", errLost, held, u.sent)
	}
	return nil
}

// send publishes one chunk, after waiting until the window has room.
func (u *upload) send(ctx context.Context, data []byte) error {
	for len(u.flight) >= u.window {
		if err := u.await(ctx); err != nil {
			return err
		}
	}
	fault.At("store.chunk")
	msg := nats.NewMsg(u.subject)
	msg.Data = data
	patient, cancel := context.WithTimeout(ctx, u.s.o.Stall)
	defer cancel()
	ack, err := unblocked(patient, func() (jetstream.PubAckFuture, error) {
		return u.s.pub.PublishMsgAsync(msg, jetstream.WithRetryAttempts(0))
	})
	if err != nil && ctx.Err() == nil && patient.Err() != nil {
		return fmt.Errorf("%w for %v: the link takes no more bytes", ErrStalled, u.s.o.Stall)
	}
	if err != nil {
		return err
	}
	u.flight = append(u.flight, ack)
	u.hash.Write(data)
	u.size += uint64(len(data))
	u.sent++
	return nil
}

// await takes the acknowledgement of the oldest chunk in flight. Sequences must rise:
// they are the order in which readers get the chunks.
func (u *upload) await(ctx context.Context) error {
	stall := time.NewTimer(u.s.o.Stall)
	defer stall.Stop()
	oldest := u.flight[0]
	select {
	case ack := <-oldest.Ok():
		u.flight = u.flight[1:]
		if err := u.s.checkStream(ack); err != nil {
			return err
		}
		if ack.Sequence <= u.last {
			return fmt.Errorf("%w: sequence %d follows %d", errLost, ack.Sequence, u.last)
		}
		u.last = ack.Sequence
		return nil
	case err := <-oldest.Err():
		u.flight = u.flight[1:]
		return err
	case <-stall.C:
		return fmt.Errorf("%w for %v: the server acknowledges no chunk; a full disk does that, its log tells", ErrStalled, u.s.o.Stall)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// settle waits until the server has answered for every chunk in flight: one that it stores after a purge would stay.
func (u *upload) settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	for _, chunk := range u.flight {
		select {
		case <-chunk.Ok():
		case <-chunk.Err():
		case <-ctx.Done():
			return
		}
	}
	u.flight = nil
}

// info is the record of the uploaded object as nats.go writes it.
func (u *upload) info(name string) jetstream.ObjectInfo {
	return jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{
			Name: name,
			Opts: &jetstream.ObjectMetaOptions{ChunkSize: uint32(u.chunk)},
		},
		Bucket: u.s.o.Bucket,
		NUID:   nuidOf(u.subject),
		Size:   u.size,
		Chunks: u.sent,
		Digest: natsDigest + base64.URLEncoding.EncodeToString(u.hash.Sum(nil)),
	}
}

// chunkSize is what Options ask for, within what the server accepts.
func (s *JetStream) chunkSize() (int, error) {
	limit := int(s.js.Conn().MaxPayload()) - chunkOverhead
	if limit < 1 {
		return s.o.ChunkSize, nil // not connected yet: the limit is unknown
	}
	return min(s.o.ChunkSize, limit), nil
}

// sourceError is a failure of the caller's reader; sending again cannot help.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return "read content: " + e.err.Error() }
func (e *sourceError) Unwrap() error { return e.err }

// explain gives the errors of a full server one name.
func explain(err error) error {
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		return err
	}
	switch api.ErrorCode {
	case errCodeAccountFull, errCodeInsufficient, errCodeStorageFull:
		return fmt.Errorf("%w: %s", ErrFull, api.Description)
	case errCodeStoreFailed:
		// The reason is text only: "maximum bytes exceeded", "no space left on device".
		for _, text := range []string{"maximum", "no space", "quota"} {
			if strings.Contains(api.Description, text) {
				return fmt.Errorf("%w: %s", ErrFull, api.Description)
			}
		}
	}
	return err
}
