package fleets

import (
	"bytes"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

const (
	linkRate  = 2 << 20 // bytes a second, each way of each connection
	linkDelay = 100 * time.Millisecond
	linkPiece = 32 << 10
	// linkStall is what the workers of the test call no progress.
	linkStall = 2 * time.Second
)

// slowLink relays TCP at a rate, after a delay. What a worker sends and gets of layers can be held, for
// it has a connection of its own for them.
type slowLink struct {
	url string

	mu   sync.Mutex
	held chan struct{} // closed unless layers are held
}

func startSlowLink(t *testing.T, server string) *slowLink {
	t.Helper()
	s := &slowLink{held: make(chan struct{})}
	close(s.held)
	t.Cleanup(s.release)
	s.url = relay(t, server, func(client, upstream net.Conn) {
		layers := make(chan bool, 1)
		go s.up(client, upstream, layers)
		go s.down(client, upstream, layers)
	})
	return s
}

// up relays what the client sends; its first words tell what the connection is for.
func (s *slowLink) up(client, server net.Conn, layers chan<- bool) {
	defer server.Close()
	buf := make([]byte, linkPiece)
	n, err := client.Read(buf)
	is := bytes.Contains(buf[:n], []byte("worker layers"))
	layers <- is
	if _, werr := server.Write(buf[:n]); err == nil && werr == nil {
		s.relay(server, client, is)
	}
}

func (s *slowLink) down(client, server net.Conn, layers <-chan bool) {
	defer client.Close()
	// The server speaks first.
	buf := make([]byte, linkPiece)
	n, err := server.Read(buf)
	if _, werr := client.Write(buf[:n]); err == nil && werr == nil {
		s.relay(client, server, <-layers)
	}
}

// relay keeps pieces for the delay and lets them out at the rate.
func (s *slowLink) relay(dst io.Writer, src io.Reader, layers bool) {
	type piece struct {
		data []byte
		due  time.Time
	}
	pieces := make(chan piece, 1+int(linkRate*linkDelay/time.Second)/linkPiece)
	go func() {
		defer close(pieces)
		for {
			buf := make([]byte, linkPiece)
			n, err := src.Read(buf)
			pieces <- piece{buf[:n], time.Now().Add(linkDelay)}
			if err != nil {
				return
			}
		}
	}()
	broken := false
	for p := range pieces {
		if broken {
			continue
		}
		<-time.After(time.Until(p.due) + time.Duration(len(p.data))*time.Second/linkRate)
		s.mu.Lock()
		held := s.held
		s.mu.Unlock()
		if layers {
			<-held
		}
		_, err := dst.Write(p.data)
		broken = err != nil
	}
}

func (s *slowLink) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = make(chan struct{})
}

func (s *slowLink) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.held:
	default:
		close(s.held)
	}
}

// Case I2: limits of transfers are on lack of progress. The link does 2 MiB/s after 100 ms, and
// the checkpoints are 5 MB.
func TestCase_I2(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Self())
	dir := c.Tree(t, "d", "echo x >a")
	link := startSlowLink(t, c.NATS())
	slow := &fleettest.Cluster{Place: c.With("NATS_URL=" + link.url), Client: c.Client, Fleet: c.Fleet}
	slow.Worker(t, "w1", "--transfer-stall", linkStall.String())
	head := "apply: never\ntimeout: 1h\ndefaults: {timeout: 3s}\n" + fleettest.Resource(dir) // steps: far less than a transfer takes
	upload := func(t *testing.T, id string) {
		t.Helper()
		before := c.LayersState(t).Bytes
		c.Until(t, id, "the end of the step", fleettest.IsType(events.TypeStepFinished))
		fleettest.Eventually(t, "an upload", func() bool { return c.LayersState(t).Bytes > before+1<<20 })
	}
	var stored string
	t.Run("SlowIsNoFailure", func(t *testing.T) {
		v := c.Ended(t, c.Submit(t, c.Plan(t, head, fleettest.RandomScript(5_000_000))), events.StateExecuted)
		stored = v.Checkpoints[len(v.Checkpoints)-1].ID
	})
	t.Run("PausePasses", func(t *testing.T) {
		id := c.Submit(t, c.Plan(t, head, fleettest.RandomScript(5_000_000)))
		upload(t, id)
		link.hold()
		<-time.After(linkStall / 2)
		link.release()
		c.Ended(t, id, events.StateExecuted)
	})
	t.Run("CancelEndsSoon", func(t *testing.T) {
		id := c.Submit(t, c.Plan(t, head, fleettest.RandomScript(5_000_000)))
		upload(t, id)
		start := time.Now()
		c.Do(t, "warmfleet", "plan", "cancel", id)
		c.Ended(t, id, events.StateCancelled)
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("the cancel took %v", took)
		}
	})
	t.Run("StandStillFailsClearly", func(t *testing.T) {
		id := c.Submit(t, c.Plan(t, head, fleettest.RandomScript(5_000_000)))
		upload(t, id)
		link.hold()
		defer link.release()
		v := c.Ended(t, id, events.StateFailed)
		if v.Error == nil || !strings.Contains(*v.Error, "no progress") || strings.Contains(*v.Error, "\n") {
			t.Errorf("the plan failed with %v, want one line that says that there was no progress", v.Error)
		}
	})
	t.Run("RollbackElsewhere", func(t *testing.T) {
		slow.Worker(t, "w2", "--transfer-stall", linkStall.String())
		r, err := c.Client.Rollback(t.Context(), stored, "w2")
		if want := (api.RolledBack{Sandbox: r.Sandbox, Worker: "w2", State: "active", Checkpoint: stored}); err != nil || r != want {
			t.Errorf("rollback: %+v, %v, want %+v", r, err, want)
		}
	})
}
