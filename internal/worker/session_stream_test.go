package worker

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// slow is a reader that takes nothing until it is let.
type slow struct {
	let <-chan struct{}
	sum hash.Hash
	got atomic.Int64
}

func (s *slow) Write(b []byte) (int, error) {
	<-s.let
	s.got.Add(int64(len(b)))
	return s.sum.Write(b)
}

// A command waits for a reader that is slow, longer than one that is silent is waited for: nothing grows, and no byte is lost.
func TestSession_SlowReaderHoldsTheCommandUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := sessions(t, r)
	w, _ := r.worker(t, "w1")
	s := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost})
	const size = 200 << 20
	let := make(chan struct{})
	out := &slow{let: let, sum: sha256.New()}
	ended := make(chan error, 1)
	go func() {
		_, err := c.Exec(context.WithoutCancel(t.Context()), s.ID, api.Exec{Argv: []string{"sh", "-c", fmt.Sprintf("head -c %d /dev/zero; echo x >done", size)}}, out, nil)
		ended <- err
	}()
	live := func() *stream {
		l := w.session(s.ID)
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, o := range l.flows {
			return o
		}
		return nil
	}
	full := func() bool {
		o := live()
		if o == nil {
			return false
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.sent > api.FlowWindow/2
	}
	until(t, "the window is full", full)
	o := live()
	began := o.heardAt()
	until(t, "its reader was heard of for longer than a silent one is waited for", func() bool { return o.heardAt().Sub(began) > flowSilence })
	o.mu.Lock()
	if o.sent > api.FlowWindow || o.lost > 0 || o.gone {
		t.Errorf("got %d bytes sent, %d lost, gone %v; want at most the window sent and none lost", o.sent, o.lost, o.gone)
	}
	o.mu.Unlock()
	if err := c.ReadFile(t.Context(), s.ID, api.SessionRead{Path: "done"}, &strings.Builder{}); err == nil {
		t.Error("the command went on while nobody took its output")
	}
	close(let)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	want := sha256.New()
	zero := make([]byte, 1<<20)
	for range size >> 20 {
		want.Write(zero)
	}
	if out.got.Load() != size || fmt.Sprintf("%x", out.sum.Sum(nil)) != fmt.Sprintf("%x", want.Sum(nil)) {
		t.Errorf("got %d bytes, want %d, each as it was printed", out.got.Load(), size)
	}
}

// A reader that promised to say how far it is, and is gone, is waited for only so long; what was left out is counted.
func TestSession_CommandGoesOnWhenItsReaderIsGone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := sessions(t, r)
	r.worker(t, "w1")
	s := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost})
	nc := r.js.Conn()
	sub, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	const size = 20 << 20
	b, err := json.Marshal(api.Exec{Argv: []string{"head", "-c", fmt.Sprint(size), "/dev/zero"}, Flow: events.NewID()})
	if err == nil {
		err = nc.PublishRequest(r.fleet.Subjects.Session(s.ID, "exec"), sub.Subject, b)
	}
	if err != nil {
		t.Fatal(err)
	}
	got := int64(0)
	for {
		m, err := sub.NextMsg(patience)
		if err != nil {
			t.Fatal(err)
		}
		if m.Header.Get(api.HeaderStream) != api.StreamExit {
			got += int64(len(m.Data))
			continue
		}
		var end api.ExecEnd
		if err := json.Unmarshal(m.Data, &end); err != nil {
			t.Fatal(err)
		}
		if end.ExitCode == nil || *end.ExitCode != 0 || end.Dropped == 0 || got+end.Dropped != size || got > api.FlowWindow {
			t.Errorf("got %d bytes and %+v; want at most the window, and the rest counted", got, end)
		}
		break
	}
	if out, _, _ := run1(t, c, s.ID, "echo", "alive"); out != "alive\n" {
		t.Errorf("the session afterwards: got %q", out)
	}
}

func (o *stream) heardAt() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.heard
}
