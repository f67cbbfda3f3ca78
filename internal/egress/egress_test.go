package egress_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/egress"
)

// patience bounds every wait for something that has to happen, on a busy machine.
const patience = 20 * time.Second

// bed is a proxy on this machine's loopback, and what it was asked to do.
type bed struct {
	t     *testing.T
	proxy *egress.Proxy
	addr  string

	mu      sync.Mutex
	lookups []string
	dialled []netip.AddrPort
}

// newBed starts a proxy that allows a list. Names are what names says at that time; whatever is dialled goes to to, if that is set.
func newBed(t *testing.T, list []string, names func(string) []string, to string, change ...func(*egress.Config)) *bed {
	t.Helper()
	rules, err := egress.ParseRules(list)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, addr: l.Addr().String()}
	c := egress.Config{
		Listener: l, Rules: rules,
		Lookup: func(_ context.Context, name string) ([]netip.Addr, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.lookups = append(b.lookups, name)
			var out []netip.Addr
			for _, text := range names(name) {
				out = append(out, netip.MustParseAddr(text))
			}
			if out == nil {
				return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
			}
			return out, nil
		},
		Dial: func(ctx context.Context, a netip.AddrPort) (*net.TCPConn, error) {
			b.mu.Lock()
			b.dialled = append(b.dialled, a)
			b.mu.Unlock()
			target := a.String()
			if to != "" {
				target = to
			}
			var d net.Dialer
			conn, err := d.DialContext(ctx, "tcp", target)
			if err != nil {
				return nil, err
			}
			return conn.(*net.TCPConn), nil
		},
	}
	for _, f := range change {
		f(&c)
	}
	b.proxy = egress.Start(c)
	t.Cleanup(b.proxy.Close)
	return b
}

// dial opens a connection to the proxy that a hung test does not wait for.
func (b *bed) dial() *net.TCPConn {
	b.t.Helper()
	conn, err := net.Dial("tcp", b.addr)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	return conn.(*net.TCPConn)
}

// say sends text and returns all that comes back.
func (b *bed) say(text string) string {
	b.t.Helper()
	conn := b.dial()
	if _, err := io.WriteString(conn, text); err != nil {
		b.t.Fatal(err)
	}
	out, err := io.ReadAll(conn)
	if err != nil {
		b.t.Fatalf("%v after %q", err, out)
	}
	return string(out)
}

// tunnel opens a tunnel and returns it and what reads from it.
func (b *bed) tunnel(to string) (*net.TCPConn, *bufio.Reader) {
	b.t.Helper()
	conn := b.dial()
	fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", to, to)
	in := bufio.NewReader(conn)
	res, err := http.ReadResponse(in, &http.Request{Method: http.MethodConnect})
	if err != nil || res.StatusCode != 200 {
		b.t.Fatalf("tunnel to %s: %v, %v", to, res, err)
	}
	return conn, in
}

func (b *bed) client() *http.Client {
	proxy := &url.URL{Scheme: "http", Host: b.addr}
	tr := &http.Transport{Proxy: func(*http.Request) (*url.URL, error) { return proxy, nil }}
	b.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// server answers connections of this machine's loopback, each on a goroutine.
func server(t *testing.T, each func(*net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		work.Wait()
	})
	work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer conn.Close()
				conn.SetDeadline(time.Now().Add(patience))
				each(conn.(*net.TCPConn))
			})
		}
	})
	return l.Addr().String()
}

func echo(conn *net.TCPConn) {
	io.Copy(conn, conn)
	conn.CloseWrite()
}

func noNames(string) []string { return nil }

