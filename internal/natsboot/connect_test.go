package natsboot

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/spf13/pflag"
)

// clearEnv unsets the variables that the nats command line reads.
func clearEnv(t *testing.T) {
	t.Helper()
	for _, s := range (&ConnFlags{}).strings() {
		if s.env != "" {
			t.Setenv(s.env, "")
		}
	}
	t.Setenv("NATS_TIMEOUT", "")
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
}

func parse(t *testing.T, args ...string) *ConnFlags {
	t.Helper()
	f := &ConnFlags{}
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.Register(fs)
	must(t, fs.Parse(args))
	return f
}

func TestConnFlags_Names(t *testing.T) {
	f := &ConnFlags{}
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.Register(fs)
	// From nats/main.go of natscli v0.5.0.
	for _, name := range strings.Fields("server user password token creds nkey jwt seed tlscert tlskey tlsca tlsfirst timeout " +
		"js-domain js-api-prefix inbox-prefix connection-name context socks-proxy") {
		if fs.Lookup(name) == nil {
			t.Errorf("no flag --%s", name)
		}
	}
	if s := fs.ShorthandLookup("s"); s == nil || s.Name != "server" {
		t.Errorf("-s: got %v, want --server", s)
	}
}

func TestConnFlags_Given(t *testing.T) {
	tests := []struct {
		name string
		env  map[string]string
		args []string
		want bool
	}{
		{"Nothing", nil, nil, false},
		{"Server", nil, []string{"-s", "nats://h:1"}, true},
		{"Context", nil, []string{"--context", "c"}, true},
		{"NATS_URL", map[string]string{"NATS_URL": "nats://h:1"}, nil, true},
		{"NATS_CONTEXT", map[string]string{"NATS_CONTEXT": "c"}, nil, true},
		{"CredentialsOnly", map[string]string{"NATS_USER": "u", "NATS_CREDS": "c"}, []string{"--password", "p"}, false},
		{"EmptyFlagBeatsVariable", map[string]string{"NATS_URL": "nats://h:1"}, []string{"--server="}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			clearEnv(t)
			// A merely selected context.
			root := os.Getenv("XDG_CONFIG_HOME")
			must(t, os.MkdirAll(filepath.Join(root, "nats", "context"), 0o700))
			must(t, os.WriteFile(filepath.Join(root, "nats", "context.txt"), []byte("selected"), 0o600))
			must(t, os.WriteFile(filepath.Join(root, "nats", "context", "selected.json"), []byte(`{"url":"nats://selected:1"}`), 0o600))
			for k, v := range tt.env {
				t.Setenv(k, v)
			}
			if got := parse(t, tt.args...).Given(); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestConnFlags_FlagBeatsVariable(t *testing.T) {
	clearEnv(t)
	t.Setenv("NATS_URL", "nats://variable:1")
	t.Setenv("NATS_TIMEOUT", "7s")
	r, err := parse(t).resolve()
	must(t, err)
	if r.Server != "nats://variable:1" || r.Timeout != 7*time.Second {
		t.Errorf("from variables: %q, %v", r.Server, r.Timeout)
	}
	r, err = parse(t, "-s", "nats://flag:1", "--timeout", "2s").resolve()
	must(t, err)
	if r.Server != "nats://flag:1" || r.Timeout != 2*time.Second {
		t.Errorf("from flags: %q, %v", r.Server, r.Timeout)
	}
	t.Setenv("NATS_TIMEOUT", "soon")
	if _, err := parse(t).resolve(); err == nil || !strings.Contains(err.Error(), "NATS_TIMEOUT") {
		t.Errorf("bad NATS_TIMEOUT: got %v", err)
	}
}

// tokenServer accepts one token.
func tokenServer(t *testing.T) string {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, Authorization: "s3cret", NoLog: true, NoSigs: true})
	must(t, err)
	s.Start()
	t.Cleanup(s.Shutdown)
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("server is not ready")
	}
	return s.ClientURL()
}

