package fleettest

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Place is a directory with a home and a state directory of its own, for programs that run
// under one account and know nothing else of this machine's environment.
type Place struct {
	Account
	Dir string   // holds home, work and tmp; gone at the end of the test
	Cwd string   // of programs
	Env []string // all of it
}

// NewPlace makes a place that only its account may write to.
func NewPlace(t testing.TB, a Account) *Place {
	t.Helper()
	dir, err := os.MkdirTemp("", "warmfleet-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { RemoveAll(t, dir) })
	p := &Place{Account: a, Dir: dir, Cwd: dir}
	Must(t, os.Chmod(dir, 0o755))
	for _, name := range []string{"home", "work", "tmp"} {
		Must(t, os.Mkdir(p.Path(name), 0o755))
	}
	p.Env = []string{
		"PATH=" + Bin(t) + ":/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=" + p.Path("home"), "TMPDIR=" + p.Path("tmp"),
		"XDG_STATE_HOME=" + p.Path("state"), "XDG_CONFIG_HOME=" + p.Path("config"), "LANG=C.UTF-8", "USER=tester",
	}
	p.Own(t, dir)
	return p
}

// Path is a path below the place's directory.
func (p *Place) Path(names ...string) string {
	return filepath.Join(append([]string{p.Dir}, names...)...)
}

// Own gives everything below dir to the place's account.
func (p *Place) Own(t testing.TB, dir string) {
	t.Helper()
	if p.Cred == nil {
		return
	}
	Must(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(p.Cred.Uid), int(p.Cred.Gid))
	}))
}

// Command prepares a program of the fleet or of the system, in the place's own environment.
func (p *Place) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	path := name
	if dir, err := programs(); err == nil && !strings.Contains(name, "/") {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			path = filepath.Join(dir, name)
		}
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Env = p.Cwd, p.Env
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.Cred, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// With returns the place with more variables in its environment.
func (p *Place) With(env ...string) *Place {
	q := *p
	q.Env = append(append([]string{}, p.Env...), env...)
	return &q
}

// Without returns the place without a variable in its environment.
func (p *Place) Without(name string) *Place {
	q := *p
	q.Env = nil
	for _, pair := range p.Env {
		if !strings.HasPrefix(pair, name+"=") {
			q.Env = append(q.Env, pair)
		}
	}
	return &q
}

// Run runs a program to its end, whatever its exit code.
func (p *Place) Run(t testing.TB, name string, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	defer cancel()
	cmd := p.Command(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("%s %s: %v, %v\n%s", name, strings.Join(args, " "), err, ctx.Err(), stderr.String())
	}
	return Result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// Warmfleet runs the command line to its end.
func (p *Place) Warmfleet(t testing.TB, args ...string) Result {
	t.Helper()
	return p.Run(t, "warmfleet", args...)
}

// Do runs a program that has to succeed and returns what it printed.
func (p *Place) Do(t testing.TB, name string, args ...string) string {
	t.Helper()
	r := p.Run(t, name, args...)
	if r.Code != 0 {
		t.Fatalf("%s %s: exit code %d\n%s%s", name, strings.Join(args, " "), r.Code, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// Sh runs a shell script in a directory; it has to succeed.
func (p *Place) Sh(t testing.TB, dir, script string) string {
	t.Helper()
	q := *p
	q.Cwd = dir
	return q.Do(t, "sh", "-euc", "umask 022\n"+script)
}
