package objectstore_test

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/pkg/objectstore"
)

const bucket = "LAYERS"

// startServer runs a server on a random loopback port until the test ends.
func startServer(t *testing.T, change func(*server.Options)) *server.Server {
	t.Helper()
	o := &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true}
	if change != nil {
		change(o)
	}
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("server is not ready")
	}
	return s
}

// connect returns JetStream at url; the connection comes back at once when it is cut.
func connect(t *testing.T, url string, opts ...nats.Option) jetstream.JetStream {
	t.Helper()
	opts = append([]nats.Option{nats.ReconnectWait(20 * time.Millisecond), nats.MaxReconnects(-1)}, opts...)
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func createBucket(t *testing.T, js jetstream.JetStream, maxBytes int64) jetstream.ObjectStore {
	t.Helper()
	ob, err := js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: bucket, MaxBytes: maxBytes})
	if err != nil {
		t.Fatal(err)
	}
	return ob
}

func openStore(t *testing.T, js jetstream.JetStream, o objectstore.Options) *objectstore.JetStream {
	t.Helper()
	o.Bucket = bucket
	s, err := objectstore.NewJetStream(js, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newStore is a store on a server and a bucket of its own, and nats.go's view of both.
func newStore(t *testing.T) (*objectstore.JetStream, jetstream.JetStream, jetstream.ObjectStore) {
	t.Helper()
	js := connect(t, startServer(t, nil).ClientURL())
	ob := createBucket(t, js, 0)
	return openStore(t, js, objectstore.Options{}), js, ob
}

func stream(t *testing.T, js jetstream.JetStream) jetstream.Stream {
	t.Helper()
	st, err := js.Stream(t.Context(), "OBJ_"+bucket)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// messages counts what the bucket's stream holds under filter.
func messages(t *testing.T, js jetstream.JetStream, filter string) uint64 {
	t.Helper()
	info, err := stream(t, js).Info(t.Context(), jetstream.WithSubjectFilter(filter))
	if err != nil {
		t.Fatal(err)
	}
	var n uint64
	for _, c := range info.State.Subjects {
		n += c
	}
	return n
}

// proxy is a TCP relay to a server that can be cut and held.
type proxy struct {
	listener net.Listener
	target   string

	mu    sync.Mutex
	conns map[net.Conn]bool
	held  chan struct{} // closed unless traffic is held
	wg    sync.WaitGroup
}

func startProxy(t *testing.T, s *server.Server) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, target: s.Addr().String(), conns: map[net.Conn]bool{}, held: make(chan struct{})}
	close(p.held)
	p.wg.Go(p.serve)
	t.Cleanup(func() {
		l.Close()
		p.release()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) url() string { return "nats://" + p.listener.Addr().String() }

func (p *proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		upstream, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[upstream] = true, true
		p.mu.Unlock()
		p.wg.Go(func() { p.pump(client, upstream) })
		p.wg.Go(func() { p.pump(upstream, client) })
	}
}

func (p *proxy) pump(dst, src net.Conn) {
	defer dst.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		p.mu.Lock()
		held := p.held
		p.mu.Unlock()
		<-held
		if _, werr := dst.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

// cut resets every connection; new ones are accepted.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, not an orderly end
		}
		c.Close()
		delete(p.conns, c)
	}
}

// hold stops traffic both ways; connections stay open.
func (p *proxy) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = make(chan struct{})
}

func (p *proxy) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.held:
	default:
		close(p.held)
	}
}

// hookReader calls hook once, when at bytes have been read. It can seek.
type hookReader struct {
	io.ReadSeeker
	at   int64
	hook func()
}

func (h *hookReader) Read(p []byte) (int, error) {
	if h.hook != nil && h.at <= 0 {
		h.hook()
		h.hook = nil
	}
	if h.hook != nil {
		p = p[:min(int64(len(p)), h.at)]
	}
	n, err := h.ReadSeeker.Read(p)
	h.at -= int64(n)
	return n, err
}

// onlyReader hides Seek.
type onlyReader struct{ io.Reader }
