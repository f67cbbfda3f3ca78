package objectstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// replicaLag is how long a replica that lacks a message is left alone before it is asked
// again.
const replicaLag = 50 * time.Millisecond

// Get implements Store. A context without a deadline gets one: Stall, and the time that
// the object takes at 64 KiB/s. Within it the transfer survives reconnects.
func (s *JetStream) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	m, err := s.findMeta(ctx, name)
	if err == nil && m.Deleted {
		err = ErrNotFound
	}
	if err == nil {
		err = m.usable()
	}
	if err != nil {
		return nil, failed("get", name, err)
	}
	info, err := m.Info()
	if err != nil {
		return nil, err
	}
	cancel := context.CancelFunc(func() {})
	if _, ok := ctx.Deadline(); !ok {
		rate := time.Duration(info.Size) * time.Second / minRate
		ctx, cancel = context.WithTimeout(ctx, s.o.Stall+rate)
	}
	r := &chunkReader{ctx: ctx, cancel: cancel, s: s, record: m, want: m.Chunks}
	r.batch = s.newBatchReader(s.chunkSubject(m.NUID), chunkBatch)
	return newVerifier(r, info), nil
}

// chunkReader reads the chunks of one object.
type chunkReader struct {
	ctx    context.Context
	cancel context.CancelFunc
	s      *JetStream
	record record
	batch  *batchReader
	want   uint32    // chunks still to come
	lags   time.Time // when a replica first lacked the next chunk, zero if none does
	buf    []byte    // rest of the present chunk
}

func (r *chunkReader) Read(p []byte) (int, error) {
	for len(r.buf) == 0 {
		if r.want == 0 {
			return 0, io.EOF
		}
		msg, err := r.batch.next(r.ctx)
		if err == io.EOF {
			err = r.missing()
			if err == nil {
				continue
			}
		}
		if err != nil {
			return 0, err
		}
		r.want--
		r.lags = time.Time{}
		r.buf = msg.Data
	}
	n := copy(p, r.buf)
	r.buf = r.buf[n:]
	return n, nil
}

// missing says why the chunks ended early. It returns nil when the leader has all of them,
// so that a replica which lags behind it is asked again.
func (r *chunkReader) missing() error {
	held, err := r.s.countChunks(r.ctx, r.record.NUID)
	if err != nil {
		return err
	}
	if held != uint64(r.record.Chunks) {
		return fmt.Errorf("%w: %d of %d chunks", ErrCorrupt, held, r.record.Chunks)
	}
	if r.lags.IsZero() {
		r.lags = time.Now()
	}
	if time.Since(r.lags) > r.s.o.Stall {
		return fmt.Errorf("%w for %v: a replica lacks %d chunks that the leader has", ErrStalled, r.s.o.Stall, r.want)
	}
	return sleep(r.ctx, replicaLag)
}

// findMeta is readMeta for a record that somebody announced: when a replica does not know
// it, the leader decides.
func (s *JetStream) findMeta(ctx context.Context, name string) (record, error) {
	ctx, cancel := context.WithTimeout(ctx, s.o.Stall)
	defer cancel()
	for {
		m, err := s.readMeta(ctx, name)
		if !errors.Is(err, ErrNotFound) {
			return m, err
		}
		info, ierr := s.streamInfo(ctx, s.metaSubject(name))
		if ierr != nil {
			return record{}, ierr
		}
		if len(info.State.Subjects) == 0 {
			return record{}, err
		}
		if err := sleep(ctx, replicaLag); err != nil {
			return record{}, err
		}
	}
}

func (r *chunkReader) Close() error {
	r.batch.close()
	r.cancel()
	return nil
}
