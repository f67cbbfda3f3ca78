package egress_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/internal/egress"
)

// Each side can end its own direction and go on to receive.
func TestProxy_HalfClose(t *testing.T) {
	at := server(t, func(conn *net.TCPConn) {
		text, err := io.ReadAll(conn)
		if err != nil {
			t.Error(err)
		}
		fmt.Fprintf(conn, "%d bytes", len(text))
	})
	b := newBed(t, []string{at}, noNames, "")
	conn, in := b.tunnel(at)
	conn.Write(make([]byte, 100_000))
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(in); string(got) != "100000 bytes" {
		t.Errorf("got %q, %v", got, err)
	}
	heard := make(chan string, 1)
	early := server(t, func(conn *net.TCPConn) {
		io.WriteString(conn, "bye")
		conn.CloseWrite()
		text, _ := io.ReadAll(conn)
		heard <- string(text)
	})
	b = newBed(t, []string{early}, noNames, "")
	conn, in = b.tunnel(early)
	if got, err := io.ReadAll(in); string(got) != "bye" {
		t.Errorf("got %q, %v", got, err)
	}
	io.WriteString(conn, "still heard")
	conn.CloseWrite()
	if got := <-heard; got != "still heard" {
		t.Errorf("after its end the host got %q", got)
	}
}

// Bytes that come with CONNECT in one piece belong to the tunnel.
func TestProxy_EarlyBytes(t *testing.T) {
	at := server(t, echo)
	b := newBed(t, []string{at}, noNames, "")
	conn := b.dial()
	io.WriteString(conn, "CONNECT "+at+" HTTP/1.1\r\n\r\nearly")
	conn.CloseWrite()
	if got, err := io.ReadAll(conn); !strings.HasSuffix(string(got), "\r\n\r\nearly") {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestProxy_LargeTransfer(t *testing.T) {
	const size = 64 << 20
	at := server(t, echo)
	b := newBed(t, []string{at}, noNames, "")
	conn, in := b.tunnel(at)
	sent, got := sha256.New(), sha256.New()
	var up sync.WaitGroup
	up.Go(func() {
		if _, err := io.Copy(io.MultiWriter(conn, sent), io.LimitReader(rand.Reader, size)); err != nil {
			t.Error(err)
		}
		conn.CloseWrite()
	})
	n, err := io.Copy(got, in)
	up.Wait()
	if err != nil || n != size || !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		t.Errorf("got %d bytes, %v; the same: %v", n, err, bytes.Equal(sent.Sum(nil), got.Sum(nil)))
	}
}

// More connections than are served at once wait for their turn.
func TestProxy_ManyAtOnce(t *testing.T) {
	var now, most atomic.Int32
	at := server(t, func(conn *net.TCPConn) {
		n := now.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		io.Copy(conn, conn)
		now.Add(-1)
	})
	const conns = 16
	b := newBed(t, []string{at}, noNames, "", func(c *egress.Config) { c.Conns = conns })
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			conn, err := net.Dial("tcp", b.addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(patience))
			text := fmt.Sprint("number ", i)
			fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\n\r\n%s", at, text)
			conn.(*net.TCPConn).CloseWrite()
			if got, err := io.ReadAll(conn); !strings.HasSuffix(string(got), "\r\n\r\n"+text) {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	all.Wait()
	if got := most.Load(); got > conns+1 { // the host may see an end a moment later than the proxy
		t.Errorf("%d connections at once, want at most %d", got, conns)
	}
	if got := b.proxy.Decisions(); len(got.List) != 1 || got.List[0].Count != 200 {
		t.Errorf("decisions: %+v", got)
	}
}

// ended waits for the end of a connection, however it comes.
func ended(t *testing.T, conn net.Conn) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, conn); err != nil {
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			t.Error("the connection did not end")
		}
	}
}

func TestProxy_CloseEndsAll(t *testing.T) {
	gone := make(chan struct{})
	at := server(t, func(conn *net.TCPConn) {
		io.Copy(io.Discard, conn)
		close(gone)
	})
	b := newBed(t, []string{at}, noNames, "")
	conn, _ := b.tunnel(at)
	half := b.dial()
	io.WriteString(half, "CONNECT ")
	b.proxy.Close()
	b.proxy.Close()
	ended(t, conn)
	ended(t, half)
	select {
	case <-gone:
	case <-time.After(patience):
		t.Error("the host still has its connection")
	}
	if c, err := net.Dial("tcp", b.addr); err == nil {
		c.Close()
		t.Error("it still listens")
	}
}

func TestProxy_EndsWhatIsIdle(t *testing.T) {
	at := server(t, func(conn *net.TCPConn) { io.Copy(io.Discard, conn) })
	short := func(c *egress.Config) { c.Idle, c.Head = 50*time.Millisecond, 50*time.Millisecond }
	b := newBed(t, []string{at}, noNames, "", short)
	conn, _ := b.tunnel(at)
	ended(t, conn)
	conn = b.dial()
	io.WriteString(conn, "GET http://"+at+"/ HT")
	if got, _ := io.ReadAll(conn); !strings.HasPrefix(string(got), "HTTP/1.1 408") {
		t.Errorf("half a request: got %q", got)
	}
}

func TestProxy_HostDoesNotAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	l.Close()
	b := newBed(t, []string{at}, noNames, "")
	if got := b.say("CONNECT " + at + " HTTP/1.1\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 502") || !strings.Contains(got, "connection refused") {
		t.Errorf("got %q", got)
	}
	if d := b.proxy.Decisions().List; len(d) != 1 || d[0].Verdict != egress.Failed || !strings.Contains(d[0].Why, "connection refused") {
		t.Errorf("decisions: %+v", d)
	}
	silent := server(t, func(conn *net.TCPConn) { conn.Read(make([]byte, 1)) })
	b = newBed(t, []string{silent}, noNames, "")
	if got := b.say("GET http://" + silent + "/ HTTP/1.1\r\nHost: " + silent + "\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 502") {
		t.Errorf("no answer: got %q", got)
	}
}

func TestProxy_OneRequestOnly(t *testing.T) {
	seen := make(chan string, 10)
	at := server(t, func(conn *net.TCPConn) {
		var got bytes.Buffer
		buf := make([]byte, 4096)
		for !bytes.Contains(got.Bytes(), []byte("END")) {
			n, err := conn.Read(buf)
			got.Write(buf[:n])
			if err != nil {
				break
			}
		}
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
		conn.CloseWrite()
		rest, _ := io.ReadAll(conn)
		seen <- got.String() + string(rest)
	})
	b := newBed(t, []string{at}, noNames, "")
	second := "GET http://" + at + "/second HTTP/1.1\r\nHost: evil.example\r\n\r\n"
	for name, body := range map[string]string{
		"Length":  "Content-Length: 3\r\n\r\nEND" + second,
		"Chunked": "Transfer-Encoding: chunked\r\n\r\n3\r\nEND\r\n0\r\n\r\n" + second,
	} {
		got := b.say("POST http://" + at + "/first HTTP/1.1\r\nHost: " + at + "\r\n" + body)
		if strings.Contains(got, "forged") || !strings.HasSuffix(got, "\r\n\r\nok") {
			t.Errorf("%s: the client got %q", name, got)
		}
		if sent := <-seen; strings.Contains(sent, "second") || strings.Contains(sent, "evil") {
			t.Errorf("%s: the host got %q", name, sent)
		}
	}
}
