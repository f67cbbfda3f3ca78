package test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is a program that runs beside the test. It is killed at the end of the test.
type process struct {
	name   string
	cmd    *exec.Cmd
	output *transcript
	ended  chan struct{}
}

// start starts a prepared command, whose output goes to the transcript.
func start(t testing.TB, name string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{name: name, cmd: cmd, output: newTranscript(), ended: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = p.output
	}
	if cmd.Stderr == nil {
		cmd.Stderr = p.output
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		defer close(p.ended)
		cmd.Wait()
		p.output.close()
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("%s printed:\n%s", name, tail(p.output.String(), 3000))
		}
	})
	return p
}

// start starts a program of the place beside the test.
func (p *place) start(t testing.TB, label, name string, args ...string) *process {
	t.Helper()
	return start(t, label, p.command(context.WithoutCancel(t.Context()), name, args...))
}

// ready waits for the line by which daemons say that they serve.
func (p *process) ready(t testing.TB) *process {
	t.Helper()
	p.prints(t, "ready")
	return p
}

// prints waits for a line that begins with text.
func (p *process) prints(t testing.TB, text string) {
	t.Helper()
	if !p.output.await(patience, func(all string) bool { return strings.Contains("\n"+all, "\n"+text) }) {
		t.Fatalf("%s did not print %q:\n%s", p.name, text, tail(p.output.String(), 3000))
	}
}

func (p *process) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatalf("signal %s: %v", p.name, err)
	}
}

// kill ends the process as kill -9 does, and waits for its end.
func (p *process) kill(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGKILL)
	<-p.ended
}

// exit waits for the end and returns the exit code.
func (p *process) exit(t testing.TB, within time.Duration) int {
	t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		t.Fatalf("%s has not ended after %s:\n%s", p.name, within, tail(p.output.String(), 3000))
		return 0
	}
}

// transcript keeps what a process printed and wakes those who wait for it.
type transcript struct {
	mu     sync.Mutex
	buf    bytes.Buffer
	change chan struct{} // closed at the next change
	done   bool
}

func newTranscript() *transcript { return &transcript{change: make(chan struct{})} }

func (s *transcript) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf.Write(b)
	if !s.done {
		close(s.change)
		s.change = make(chan struct{})
	}
	return len(b), nil
}

func (s *transcript) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.done {
		s.done = true
		close(s.change)
	}
}

func (s *transcript) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// await waits until cond holds of all that was printed; false if the process ended first.
func (s *transcript) await(limit time.Duration, cond func(string) bool) bool {
	deadline := time.After(limit)
	for {
		s.mu.Lock()
		change, ok, done := s.change, cond(s.buf.String()), s.done
		s.mu.Unlock()
		if ok || done {
			return ok
		}
		select {
		case <-change:
		case <-deadline:
			return false
		}
	}
}

func tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return "..." + s[len(s)-n:]
}

// running counts processes of this machine with a word in their command line. Inits and
// test programs have no such words; the caller chooses one that nobody else uses.
func running(word string) int {
	n := 0
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil && bytes.Contains(append([]byte{0}, b...), []byte("\x00"+word+"\x00")) {
			n++
		}
	}
	return n
}
