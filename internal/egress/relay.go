package egress

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// copySize is how much is read at once.
	copySize = 32 << 10
	// maxAnswerHead bounds the head of a host's answer, in bytes.
	maxAnswerHead = 256 << 10
)

// tunnel carries bytes both ways until both sides have ended their own, or nothing came from either for too long.
func (p *Proxy) tunnel(client *net.TCPConn, in *bufio.Reader, host *net.TCPConn) {
	if _, err := io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	pair := &pair{idle: p.config.Idle, both: []*net.TCPConn{client, host}}
	pair.alive()
	var there sync.WaitGroup
	there.Go(func() { pair.carry(host, in) })
	pair.carry(client, host)
	there.Wait()
}

// pair is two connections that live as long as either carries something.
type pair struct {
	idle time.Duration
	both []*net.TCPConn
	next atomic.Int64 // when the deadlines are moved on again
}

// alive moves the deadlines, seldom enough to cost nothing.
func (p *pair) alive() {
	now := time.Now()
	if now.UnixNano() < p.next.Load() {
		return
	}
	p.next.Store(now.Add(p.idle / 16).UnixNano())
	for _, c := range p.both {
		c.SetDeadline(now.Add(p.idle))
	}
}

// carry hands on what comes from one side; its end is handed on too, and an error ends both.
func (p *pair) carry(to *net.TCPConn, from io.Reader) {
	buf := make([]byte, copySize)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			p.alive()
			if _, failed := to.Write(buf[:n]); failed != nil {
				err = failed
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			to.CloseWrite()
			return
		default:
			for _, c := range p.both {
				c.Close()
			}
			return
		}
	}
}

// forward relays one plain request and its answer. Both are written anew, so neither side can put a second one behind it.
func (p *Proxy) forward(client *net.TCPConn, in *bufio.Reader, host *net.TCPConn, r request) {
	pair := &pair{idle: p.config.Idle, both: []*net.TCPConn{client, host}}
	pair.alive()
	out, err := r.outgoing(&livelyReader{pair, bodyOf(in, r)})
	if err != nil {
		p.answer(client, reply(400, "malformed request: "+err.Error()))
		return
	}
	if r.waitsForGo {
		if _, err := io.WriteString(client, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
			return
		}
	}
	one := &http.Transport{
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxAnswerHead,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return livelyConn{host, pair}, nil },
	}
	defer one.CloseIdleConnections()
	res, err := one.RoundTrip(out.WithContext(p.ctx))
	if err == nil && res.StatusCode == http.StatusSwitchingProtocols {
		res.Body.Close()
		err = errors.New("it switched to another protocol unasked")
	}
	if err != nil {
		p.answer(client, reply(502, r.target.String()+" gave no answer: "+plain(err).Error()))
		return
	}
	defer res.Body.Close()
	stripHops(res.Header)
	res.Close = true
	if r.old {
		res.TransferEncoding = nil
	}
	if res.Write(livelyConn{client, pair}) != nil {
		client.SetLinger(0) // a reset: an answer that was cut short must not look whole
		return
	}
	linger(client)
}

// bodyOf is exactly the body of a request.
func bodyOf(in *bufio.Reader, r request) io.Reader {
	if r.length < 0 {
		return httputil.NewChunkedReader(in)
	}
	return io.LimitReader(in, r.length)
}

// livelyReader and livelyConn keep a pair alive by what they carry.
type livelyReader struct {
	pair *pair
	io.Reader
}

func (l *livelyReader) Read(b []byte) (int, error) {
	n, err := l.Reader.Read(b)
	if n > 0 {
		l.pair.alive()
	}
	return n, err
}

type livelyConn struct {
	net.Conn
	pair *pair
}

func (l livelyConn) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	if n > 0 {
		l.pair.alive()
	}
	return n, err
}

func (l livelyConn) Write(b []byte) (int, error) {
	n, err := l.Conn.Write(b)
	if n > 0 {
		l.pair.alive()
	}
	return n, err
}
