// Package egress lets what runs in a sandbox reach the hosts of a list, and nothing else.
//
// A Proxy serves a listener that was made inside the sandbox's network namespace, where no other way out exists, and dials
// from here. It takes CONNECT and plain HTTP. A name is resolved once, each address it has is checked, and the address that
// was checked is dialled: nothing asks for the name a second time. Addresses that are not of the internet (loopback,
// private, link-local, metadata and so on) are only dialled where they are listed as such.
//
// What is said within a CONNECT tunnel is not looked at. The package knows nothing of plans, sandboxes or events.
package egress

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// DefaultConns is how many connections of one proxy are served at once; others wait.
	DefaultConns = 128
	// DefaultIdle is how long a connection may carry nothing.
	DefaultIdle = 15 * time.Minute
	// DefaultHead bounds the wait for a request.
	DefaultHead = 15 * time.Second
	// dialLimit bounds resolving and dialling together, addressLimit one address of several.
	dialLimit    = 30 * time.Second
	addressLimit = 10 * time.Second
	// maxAddresses is how many addresses of a name are tried.
	maxAddresses = 6
	// lingerLimit bounds the wait for a client to take the last answer.
	lingerLimit = 2 * time.Second
	// acceptPause is between attempts to accept when this process has no descriptor left.
	acceptPause = 100 * time.Millisecond
)

// Config is what a proxy goes by. Only Listener is needed; without Rules nothing is allowed.
type Config struct {
	Listener net.Listener // closed by Close
	Rules    Rules
	// Never are addresses that are refused even when listed, this machine's other addresses with the same port included.
	Never func() []netip.AddrPort
	// Lookup resolves a name; the system's resolver if nil.
	Lookup func(ctx context.Context, name string) ([]netip.Addr, error)
	// Local are the addresses of this machine; those of its interfaces if nil.
	Local func() []netip.Addr
	// Dial connects to an address; it is never given a name. The system's if nil.
	Dial func(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error)
	// Conns, Idle and Head are DefaultConns, DefaultIdle and DefaultHead if zero.
	Conns      int
	Idle, Head time.Duration
}

func (c Config) complete() Config {
	if c.Never == nil {
		c.Never = func() []netip.AddrPort { return nil }
	}
	if c.Lookup == nil {
		c.Lookup = func(ctx context.Context, name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		}
	}
	if c.Local == nil {
		c.Local = interfaceAddrs
	}
	if c.Dial == nil {
		c.Dial = dialTCP
	}
	if c.Conns == 0 {
		c.Conns = DefaultConns
	}
	if c.Idle == 0 {
		c.Idle = DefaultIdle
	}
	if c.Head == 0 {
		c.Head = DefaultHead
	}
	return c
}

func dialTCP(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// interfaceAddrs are the addresses of this machine. Where they can't be read none is known, and loopback is refused anyway.
func interfaceAddrs() []netip.Addr {
	list, _ := net.InterfaceAddrs()
	var out []netip.Addr
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(n.IP); ok {
				out = append(out, addr.Unmap())
			}
		}
	}
	return out
}

// Proxy serves one sandbox. Its methods are safe for concurrent use.
type Proxy struct {
	config  Config
	special []specialRange
	ledger  ledger

	ctx  context.Context
	end  context.CancelFunc
	work sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{} // open ones, of both sides
}

// Start serves until Close.
func Start(c Config) *Proxy {
	p := &Proxy{config: c.complete(), special: specialRanges(), conns: map[net.Conn]struct{}{}}
	p.ctx, p.end = context.WithCancel(context.Background())
	p.work.Go(p.accept)
	return p
}

// Close ends every connection and returns when nothing runs on. Closing twice is fine.
func (p *Proxy) Close() {
	p.end()
	p.config.Listener.Close()
	p.mu.Lock()
	for c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.work.Wait()
}

// Decisions are those since the last call, alike ones counted together.
func (p *Proxy) Decisions() Decisions { return p.ledger.take() }

func (p *Proxy) accept() {
	slots := make(chan struct{}, p.config.Conns)
	for {
		select {
		case slots <- struct{}{}:
		case <-p.ctx.Done():
			return
		}
		conn, err := p.config.Listener.Accept()
		if err != nil {
			<-slots
			if p.ctx.Err() == nil && passing(err) {
				p.pause()
				continue
			}
			return
		}
		p.work.Go(func() {
			defer func() { <-slots }()
			p.serve(conn)
		})
	}
}

// passing tells errors of accept that are not the listener's end.
func passing(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (p *Proxy) pause() {
	select {
	case <-time.After(acceptPause):
	case <-p.ctx.Done():
	}
}

// hold makes Close close a connection; false: it was closed, since the proxy is.
func (p *Proxy) hold(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		c.Close()
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) drop(c net.Conn) {
	c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// serve answers the one request of a connection.
func (p *Proxy) serve(conn net.Conn) {
	client, ok := conn.(*net.TCPConn)
	if !ok {
		conn.Close()
		return
	}
	if !p.hold(client) {
		return
	}
	defer p.drop(client)
	client.SetDeadline(time.Now().Add(p.config.Head))
	in := bufio.NewReader(client)
	head, err := readHead(in)
	var r request
	if err == nil {
		r, err = parse(head)
	}
	var malformed errMalformed
	switch {
	case errors.As(err, &malformed):
		p.ledger.add(Decision{Verdict: Denied, Why: "malformed request: " + malformed.Error()})
		p.answer(client, reply(400, "malformed request: "+malformed.Error()))
		return
	case errors.Is(err, os.ErrDeadlineExceeded):
		p.answer(client, reply(408, "no whole request came"))
		return
	case err != nil:
		return
	}
	host, err := p.reach(r.target)
	if err != nil {
		p.refuse(client, err)
		return
	}
	if !p.hold(host) {
		return
	}
	defer p.drop(host)
	client.SetDeadline(time.Time{})
	if r.tunnel {
		p.tunnel(client, in, host)
		return
	}
	p.forward(client, in, host, r)
}

// refuse tells the client why it can't have what it asked for.
func (p *Proxy) refuse(client *net.TCPConn, err error) {
	var no *refused
	if errors.As(err, &no) {
		p.answer(client, reply(403, no.Error()))
		return
	}
	p.answer(client, reply(502, err.Error()))
}

// answer sends the last bytes of a connection and gives the client time to take them: closing with something unread would
// throw them away.
func (p *Proxy) answer(client *net.TCPConn, text []byte) {
	client.SetDeadline(time.Now().Add(lingerLimit))
	if _, err := client.Write(text); err == nil {
		linger(client)
	}
}

func linger(client *net.TCPConn) {
	if client.CloseWrite() != nil {
		return
	}
	client.SetReadDeadline(time.Now().Add(lingerLimit))
	buf := make([]byte, 4<<10)
	for range 64 {
		if _, err := client.Read(buf); err != nil {
			return
		}
	}
}
