package natsboot

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jsm.go/natscontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
)

// boot starts a server in dir and returns what stops it.
func boot(t *testing.T, o Options) (*Server, func()) {
	t.Helper()
	s, err := Start(t.Context(), o)
	must(t, err)
	stopped := false
	stop := func() {
		t.Helper()
		if stopped {
			return
		}
		stopped = true
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		must(t, s.Stop(ctx))
	}
	t.Cleanup(stop)
	return s, stop
}

func inProcess(t *testing.T, s *Server) jetstream.JetStream {
	t.Helper()
	nc, err := s.Connect()
	must(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	must(t, err)
	return js
}

func TestStart_Serves(t *testing.T) {
	dir := t.TempDir()
	s, _ := boot(t, Options{Lock: acquire(t, dir)})
	_, err := inProcess(t, s).CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	must(t, err)
	if _, err := nats.Connect(s.URL()); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("connect without credentials: got %v, want ErrAuthorization", err)
	}
	env, err := ReadEnv(dir)
	must(t, err)
	if env != s.Env() {
		t.Errorf("nats.env: got %+v, want %+v", env, s.Env())
	}
	nc, err := nats.Connect(env.URL, nats.UserInfo(env.User, env.Password))
	must(t, err)
	nc.Close()
	for _, file := range []string{envFile, lockFile} {
		fi, err := os.Stat(filepath.Join(dir, file))
		must(t, err)
		if fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %o, want 600", file, fi.Mode().Perm())
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "jetstream", "$G", "streams", "S")); err != nil {
		t.Error(err)
	}
}

// nats.env means the same to a shell, with and without set -a.
func TestStart_EnvSourceable(t *testing.T) {
	dir := t.TempDir()
	s, _ := boot(t, Options{Lock: acquire(t, dir)})
	out, err := exec.Command("sh", "-c", `. "$1" && env | grep ^NATS_ | sort`, "sh", filepath.Join(dir, envFile)).Output()
	must(t, err)
	want := "NATS_PASSWORD=" + s.Env().Password + "\nNATS_URL=" + s.Env().URL + "\nNATS_USER=" + s.Env().User + "\n"
	if string(out) != want {
		t.Errorf("got %q, want %q", out, want)
	}
}

// Case I4: data and credentials survive a stop and a kill, in another directory and with
// another TMPDIR; nothing is kept in a temporary place.
func TestStart_DataSurvives(t *testing.T) {
	dir, tmp := t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", tmp)
	publish := func(s *Server) {
		js := inProcess(t, s)
		_, err := js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
		must(t, err)
		_, err = js.Publish(t.Context(), "s", []byte("x"))
		must(t, err)
	}
	lock := acquire(t, dir)
	s, stop := boot(t, Options{Lock: lock})
	publish(s)
	first := s.Env()
	stop()
	must(t, lock.Close())
	if left, err := os.ReadDir(tmp); err != nil || len(left) != 0 {
		t.Errorf("left in TMPDIR: %v, %v", left, err)
	}

	holder := startChild(t, dir, "TMPDIR=/nonexistent")
	if role, rest := holder.says(t); role != "holder" || rest != first.URL {
		t.Fatalf("child: %s %s, want holder %s", role, rest, first.URL)
	}
	nc, err := nats.Connect(first.URL, nats.UserInfo(first.User, first.Password), nats.NoReconnect())
	must(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	must(t, err)
	_, err = js.Publish(t.Context(), "s", []byte("y"))
	must(t, err)
	holder.kill()

	t.Chdir(tmp)
	s, _ = boot(t, Options{Lock: acquire(t, dir)})
	if s.Env().Password != first.Password {
		t.Error("the password changed")
	}
	st, err := inProcess(t, s).Stream(t.Context(), "S")
	must(t, err)
	if n := st.CachedInfo().State.Msgs; n != 2 {
		t.Errorf("messages: got %d, want 2", n)
	}
}

func TestStart_PortTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	_, err = Start(t.Context(), Options{Lock: acquire(t, t.TempDir()), Listen: l.Addr().String()})
	oneLine(t, err, ErrListen, l.Addr().String())
}

func TestStart_LastPortTaken(t *testing.T) {
	dir := t.TempDir()
	lock := acquire(t, dir)
	s, stop := boot(t, Options{Lock: lock})
	url := s.URL()
	stop()
	l, err := net.Listen("tcp", strings.TrimPrefix(url, "nats://"))
	must(t, err)
	defer l.Close()
	s, _ = boot(t, Options{Lock: lock})
	if s.URL() == url {
		t.Errorf("still %s, which is taken", url)
	}
}

