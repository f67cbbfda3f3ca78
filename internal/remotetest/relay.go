package remotetest

import (
	"context"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Relay stands between git and a server, and decides how answers come.
type Relay struct {
	// URL is the server's, with the relay in its place.
	URL string
	// Limit is how many bytes of answers pass before nothing more comes; 0 is all.
	Limit atomic.Int64
	// Rate bounds them, in bytes a second; 0 is as they come.
	Rate atomic.Int64
}

// Between puts a relay before the server of a URL.
func Between(t testing.TB, server string) *Relay {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	r, upstream := &Relay{}, u.Host
	ctx, cancel := context.WithCancel(context.Background())
	u.Host = listen(t, func(c net.Conn) { r.join(ctx, c, upstream) })
	t.Cleanup(cancel) // before the wait for what is open
	r.URL = u.String()
	return r
}

// Silence lets nothing more pass: who connects is accepted and never hears a word.
func (r *Relay) Silence() { r.Limit.Store(1) }

func (r *Relay) join(ctx context.Context, client net.Conn, upstream string) {
	server, err := net.Dial("tcp", upstream)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	stop := context.AfterFunc(ctx, func() { _, _ = client.Close(), server.Close() })
	defer stop()
	var asked sync.WaitGroup
	asked.Go(func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	})
	r.answer(ctx, client, server)
	_ = client.Close()
	asked.Wait()
}

func (r *Relay) answer(ctx context.Context, client io.Writer, server io.Reader) {
	buf := make([]byte, 4<<10)
	for {
		n, err := server.Read(buf)
		if limit := r.Limit.Load(); limit > 0 && r.Limit.Add(int64(-n)) <= 0 {
			r.Limit.Store(1) // nothing more
			<-ctx.Done()
			return
		}
		if rate := r.Rate.Load(); rate > 0 && n > 0 {
			select {
			case <-time.After(time.Duration(n) * time.Second / time.Duration(rate)):
			case <-ctx.Done():
				return
			}
		}
		if _, writeErr := client.Write(buf[:n]); err != nil || writeErr != nil {
			return
		}
	}
}

// Silent accepts connections and never says a word.
func Silent(t testing.TB) (address string, accepted <-chan struct{}) {
	t.Helper()
	ended, seen := make(chan struct{}), make(chan struct{}, 100)
	address = listen(t, func(net.Conn) {
		seen <- struct{}{}
		<-ended
	})
	t.Cleanup(func() { close(ended) })
	return address, seen
}