func TestConnFlags_Connect(t *testing.T) {
	clearEnv(t)
	s, _ := boot(t, Options{Lock: acquire(t, t.TempDir()), Context: true})
	env := s.Env()
	token := tokenServer(t)
	file := filepath.Join(t.TempDir(), "c.json")
	must(t, os.WriteFile(file, []byte(`{"url":"`+env.URL+`","user":"`+env.User+`","password":"`+env.Password+`","inbox_prefix":"_INBOX_file"}`), 0o600))
	tests := []struct {
		name string
		env  map[string]string
		args []string
		want string // URL, or "" for ErrRefused
	}{
		{"Flags", nil, []string{"-s", env.URL, "--user", env.User, "--password", env.Password}, env.URL},
		{"Variables", map[string]string{"NATS_URL": env.URL, "NATS_USER": env.User, "NATS_PASSWORD": env.Password}, nil, env.URL},
		{"Context", nil, []string{"--context", ContextName}, env.URL},
		{"ContextVariable", map[string]string{"NATS_CONTEXT": ContextName}, nil, env.URL},
		{"ContextFile", nil, []string{"--context", file}, env.URL},
		{"FlagOverContext", nil, []string{"--context", ContextName, "--password", "wrong"}, ""},
		{"Token", nil, []string{"-s", token, "--token", "s3cret"}, token},
		{"UserAloneIsToken", nil, []string{"-s", token, "--user", "s3cret"}, token},
		{"NoCredentials", nil, []string{"-s", env.URL}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for k, v := range tt.env {
				t.Setenv(k, v)
			}
			nc, err := parse(t, tt.args...).Dial(t.Context(), ConnectOptions{Name: "n"})
			if tt.want == "" {
				if !errors.Is(err, ErrRefused) {
					t.Errorf("got %v, want ErrRefused", err)
				}
				return
			}
			must(t, err)
			defer nc.Close()
			if nc.ConnectedUrl() != tt.want || nc.Opts.Name != "n" {
				t.Errorf("connected to %s as %q, want %s", nc.ConnectedUrl(), nc.Opts.Name, tt.want)
			}
		})
	}
	nc, err := parse(t, "--context", file).Dial(t.Context(), ConnectOptions{InboxPrefix: "_INBOX_role"})
	must(t, err)
	defer nc.Close()
	if nc.Opts.InboxPrefix != "_INBOX_file" {
		t.Errorf("inbox prefix: got %q, want the context's", nc.Opts.InboxPrefix)
	}
}

func TestConnFlags_UnknownContext(t *testing.T) {
	clearEnv(t)
	_, err := parse(t, "--context", "nope").Dial(t.Context(), ConnectOptions{})
	if err == nil || !strings.Contains(err.Error(), "nope") || errors.Is(err, ErrUnreachable) {
		t.Errorf("got %v, want an error that names the context", err)
	}
}

func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, l.Close())
	return l.Addr().String()
}

func TestConnFlags_Unreachable(t *testing.T) {
	clearEnv(t)
	addr := closedPort(t)
	for _, url := range []string{"nats://" + addr, "nats://me:hunter2@" + addr, "nats://me:hunter2@[bad", addr + ",me:hunter2@" + addr} {
		start := time.Now()
		_, err := parse(t, "-s", url).Dial(t.Context(), ConnectOptions{})
		if !errors.Is(err, ErrUnreachable) {
			t.Errorf("%s: got %v, want ErrUnreachable", url, err)
			continue
		}
		msg := err.Error()
		if strings.Contains(msg, "hunter2") || strings.Contains(msg, "\n") || !strings.Contains(msg, "-s") {
			t.Errorf("message: %q", msg)
		}
		if took := time.Since(start); took > 6*time.Second {
			t.Errorf("%s: took %v", url, took)
		}
	}
}

// A server that accepts and says nothing ends at the caller's deadline.
func TestConnFlags_Silent(t *testing.T) {
	clearEnv(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err = parse(t, "-s", "nats://"+l.Addr().String()).Dial(ctx, ConnectOptions{})
	if !errors.Is(err, ErrUnreachable) {
		t.Errorf("got %v, want ErrUnreachable", err)
	}
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("took %v", took)
	}
}

// A daemon outlives a server that comes late.
func TestConnFlags_DaemonWaits(t *testing.T) {
	clearEnv(t)
	addr := closedPort(t)
	dir := t.TempDir()
	must(t, Env{URL: "nats://" + addr, User: "u", Password: "p"}.write(dir))
	f := parse(t, "-s", "nats://"+addr, "--user", "u", "--password", "p")
	nc, err := f.Dial(t.Context(), ConnectOptions{Daemon: true})
	must(t, err)
	defer nc.Close()
	connected := nc.StatusChanged(nats.CONNECTED)
	if nc.IsConnected() {
		t.Fatal("connected to nothing")
	}
	boot(t, Options{Lock: acquire(t, dir), Listen: addr})
	select {
	case <-connected:
	case <-time.After(10 * time.Second):
		t.Fatal("not connected 10 s after the server came")
	}
}

func TestRedact(t *testing.T) {
	tests := []struct{ url, want string }{
		{"nats://h:4222", "nats://h:4222"},
		{"nats://u:p@h:4222", "nats://xxxxx@h:4222"},
		{"tls://tok@h", "tls://xxxxx@h"},
		{"u:p@h:1, nats://u:p@@g:2", "nats://xxxxx@h:1,nats://xxxxx@g:2"},
		{"nats://u:p%zz@[h", "nats://xxxxx@[h"},
		{"", ""},
	}
	for _, tt := range tests {
		if got := Redact(tt.url); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.url, got, tt.want)
		}
	}
}
