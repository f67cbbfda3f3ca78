package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// ErrLostOutput: output of a command did not arrive.
var ErrLostOutput = errors.New("client: output was lost on the way")

// flowEvery is how often the worker is told that somebody reads.
const flowEvery = time.Second

// Exec runs a command in a session and writes what it prints, byte for byte, as it comes: while a Write blocks so does the
// command, and at most api.FlowWindow bytes are held here. How the command ended is the result; an error says that this is
// not known, or wraps ErrLostOutput. The command goes on when ctx ends; what it prints then is lost.
func (c *Client) Exec(ctx context.Context, id string, req api.Exec, stdout, stderr io.Writer) (api.ExecEnd, error) {
	req = inText(req)
	req.Flow = events.NewID()
	sub, err := c.openSession(id, "exec", req)
	if err != nil {
		return api.ExecEnd{}, err
	}
	defer sub.Unsubscribe()
	r := execReader{client: c, session: id, flow: req.Flow, sub: sub, out: map[string]io.Writer{api.StreamStdout: stdout, api.StreamStderr: stderr}}
	telling, stop := context.WithCancel(ctx)
	defer stop()
	go r.tell(telling)
	end, err := r.run(ctx)
	if err != nil {
		err = fmt.Errorf("client: exec in session %s: %w", id, err)
	}
	return end, err
}

// inText is a request for a command whose arguments may be any bytes.
func inText(req api.Exec) api.Exec {
	req.Argv, req.Env, req.Dir = slices.Clone(req.Argv), slices.Clone(req.Env), api.Text(req.Dir)
	for _, all := range [][]string{req.Argv, req.Env} {
		for i, s := range all {
			all[i] = api.Text(s)
		}
	}
	return req
}

// execReader reads the output of one command.
type execReader struct {
	client        *Client
	session, flow string
	sub           *nats.Subscription
	out           map[string]io.Writer
	read          atomic.Int64 // bytes
	told          int64        // of them, at the last quarter of the window
}

func (r *execReader) run(ctx context.Context) (end api.ExecEnd, err error) {
	lost := false
	for want := 1; ; want++ {
		m, err := next(ctx, r.sub)
		if err != nil {
			return end, err
		}
		if seq, _ := strconv.Atoi(m.Header.Get(api.HeaderSeq)); seq != want {
			lost, want = true, seq
		}
		name := m.Header.Get(api.HeaderStream)
		if name != api.StreamExit {
			r.take(name, m.Data)
			continue
		}
		if err := json.Unmarshal(m.Data, &end); err != nil {
			return end, err
		}
		if lost || end.Dropped > 0 {
			return end, fmt.Errorf("%w: %d bytes dropped at the worker", ErrLostOutput, end.Dropped)
		}
		return end, nil
	}
}

func (r *execReader) take(name string, b []byte) {
	if w := r.out[name]; w != nil {
		if _, err := w.Write(b); err != nil {
			r.out[name] = nil // nobody reads it: the command is not to notice
		}
	}
	if read := r.read.Add(int64(len(b))); read-r.told >= api.FlowWindow/4 {
		r.told = read
		r.say()
	}
}

// tell says every second that somebody reads, until ctx ends.
func (r *execReader) tell(ctx context.Context) {
	tick := time.NewTicker(flowEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.say()
		}
	}
}

func (r *execReader) say() {
	b, err := json.Marshal(api.Flow{Flow: r.flow, Read: r.read.Load()})
	if err == nil {
		_ = r.client.nc.Publish(r.client.subjects.Session(r.session, "flow"), b) // the next one says it too
	}
}
