package credential

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const secret = "S3cr3t"

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSource_Get(t *testing.T) {
	t.Setenv("WARMFLEET_TEST_TOKEN", " "+secret+"\n")
	sh := func(script string) Source { return Source{Command: []string{"/bin/sh", "-c", script}} }
	for _, tt := range []struct {
		name   string
		source Source
		want   Credential
	}{
		{"Env", Source{Env: "WARMFLEET_TEST_TOKEN"}, Credential{DefaultUser, secret}},
		{"File", Source{File: write(t, secret+"\r\n")}, Credential{DefaultUser, secret}},
		{"FileOfHelper", Source{File: write(t, "protocol=https\nusername=bot\npassword=a:b=c\n")}, Credential{"bot", "a:b=c"}},
		{"HelperWithoutUser", Source{File: write(t, "password=p\n")}, Credential{DefaultUser, "p"}},
		{"UserAndToken", Source{File: write(t, "bot:"+secret)}, Credential{"bot", secret}},
		{"Command", sh("echo " + secret), Credential{DefaultUser, secret}},
		{"NoStdin", sh("cat; echo " + secret), Credential{DefaultUser, secret}},
		{"CleanEnvironment", sh(`echo "x${WARMFLEET_TEST_TOKEN}x"`), Credential{DefaultUser, "xx"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.source.Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A value is read anew each time: tokens are rotated.
func TestSource_GetAnew(t *testing.T) {
	path := write(t, "one")
	s := Source{File: path}
	if got, err := s.Get(t.Context()); err != nil || got.Password != "one" {
		t.Fatalf("got %v, %v", got, err)
	}
	if err := os.WriteFile(path, []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Get(t.Context()); err != nil || got.Password != "two" {
		t.Errorf("got %v, %v, want two", got, err)
	}
}

// Errors say which source it is and why, on one line, and nothing of a value.
func TestSource_Errors(t *testing.T) {
	t.Setenv("WARMFLEET_TEST_EMPTY", "  ")
	none := filepath.Join(t.TempDir(), "none")
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		source Source
		want   string
	}{
		{"NoVariable", Source{Env: "WARMFLEET_TEST_NONE"}, `credential: variable "WARMFLEET_TEST_NONE": no credential: it is not set in the worker's environment`},
		{"Empty", Source{Env: "WARMFLEET_TEST_EMPTY"}, `its value is empty`},
		{"NoFile", Source{File: none}, `credential: file "` + none + `": no credential: no such file or directory`},
		{"Pipe", Source{File: fifo}, `no regular file`},
		{"TooLong", Source{File: write(t, strings.Repeat(secret, maxValue))}, `longer than 16384 bytes`},
		{"LineBreak", Source{File: write(t, secret+"\n"+secret)}, `line break`},
		{"Failed", Source{Command: []string{"/bin/sh", "-c", "echo " + secret + "; echo " + secret + " >&2; exit 3"}}, `credential: command "/bin/sh": no credential: it failed with exit status 3`},
		{"NoProgram", Source{Command: []string{none, secret}}, `credential: command "` + none + `": no credential: no such file or directory`},
		{"Endless", Source{Command: []string{"/bin/sh", "-c", "yes " + secret + " | head -c 100000"}}, `longer than 16384 bytes`},
		{"NoSource", Source{}, `names no source`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := tt.source.Get(t.Context())
			if !errors.Is(err, ErrNone) || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v, want ErrNone: %s", err, tt.want)
			}
			if strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %q, want one line without the value", err)
			}
		})
	}
}

// A command that hangs ends with everything that it started.
func TestSource_Hanging(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	script := "sleep 1000 & echo $! >" + pids + "; wait"
	s := Source{Command: []string{"/bin/sh", "-c", script}, Timeout: 300 * time.Millisecond}
	if _, err := s.Get(t.Context()); !errors.Is(err, ErrNone) || !strings.Contains(err.Error(), "did not end within 300ms") {
		t.Errorf("got %v, want ErrNone with the limit", err)
	}
	wantDead(t, pids)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Get(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
}

// A command that says too much is ended at once, with everything that it started, though it heeds no closed pipe.
func TestSource_Endless(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	script := "trap '' PIPE; echo $$ >" + pids + "; while :; do echo " + strings.Repeat("x", 1000) + "; done 2>/dev/null"
	s := Source{Command: []string{"/bin/sh", "-c", script}, Timeout: time.Minute}
	if _, err := s.Get(t.Context()); !errors.Is(err, errLong) {
		t.Errorf("got %v, want %v", err, errLong)
	}
	wantDead(t, pids)
}

// wantDead waits until the process whose id is in a file is gone or a zombie.
func wantDead(t *testing.T, file string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Second); ; {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d still runs: %s", pid, stat)
		}
	}
}
