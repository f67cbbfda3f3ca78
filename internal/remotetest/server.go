// Package remotetest gives tests the remotes that git meets: repositories behind git's own servers, slow and silent ones,
// and a look at the gits that are left. It knows nothing of what fetches from them.
//
// Nothing but tests imports it.
package remotetest

import (
	"io"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// User is the name that a Server with a password wants.
const User = "bot"

// Server serves all repositories below a directory by git's own HTTP server.
type Server struct {
	URL string
	// Requests is how many came so far.
	Requests atomic.Int64
	password atomic.Value
}

// Serve serves repositories; with a password, only to User. They may belong to anybody.
func Serve(t testing.TB, root, password string) *Server {
	t.Helper()
	s := &Server{}
	s.Require(password)
	backend := &cgi.Handler{
		Path: filepath.Join(execPath(t), "git-http-backend"),
		Env:  append([]string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1"}, anyOwner()...), InheritEnv: []string{"PATH"}, Stderr: io.Discard,
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		s.Requests.Add(1)
		want := s.password.Load().(string)
		if name, pass, _ := req.BasicAuth(); want != "" && (name != User || pass != want) {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			http.Error(w, "who are you", http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, req)
	}))
	t.Cleanup(srv.Close)
	s.URL = srv.URL
	return s
}

// Require changes the password; "" is none.
func (s *Server) Require(password string) { s.password.Store(password) }

func execPath(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatalf("git --exec-path: %v", err)
	}
	return strings.TrimSpace(string(out))
}

func anyOwner() []string {
	return []string{"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}
}

// Daemon serves all repositories below a directory by git's own protocol, and returns the URL of the directory.
func Daemon(t testing.TB, root string) string {
	t.Helper()
	program := filepath.Join(execPath(t), "git-daemon")
	address := listen(t, func(c net.Conn) {
		cmd := exec.Command(program, "--inetd", "--export-all", "--base-path="+root, root)
		cmd.Env = append([]string{"PATH=/usr/bin:/bin"}, anyOwner()...)
		f, err := c.(*net.TCPConn).File()
		if err != nil {
			return
		}
		defer func() { _ = f.Close() }()
		cmd.Stdin, cmd.Stdout = f, f
		_ = cmd.Run() // the client's side tells
	})
	return "git://" + address
}

// listen gives each connection to serve, and ends and waits for all at the end of the test.
func listen(t testing.TB, serve func(net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var held sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	held.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			held.Go(func() {
				serve(c)
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		held.Wait()
	})
	return l.Addr().String()
}
