package sandbox_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/egress"
	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/sandboxtest"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

// patience bounds every wait for something that has to happen, on a busy machine.
const patience = 20 * time.Second

// listed is a sandbox that may reach hosts.
func listed(t *testing.T, hosts []string, change ...func(*sandbox.Host)) *sandbox.Sandbox {
	t.Helper()
	bed := sandboxtest.New(t)
	for _, f := range change {
		f(&bed.Host)
	}
	dir := t.TempDir()
	sandboxtest.Write(t, dir, map[string]string{"a": "a"})
	chain, _ := bed.Base(t, dir)
	s, err := sandbox.New(t.Context(), bed.Host, sandbox.Spec{
		ID: events.NewID(), Strategy: sandbox.CopyOnWrite, Chain: chain, Network: isolate.NetworkProxy, Hosts: hosts,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// shell runs a script of bash, which can open TCP connections by itself, and returns what it prints.
func shell(t *testing.T, s *sandbox.Sandbox, text string) string {
	t.Helper()
	var out bytes.Buffer
	_, err := s.Exec(t.Context(), isolate.Command{
		Argv: []string{"/bin/bash", "-uc", text}, Env: s.BaseEnv(), Timeout: patience, Stdout: &out, Stderr: &out,
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// ask is a script that sends a request to the sandbox's proxy, or to where it is told, and prints the answer.
func ask(request string) string {
	return fmt.Sprintf(`p=${HTTP_PROXY#http://}; exec 3<>/dev/tcp/${p%%:*}/${p##*:} && printf '%s' >&3 && cat <&3`, strings.NewReplacer("\r", `\r`, "\n", `\n`, "%", "%%").Replace(request))
}

func TestSandbox_ReachesWhatIsListed(t *testing.T) {
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "hello from %s", r.Host) })
	good, other := httptest.NewServer(answer), httptest.NewServer(answer)
	defer good.Close()
	defer other.Close()
	at, not := good.Listener.Addr().String(), other.Listener.Addr().String()
	s := listed(t, []string{at, "name.example:80"}, func(h *sandbox.Host) {
		h.Egress.Lookup = func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		}
	})
	if got := shell(t, s, ask("GET http://"+at+"/ HTTP/1.1\r\nHost: "+at+"\r\n\r\n")); !strings.HasSuffix(got, "hello from "+at) {
		t.Errorf("listed: got %q", got)
	}
	if got := shell(t, s, ask("CONNECT "+at+" HTTP/1.1\r\n\r\nGET / HTTP/1.0\r\nHost: inner\r\n\r\n")); !strings.HasSuffix(got, "hello from inner") {
		t.Errorf("tunnel: got %q", got)
	}
	if got := shell(t, s, ask("CONNECT "+not+" HTTP/1.1\r\n\r\n")); !strings.HasPrefix(got, "HTTP/1.1 403") {
		t.Errorf("not listed: got %q", got)
	}
	if got := shell(t, s, ask("GET http://name.example/ HTTP/1.1\r\nHost: name.example\r\n\r\n")); !strings.Contains(got, "it resolves to 127.0.0.1, a loopback address") {
		t.Errorf("name of the inside: got %q", got)
	}
	_, port, _ := net.SplitHostPort(at)
	for _, direct := range []string{"127.0.0.1/" + port, "1.1.1.1/443", "8.8.8.8/53", "169.254.169.254/80"} {
		if got := shell(t, s, "exec 3<>/dev/tcp/"+direct+" && echo reached"); strings.Contains(got, "reached") {
			t.Errorf("%s was reached without the proxy", direct)
		}
	}
	if got := shell(t, s, "echo x 2>/dev/null >/dev/udp/8.8.8.8/53 && echo sent"); strings.Contains(got, "sent") {
		t.Error("a datagram was sent")
	}
	if got := shell(t, s, "tail -n +3 /proc/net/dev | cut -d: -f1; tail -n +2 /proc/net/route; cd /proc/self/fd && echo *"); !strings.HasPrefix(strings.TrimSpace(got), "lo\n0 1 2") {
		t.Errorf("interfaces, routes, descriptors: got %q", got)
	}
	if _, err := exec.LookPath("curl"); err == nil {
		if got := shell(t, s, "curl -sS http://"+at+"/ http://"+not+"/; curl -sS --proxytunnel http://"+at+"/; curl -sS --noproxy '*' http://"+at+"/"); !strings.HasPrefix(got, "hello from "+at+"warmfleet: "+not+" is refused: it is not in the list\nhello from "+at+"curl: (7)") {
			t.Errorf("curl: got %q", got)
		}
	}
	var verdicts []string
	for _, d := range s.Decisions().List {
		verdicts = append(verdicts, string(d.Verdict))
	}
	if d := cmp.Diff(verdicts, []string{"allowed", "denied", "denied"}); d != "" {
		t.Errorf("decisions (-got +want)\n%s", d)
	}
	if got := s.Decisions(); len(got.List) > 0 {
		t.Errorf("decisions were told twice: %+v", got)
	}
}

// The way out lasts as long as the sandbox: through checkpoints and rollbacks.
func TestSandbox_ReachesAfterFreezeAndReset(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "here") }))
	defer srv.Close()
	at := srv.Listener.Addr().String()
	s := listed(t, []string{at})
	try := func(when string) {
		t.Helper()
		if got := shell(t, s, ask("GET http://"+at+"/ HTTP/1.1\r\nHost: "+at+"\r\n\r\n")); !strings.HasSuffix(got, "here") {
			t.Errorf("%s: got %q", when, got)
		}
	}
	try("at first")
	chain, err := s.Freeze(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	try("after a checkpoint")
	if err := s.Reset(t.Context(), chain); err != nil {
		t.Fatal(err)
	}
	try("after a rollback")
}

