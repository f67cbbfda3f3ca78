package fleettest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Process is a program that runs beside the test. It is killed at the end of the test.
type Process struct {
	Name   string
	Cmd    *exec.Cmd
	Output *Transcript
	Ended  chan struct{}
}

// Start starts a prepared command, whose output goes to the transcript.
func Start(t testing.TB, name string, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{Name: name, Cmd: cmd, Output: newTranscript(), Ended: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = p.Output
	}
	if cmd.Stderr == nil {
		cmd.Stderr = p.Output
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		defer close(p.Ended)
		cmd.Wait()
		p.Output.close()
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-p.Ended
		if t.Failed() {
			t.Logf("%s printed:\n%s", name, Tail(p.Output.String(), 3000))
		}
	})
	return p
}

// Start starts a program of the place beside the test.
func (p *Place) Start(t testing.TB, label, name string, args ...string) *Process {
	t.Helper()
	return Start(t, label, p.Command(context.WithoutCancel(t.Context()), name, args...))
}

// Ready waits for the line by which daemons say that they serve.
func (p *Process) Ready(t testing.TB) *Process {
	t.Helper()
	p.Prints(t, "ready")
	return p
}

// Prints waits for a line that begins with text.
func (p *Process) Prints(t testing.TB, text string) {
	t.Helper()
	if !p.Output.Await(Patience, func(all string) bool { return strings.Contains("\n"+all, "\n"+text) }) {
		t.Fatalf("%s did not print %q:\n%s", p.Name, text, Tail(p.Output.String(), 3000))
	}
}

// Signal sends the process a signal, which it must still be there for.
func (p *Process) Signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.Cmd.Process.Signal(s); err != nil {
		t.Fatalf("signal %s: %v", p.Name, err)
	}
}

// Kill ends the process as kill -9 does, and waits for its end.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	p.Signal(t, syscall.SIGKILL)
	<-p.Ended
}

// Exit waits for the end and returns the exit code.
func (p *Process) Exit(t testing.TB, within time.Duration) int {
	t.Helper()
	select {
	case <-p.Ended:
		return p.Cmd.ProcessState.ExitCode()
	case <-time.After(within):
		t.Fatalf("%s has not ended after %s:\n%s", p.Name, within, Tail(p.Output.String(), 3000))
		return 0
	}
}

// Running counts processes of this machine with a word in their command line. Inits and
// test programs have no such words; the caller chooses one that nobody else uses.
func Running(word string) int {
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