func TestStart_ListenRefused(t *testing.T) {
	lock := acquire(t, t.TempDir())
	tests := []struct {
		listen string
		want   error
	}{
		{"0.0.0.0:0", ErrNotLoopback},
		{":0", ErrNotLoopback},
		{"192.0.2.1:4222", ErrNotLoopback},
		{"example.com:4222", ErrNotLoopback},
		{"127.0.0.1", ErrListen},
		{"127.0.0.1:99999", ErrListen},
		{"127.0.0.1:nats", ErrListen},
	}
	for _, tt := range tests {
		_, err := Start(t.Context(), Options{Lock: lock, Listen: tt.listen})
		oneLine(t, err, tt.want, tt.listen)
	}
	s, _ := boot(t, Options{Lock: lock, Listen: "0.0.0.0:0", AllowRemote: true})
	if !strings.HasPrefix(s.URL(), "nats://127.0.0.1:") {
		t.Errorf("URL: got %s", s.URL())
	}
}

func TestStart_DiskFull(t *testing.T) {
	dir := mount(t, "4m")
	lock := acquire(t, dir)
	fill, err := os.Create(filepath.Join(dir, "fill"))
	must(t, err)
	defer fill.Close()
	for err == nil {
		_, err = fill.Write(make([]byte, 64<<10))
	}
	_, err = Start(t.Context(), Options{Lock: lock})
	oneLine(t, err, ErrStorage, dir)
}

func TestStart_ReadOnly(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("reason: root may write everywhere; TestStateDir_ReadOnly covers a read-only disk")
	}
	dir := t.TempDir()
	lock := acquire(t, dir)
	must(t, os.Chmod(dir, 0o500))
	t.Cleanup(func() { _ = os.Chmod(dir, 0o700) })
	_, err := Start(t.Context(), Options{Lock: lock})
	oneLine(t, err, ErrStorage, dir)
}

// A store that cannot be opened is an error of Start, not the end of the process.
func TestStart_StoreUnusable(t *testing.T) {
	dir := t.TempDir()
	lock := acquire(t, dir)
	must(t, os.WriteFile(filepath.Join(dir, "jetstream"), nil, 0o600))
	_, err := Start(t.Context(), Options{Lock: lock})
	oneLine(t, err, ErrStorage, dir)
}

func TestStart_Cancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	lock := acquire(t, t.TempDir())
	if _, err := Start(ctx, Options{Lock: lock}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	boot(t, Options{Lock: lock})
}

func TestStart_Logs(t *testing.T) {
	var buf bytes.Buffer
	_, stop := boot(t, Options{Lock: acquire(t, t.TempDir()), Log: zerolog.New(zerolog.SyncWriter(&buf))})
	stop()
	if !strings.Contains(buf.String(), "Listening for client connections") {
		t.Errorf("log: %s", buf.String())
	}
}

func TestStart_Context(t *testing.T) {
	xdg := filepath.Join(t.TempDir(), "made at first use")
	t.Setenv("XDG_CONFIG_HOME", xdg)
	s, _ := boot(t, Options{Lock: acquire(t, t.TempDir()), Context: true})
	file := filepath.Join(xdg, "nats", "context", ContextName+".json")
	fi, err := os.Stat(file)
	must(t, err)
	if fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %o, want 600", fi.Mode().Perm())
	}
	c, err := natscontext.NewFromFile(file)
	must(t, err)
	nc, err := c.Connect()
	must(t, err)
	nc.Close()
	if c.ServerURL() != s.URL() {
		t.Errorf("URL: got %s, want %s", c.ServerURL(), s.URL())
	}
	if _, err := os.Stat(filepath.Join(xdg, "nats", "context.txt")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a context was selected: %v", err)
	}
}

func TestConfigHome(t *testing.T) {
	home := t.TempDir()
	for _, tt := range []struct{ name, xdg, home, want string }{
		{"XDG", home, "/elsewhere", home},
		{"Account", "", home, filepath.Join(home, ".config")},
		{"None", "", "", ""},
		{"Gone", "", filepath.Join(home, "gone"), filepath.Join(home, "gone", ".config")},
		{"Relative", "config", home, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := configHome(tt.xdg, tt.home); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	if os.Geteuid() != 0 {
		if got := configHome("", "/root"); got != "" {
			t.Errorf("another user's home: got %q, want none", got)
		}
	}
}

// oneLine checks an error that a person reads.
func oneLine(t *testing.T, got, want error, names string) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	if !strings.Contains(got.Error(), names) || strings.Contains(got.Error(), "\n") {
		t.Errorf("message %q: want one line that names %q", got, names)
	}
}