// tunnelled runs a step that holds a tunnel open until ctx ends, and returns the host's end of it.
func tunnelled(ctx context.Context, t *testing.T, s *sandbox.Sandbox, l net.Listener, work *sync.WaitGroup) net.Conn {
	t.Helper()
	work.Go(func() {
		s.Exec(ctx, isolate.Command{
			Argv: []string{"/bin/bash", "-uc", ask("CONNECT " + l.Addr().String() + " HTTP/1.1\r\n\r\nhello\n")}, Env: s.BaseEnv(), Grace: time.Millisecond,
		})
	})
	l.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(conn, make([]byte, len("hello\n"))); err != nil {
		t.Fatal(err)
	}
	return conn
}

// The end of a step, and of its sandbox, ends the connections that it opened.
func TestSandbox_EndClosesConnections(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(s *sandbox.Sandbox, cancel func())
	}{
		{"Step", func(_ *sandbox.Sandbox, cancel func()) { cancel() }},
		{"Close", func(s *sandbox.Sandbox, _ func()) { s.Close() }},
		{"Killed", func(s *sandbox.Sandbox, _ func()) { syscall.Kill(s.Pid(), syscall.SIGKILL) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			s := listed(t, []string{l.Addr().String()})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var work sync.WaitGroup
			defer work.Wait()
			conn := tunnelled(ctx, t, s, l, &work)
			defer conn.Close()
			c.end(s, cancel)
			if _, err := conn.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
				t.Errorf("the connection is still open: %v", err)
			}
			cancel()
		})
	}
}

// Nothing of a sandbox's network is left when it is gone: no descriptor that keeps its namespace.
func TestSandbox_NetworkLeavesNothing(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which closes files that were forgotten
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "here") }))
	at := srv.Listener.Addr().String()
	bed := sandboxtest.New(t)
	dir := t.TempDir()
	sandboxtest.Write(t, dir, map[string]string{"a": "a"})
	chain, _ := bed.Base(t, dir)
	once := func(kill bool) {
		s, err := sandbox.New(t.Context(), bed.Host, sandbox.Spec{
			ID: events.NewID(), Strategy: sandbox.CopyOnWrite, Chain: chain, Network: isolate.NetworkProxy, Hosts: []string{at},
		})
		if err != nil {
			t.Fatal(err)
		}
		shell(t, s, ask("GET http://"+at+"/ HTTP/1.1\r\nHost: "+at+"\r\n\r\n"))
		if kill {
			open := sockets(t)
			syscall.Kill(s.Pid(), syscall.SIGKILL)
			<-s.Done()
			fewer(t, open-1) // the listener, whoever closes the sandbox later
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	once(false)
	once(true)
	srv.CloseClientConnections()
	before := sockets(t)
	for i := range 6 {
		once(i%2 == 0)
	}
	srv.CloseClientConnections()
	fewer(t, before)
	srv.Close()
}

// fewer waits until this process has no more than some sockets.
func fewer(t *testing.T, most int) {
	t.Helper()
	for end := time.Now().Add(patience); sockets(t) > most; {
		if time.Now().After(end) {
			t.Errorf("got %d sockets, want at most %d", sockets(t), most)
			return
		}
		runtime.Gosched()
	}
}

// sockets is how many this process has open.
func sockets(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range list {
		if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

// Many connections of one step at once all get through, and what is refused does not stop them.
func TestSandbox_ManyConnections(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "here\n") }))
	defer srv.Close()
	at := srv.Listener.Addr().String()
	s := listed(t, []string{at})
	const n = 40
	get, no := ask("GET http://"+at+"/ HTTP/1.1\r\nHost: "+at+"\r\n\r\n"), ask("CONNECT refused.example:443 HTTP/1.1\r\n\r\n")
	got := shell(t, s, "for i in $(seq "+strconv.Itoa(n)+"); do ( "+get+" ) & ( "+no+" ) & done; wait")
	if ok := strings.Count(got, "here\n"); ok != n {
		t.Errorf("got %d answers, want %d", ok, n)
	}
	want := egress.Decision{Host: "refused.example", Port: 443, Verdict: egress.Denied, Why: "it is not in the list", Count: n}
	for _, d := range s.Decisions().List {
		if d.Verdict == egress.Denied && d != want {
			t.Errorf("got %+v, want %+v", d, want)
		}
	}
}

func TestNew_BadList(t *testing.T) {
	bed := sandboxtest.New(t)
	dir := t.TempDir()
	sandboxtest.Write(t, dir, map[string]string{"a": "a"})
	chain, _ := bed.Base(t, dir)
	_, err := sandbox.New(t.Context(), bed.Host, sandbox.Spec{
		ID: events.NewID(), Strategy: sandbox.CopyOnWrite, Chain: chain, Network: isolate.NetworkProxy, Hosts: []string{"http://x"},
	})
	if err == nil {
		t.Error("got no error")
	}
}
