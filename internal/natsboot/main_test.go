package natsboot

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// childEnv makes the test binary a process that uses the state directory in its value:
// it acquires it, serves or joins, prints one line, and goes on until stdin ends.
const childEnv = "NATSBOOT_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if err := child(dir); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func child(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	lock, joined, err := Acquire(ctx, dir)
	if err != nil {
		return err
	}
	if joined != nil {
		nc, err := joined.Dial(ctx, ConnectOptions{})
		if err != nil {
			return err
		}
		defer nc.Close()
		fmt.Println("joined", nc.ConnectedUrl())
	} else {
		srv, err := Start(ctx, Options{Lock: lock, Log: zerolog.Nop()})
		if err != nil {
			return err
		}
		fmt.Println("holder", srv.URL())
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// process is a running child.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   *bufio.Reader
}

func startChild(t *testing.T, dir string, env ...string) *process {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(append(os.Environ(), childEnv+"="+dir), env...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	p := &process{cmd: cmd, stdin: stdin, out: bufio.NewReader(stdout)}
	t.Cleanup(p.kill)
	return p
}

// says returns the role and the URL that the child prints.
func (p *process) says(t *testing.T) (role, rest string) {
	t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatalf("child said %q: %v", line, err)
	}
	role, rest, _ = strings.Cut(strings.TrimSpace(line), " ")
	return role, rest
}

// kill ends the child with SIGKILL, and waits for it.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait() // "signal: killed"
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
