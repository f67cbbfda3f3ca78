package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/session"
)

const (
	// streamRoom is how many bytes of output wait to be sent, while the connection is slow, before more is dropped.
	streamRoom = 8 << 20
	// flowSilence is when a reader that says how far it is counts as gone; it says so every second.
	flowSilence = 5 * time.Second
)

// stream sends a command's output. Without flow control nothing holds the command up: what the connection does not take
// within streamRoom is dropped and counted. With it at most api.FlowWindow bytes are on their way: the command waits for
// a slow reader, and what is printed after the reader has gone is dropped and counted.
type stream struct {
	conn  *nats.Conn
	reply string
	done  chan struct{}

	mu      sync.Mutex
	more    *sync.Cond // something to send, or room again
	queue   []*nats.Msg
	waiting int   // bytes in queue
	dropped int64 // since the last message
	lost    int64 // in all
	seq     int
	closed  bool
	flow    bool
	sent    int64 // bytes handed over to be sent
	read    int64 // of them, by the reader
	heard   time.Time
	gone    bool // nobody reads: nothing is waited for
	over    bool // the session ends: nothing is waited for, but what the reader has room for is sent
}

// stream makes the one of a command, and is told of its reader under the id flow, if that is not "", until forget.
func (s *liveSession) stream(flow, reply string) (o *stream, forget func(), err error) {
	o = &stream{conn: s.w.fleet.Conn, reply: reply, done: make(chan struct{}), flow: flow != "", heard: time.Now()}
	o.more = sync.NewCond(&o.mu)
	forget = func() {}
	if o.flow {
		if _, err := events.ParseID(flow); err != nil {
			return nil, nil, fmt.Errorf("worker: exec: flow: %w", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.flows) >= session.MaxWaiting || s.flows[flow] != nil {
			return nil, nil, fmt.Errorf("worker: exec: flow %q: %w", flow, session.ErrBusy)
		}
		s.flows[flow] = o
		ctx, stop := context.WithCancel(s.ctx)
		go o.listen(ctx)
		forget = func() {
			stop()
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.flows, flow)
		}
	}
	go o.send()
	return o, forget, nil
}

// heed takes what a reader says.
func (s *liveSession) heed(body []byte) {
	var m api.Flow
	if json.Unmarshal(body, &m) != nil {
		return
	}
	s.mu.Lock()
	o := s.flows[m.Flow]
	s.mu.Unlock()
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.heard, o.read = time.Now(), min(max(o.read, m.Read), o.sent)
	o.more.Broadcast()
}

// listen lets the command go on when its reader is gone, or its session ends.
func (o *stream) listen(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for last := false; !last; {
		over := false
		select {
		case <-ctx.Done():
			over = true
		case <-tick.C:
		}
		o.mu.Lock()
		o.over, o.gone = over, time.Since(o.heard) > flowSilence
		if last = o.over || o.gone; last {
			o.more.Broadcast()
		}
		o.mu.Unlock()
	}
}

// streamWriter is one of a stream's outputs.
type streamWriter struct {
	to   *stream
	name string
}

func (o *stream) to(name string) *streamWriter { return &streamWriter{o, name} }

func (w *streamWriter) Write(b []byte) (int, error) {
	w.to.put(w.name, bytes.Clone(b), false)
	return len(b), nil
}

func (o *stream) put(name string, b []byte, always bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	full := func() bool { return o.flow && o.sent-o.read+int64(len(b)) > api.FlowWindow }
	for full() && !always && !o.gone && !o.over {
		o.more.Wait()
	}
	if !always && (o.gone || full() || o.waiting+len(b) > streamRoom) {
		o.dropped += int64(len(b))
		o.lost += int64(len(b))
		return
	}
	o.seq++
	h := nats.Header{}
	h.Set(api.HeaderStream, name)
	h.Set(api.HeaderSeq, strconv.Itoa(o.seq))
	if o.dropped > 0 {
		h.Set(api.HeaderDropped, strconv.FormatInt(o.dropped, 10))
		o.dropped = 0
	}
	o.queue = append(o.queue, &nats.Msg{Subject: o.reply, Header: h, Data: b})
	o.waiting += len(b)
	o.sent += int64(len(b))
	o.more.Broadcast()
}

// send publishes what waits until close.
func (o *stream) send() {
	defer close(o.done)
	for {
		o.mu.Lock()
		for len(o.queue) == 0 && !o.closed {
			o.more.Wait()
		}
		if len(o.queue) == 0 {
			o.mu.Unlock()
			return
		}
		m := o.queue[0]
		o.queue = o.queue[1:]
		o.mu.Unlock()
		_ = o.conn.PublishMsg(m) // nobody may be there to read it: the command is not to notice
		o.mu.Lock()
		o.waiting -= len(m.Data)
		o.mu.Unlock()
	}
}

// close sends the end after all output.
func (o *stream) close(end api.ExecEnd) error {
	o.mu.Lock()
	end.Dropped = o.lost
	o.mu.Unlock()
	b, err := json.Marshal(end)
	if err != nil {
		return err
	}
	o.put(api.StreamExit, b, true)
	o.mu.Lock()
	o.closed = true
	o.more.Broadcast()
	o.mu.Unlock()
	<-o.done
	return nil
}