func TestProxy_OnlyWhatIsListed(t *testing.T) {
	listed, other := server(t, echo), server(t, func(*net.TCPConn) { t.Error("the host that is not listed was reached") })
	b := newBed(t, []string{listed}, noNames, "")
	conn, in := b.tunnel(listed)
	io.WriteString(conn, "hello\n")
	if got, err := in.ReadString('\n'); got != "hello\n" {
		t.Errorf("got %q, %v", got, err)
	}
	_, port, _ := net.SplitHostPort(other)
	for _, text := range []string{
		"CONNECT " + other + " HTTP/1.1\r\n\r\n", "GET http://" + other + "/secret HTTP/1.1\r\nHost: " + other + "\r\n\r\n",
		"CONNECT [::ffff:127.0.0.1]:" + port + " HTTP/1.1\r\n\r\n", "CONNECT localhost:" + port + " HTTP/1.1\r\n\r\n",
		"CONNECT 127.0.0.2:" + port + " HTTP/1.1\r\n\r\n", "CONNECT 0.0.0.0:" + port + " HTTP/1.1\r\n\r\n",
	} {
		if got := b.say(text); !strings.HasPrefix(got, "HTTP/1.1 403 Forbidden\r\n") || !strings.Contains(got, "is not in the list") {
			t.Errorf("%.40q: got %q", text, got)
		}
	}
	b.say("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	host, at, _ := net.SplitHostPort(listed)
	var want egress.Decisions
	decision := func(host, port string, v egress.Verdict, why string, n int) {
		var p uint16
		fmt.Sscan(port, &p)
		want.List = append(want.List, egress.Decision{Host: host, Port: p, Verdict: v, Why: why, Count: n})
	}
	decision(host, at, egress.Allowed, "", 1)
	decision("127.0.0.1", port, egress.Denied, "it is not in the list", 3)
	decision("localhost", port, egress.Denied, "it is not in the list", 1)
	decision("127.0.0.2", port, egress.Denied, "it is not in the list", 1)
	decision("0.0.0.0", port, egress.Denied, "it is not in the list", 1)
	decision("", "0", egress.Denied, "malformed request: this is a proxy: the target has to be a whole URL", 1)
	if d := cmp.Diff(b.proxy.Decisions(), want); d != "" {
		t.Errorf("decisions (-got +want)\n%s", d)
	}
}

// A name that resolves to an address of the inside is refused, whichever it is; the list can name that address as well.
func TestProxy_ChecksWhatANameResolvesTo(t *testing.T) {
	to := server(t, echo)
	_, port, _ := net.SplitHostPort(to)
	answers := map[string][]string{
		"loopback.example": {"127.0.0.1"}, "mapped.example": {"::ffff:127.0.0.1"}, "private.example": {"10.0.0.1", "192.168.0.1"},
		"metadata.example": {"169.254.169.254"}, "nat64.example": {"64:ff9b::7f00:1"}, "zone.example": {"fe80::1%lo"},
		"public.example": {"1.1.1.1"}, "mixed.example": {"10.0.0.1", "1.1.1.1", "127.0.0.1"},
	}
	b := newBed(t, []string{"*.example:" + port}, func(n string) []string { return answers[n] }, to)
	for _, c := range []struct{ name, want string }{
		{"loopback", "403"},
		{"mapped", "403"},
		{"private", "403"},
		{"metadata", "403"},
		{"nat64", "403"},
		{"zone", "403"},
		{"none", "502"},
	} {
		if got := b.say("CONNECT " + c.name + ".example:" + port + " HTTP/1.1\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 "+c.want) {
			t.Errorf("%s: got %q", c.name, got)
		}
	}
	if len(b.dialled) > 0 {
		t.Errorf("dialled %v", b.dialled)
	}
	for _, name := range []string{"public", "mixed"} {
		conn, _ := b.tunnel(name + ".example:" + port)
		conn.Close()
	}
	public := netip.MustParseAddrPort("1.1.1.1:" + port)
	if d := cmp.Diff(b.dialled, []netip.AddrPort{public, public}, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); d != "" {
		t.Errorf("dialled (-got +want)\n%s", d)
	}
	decisions := b.proxy.Decisions().List
	if got, want := decisions[0].Why, "it resolves to 127.0.0.1, a loopback address: list 127.0.0.1:"+port+" too if that is meant"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	listed := newBed(t, []string{"loopback.example:" + port, "127.0.0.1:" + port}, func(n string) []string { return answers[n] }, "")
	conn, _ := listed.tunnel("loopback.example:" + port)
	conn.Close()
}

// DNS rebinding: a name whose second answer is an address of the inside. It is asked for once, and what was checked is dialled.
func TestProxy_ResolvesOnce(t *testing.T) {
	to := server(t, echo)
	var asked atomic.Int32
	b := newBed(t, []string{"rebind.example"}, func(string) []string {
		if asked.Add(1) == 1 {
			return []string{"1.1.1.1"}
		}
		return []string{"127.0.0.1"}
	}, to)
	conn, _ := b.tunnel("rebind.example:443")
	conn.Close()
	if got := asked.Load(); got != 1 {
		t.Errorf("the name was resolved %d times, want once", got)
	}
	if got := b.say("CONNECT rebind.example:443 HTTP/1.1\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 403") {
		t.Errorf("second answer: got %q", got)
	}
	if len(b.dialled) != 1 || b.dialled[0].String() != "1.1.1.1:443" {
		t.Errorf("dialled %v", b.dialled)
	}
}

func TestProxy_NeverTheFleetsOwnServer(t *testing.T) {
	own := server(t, func(*net.TCPConn) { t.Error("the fleet's server was reached") })
	addr := netip.MustParseAddrPort(own)
	here := netip.MustParseAddr("198.51.100.7")
	list := []string{own, fmt.Sprintf("127.0.0.2:%d", addr.Port()), fmt.Sprintf("[::1]:%d", addr.Port()), fmt.Sprintf("%s:%d", here, addr.Port()), fmt.Sprintf("name.example:%d", addr.Port())}
	b := newBed(t, list, func(string) []string { return []string{"127.0.0.1"} }, own, func(c *egress.Config) {
		c.Never = func() []netip.AddrPort { return []netip.AddrPort{addr} }
		c.Local = func() []netip.Addr { return []netip.Addr{here} }
	})
	for _, to := range list {
		if got := b.say("CONNECT " + to + " HTTP/1.1\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 403") || !strings.Contains(got, "the fleet's own server") {
			t.Errorf("%s: got %q", to, got)
		}
	}
}

func TestProxy_PlainHTTP(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/echo":
			w.Header().Set("X-Seen", fmt.Sprintf("%s %s %s|%d|%v|%s", r.Method, r.Host, r.URL.RawQuery, r.ContentLength, r.TransferEncoding, r.UserAgent()))
			io.Copy(w, r.Body)
		case "/moved":
			http.Redirect(w, r, "http://elsewhere.example/", http.StatusFound)
		case "/parts":
			for i := range 3 {
				fmt.Fprint(w, i)
				w.(http.Flusher).Flush()
			}
		case "/cut":
			w.Write([]byte("half"))
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
	}))
	defer srv.Close()
	at := srv.Listener.Addr().String()
	b := newBed(t, []string{at}, noNames, "")
	client := b.client()
	get := func(req *http.Request) (*http.Response, string, error) {
		t.Helper()
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		return res, string(text), err
	}
	request := func(method, path string, body io.Reader) *http.Request {
		t.Helper()
		r, err := http.NewRequest(method, srv.URL+path, body)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("User-Agent", "me")
		return r
	}
	for range 3 { // also when the client would keep its connection
		res, body, err := get(request("POST", "/echo?q=1", strings.NewReader("text")))
		if want := "POST " + at + " q=1|4|[]|me"; err != nil || body != "text" || res.Header.Get("X-Seen") != want {
			t.Errorf("got %q, %v, %v, want %s", body, err, res.Header, want)
		}
	}
	if _, body, err := get(request("POST", "/echo", io.MultiReader(strings.NewReader("in chunks")))); err != nil || body != "in chunks" {
		t.Errorf("chunked: got %q, %v", body, err)
	}
	waits := request("POST", "/echo", strings.NewReader("waits"))
	waits.Header.Set("Expect", "100-continue")
	if _, body, err := get(waits); err != nil || body != "waits" {
		t.Errorf("100-continue: got %q, %v", body, err)
	}
	if res, body, err := get(request("HEAD", "/echo", nil)); err != nil || body != "" || res.StatusCode != 200 {
		t.Errorf("HEAD: got %v, %q, %v", res.Status, body, err)
	}
	if res, _, _ := get(request("GET", "/moved", nil)); res.StatusCode != 302 || res.Header.Get("Location") != "http://elsewhere.example/" {
		t.Errorf("redirect: got %v, %v", res.Status, res.Header)
	}
	if _, body, err := get(request("GET", "/parts", nil)); err != nil || body != "012" {
		t.Errorf("parts: got %q, %v", body, err)
	}
	if _, body, err := get(request("GET", "/cut", nil)); err == nil {
		t.Errorf("an answer that was cut short came as a whole: %q", body)
	}
}

// An answer without a length that breaks off does not look as if it had ended.
func TestProxy_AnswerBreaksOff(t *testing.T) {
	at := server(t, func(conn *net.TCPConn) {
		bufio.NewReader(conn).ReadString('\n')
		io.WriteString(conn, "HTTP/1.0 200 OK\r\n\r\nhalf")
		conn.SetLinger(0)
	})
	b := newBed(t, []string{at}, noNames, "")
	conn := b.dial()
	fmt.Fprintf(conn, "GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", at, at)
	if got, err := io.ReadAll(conn); err == nil {
		t.Errorf("got %q as a whole answer", got)
	}
}
