package events

import (
	"context"
	"fmt"
	"sync"
)

// OutputWriter takes one step's output and stores it in the background. Write never waits for the store: the memory it needs is
// bounded by Head and Tail, and what does not fit between them is counted and dropped. Safe for concurrent use, so that it can be
// a command's standard output and standard error.
type OutputWriter struct {
	out  Output
	opts OutputOptions

	some   chan struct{} // there is something to send
	urgent chan struct{} // a whole chunk, or the end
	done   chan struct{} // closed when everything is sent, or given up
	stop   context.CancelFunc

	mu      sync.Mutex
	pending []byte // of the head, not sent yet
	total   int64  // bytes written
	tail    ring   // the last bytes after the head
	closed  bool
	err     error // why sending was given up
}

// NewOutputWriter starts a writer. Close has to be called.
func NewOutputWriter(out Output, o OutputOptions) *OutputWriter {
	ctx, stop := context.WithCancel(context.Background())
	o = o.withDefaults()
	w := &OutputWriter{
		out: out, opts: o, stop: stop, tail: ring{limit: o.Tail},
		some: make(chan struct{}, 1), urgent: make(chan struct{}, 1), done: make(chan struct{}),
	}
	go w.run(ctx)
	return w
}

// Write takes p; it returns len(p) and no error until Close.
func (w *OutputWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return 0, fmt.Errorf("events: write output of plan %q: writer is closed", w.opts.PlanID)
	}
	room := max(int64(w.opts.Head)-w.total, 0)
	head := p[:min(int64(len(p)), room)]
	w.pending = append(w.pending, head...)
	w.tail.write(p[len(head):])
	w.total += int64(len(p))
	if len(head) > 0 {
		notify(w.some)
	}
	if len(w.pending) >= ChunkSize {
		notify(w.urgent)
	}
	return len(p), nil
}

// Close sends what is left and waits for it until ctx ends. The error says what could not be stored.
func (w *OutputWriter) Close(ctx context.Context) error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	notify(w.some)
	notify(w.urgent)
	select {
	case <-w.done:
	case <-ctx.Done():
		w.stop()
		<-w.done
	}
	w.stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func (w *OutputWriter) run(ctx context.Context) {
	defer close(w.done)
	var sent int64
	for {
		select {
		case <-w.some:
		case <-ctx.Done():
			return
		}
		w.gather(ctx)
		data, last := w.grab()
		err := w.send(ctx, &sent, data)
		if err == nil && last {
			err = w.sendTail(ctx, sent)
		}
		if err != nil {
			w.mu.Lock()
			w.err = fmt.Errorf("events: store output of step %d of plan %q after %d bytes: %w", w.opts.Step, w.opts.PlanID, sent, err)
			w.mu.Unlock()
			return
		}
		if last {
			return
		}
	}
}

// gather waits a little for more, so that a chatty step does not make a message a line.
func (w *OutputWriter) gather(ctx context.Context) {
	wait, cancel := context.WithTimeout(ctx, w.opts.Flush)
	defer cancel()
	select {
	case <-w.urgent:
	case <-wait.Done():
	}
}

// grab takes the pending bytes and tells whether no more will come.
func (w *OutputWriter) grab() ([]byte, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	data := w.pending
	w.pending = nil
	return data, w.closed
}

// send stores data in chunks and moves the offset on.
func (w *OutputWriter) send(ctx context.Context, offset *int64, data []byte) error {
	for len(data) > 0 {
		n := min(len(data), ChunkSize)
		c := w.chunk(*offset)
		c.Data = data[:n]
		if err := w.publish(ctx, c); err != nil {
			return err
		}
		*offset += int64(n)
		data = data[n:]
	}
	return nil
}

// sendTail stores the end of the output after a chunk that says how much lies between it and the head.
func (w *OutputWriter) sendTail(ctx context.Context, offset int64) error {
	w.mu.Lock()
	tail := w.tail.bytes()
	dropped := w.total - offset - int64(len(tail))
	w.mu.Unlock()
	if dropped > 0 {
		c := w.chunk(offset)
		c.Dropped = dropped
		if err := w.publish(ctx, c); err != nil {
			return err
		}
		offset += dropped
	}
	return w.send(ctx, &offset, tail)
}

// publish tries until the chunk is stored, refused for good, or the writer is stopped.
func (w *OutputWriter) publish(ctx context.Context, c Chunk) error {
	for {
		err := w.out.Publish(ctx, c)
		if err == nil {
			return nil
		}
		if again, _ := retryable(err); !again || !pause(ctx, publishPause) {
			return err
		}
	}
}

func (w *OutputWriter) chunk(offset int64) Chunk {
	return Chunk{PlanID: w.opts.PlanID, Step: w.opts.Step, Epoch: w.opts.Epoch, Try: w.opts.Try, Offset: offset}
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// ring keeps the last limit bytes written to it.
type ring struct {
	limit int
	buf   []byte
	next  int // where the next byte goes once buf is full
}

func (r *ring) write(p []byte) {
	if len(p) >= r.limit {
		r.buf = append(r.buf[:0], p[len(p)-r.limit:]...)
		r.next = 0
		return
	}
	grow := min(len(p), r.limit-len(r.buf))
	r.buf = append(r.buf, p[:grow]...)
	for p = p[grow:]; len(p) > 0; {
		n := copy(r.buf[r.next:], p)
		r.next = (r.next + n) % r.limit
		p = p[n:]
	}
}

func (r *ring) bytes() []byte {
	return append(append([]byte(nil), r.buf[r.next:]...), r.buf[:r.next]...)
}
