// Package credential gets what a remote is shown from where a pool's token says: an environment variable of the worker,
// a file on it, or a command that it runs.
//
// It is asked at each use and keeps nothing. It must not know remotes, git or what the value is good for.
package credential

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const (
	// DefaultUser goes with a value that names none: GitHub, GitLab and Gitea take any user beside a token, and this is what GitHub documents.
	DefaultUser = "x-access-token"
	// DefaultTimeout bounds a command.
	DefaultTimeout = 10 * time.Second
	// maxValue bounds a value, in bytes: the longest tokens are signed documents of a few KiB.
	maxValue = 16 << 10
	// killDelay is how long the output of a killed command is waited for.
	killDelay = time.Second
)

// ErrNone reports a source that has no credential to give. Its text names the source, never a value.
var ErrNone = errors.New("no credential")

// errLong reports a value beyond maxValue.
var errLong = fmt.Errorf("%w: its value is longer than %d bytes", ErrNone, maxValue)

// Credential is a user and a secret.
type Credential struct{ User, Password string }

// Source is one place that credentials come from; exactly one of Env, File and Command is set. Safe for concurrent use.
type Source struct {
	Env     string   // a variable of this process
	File    string   // a regular file
	Command []string // a program and its arguments, run in / with a clean environment
	// Timeout bounds a command, default DefaultTimeout.
	Timeout time.Duration
}

// Get asks the source. The value is a token; user:token; or lines as git credential helpers print them, of which username= and
// password= count. Space around it is no part of it. Errors: ErrNone, the context's.
func (s Source) Get(ctx context.Context) (Credential, error) {
	text, err := s.read(ctx)
	if err != nil {
		return Credential{}, fmt.Errorf("credential: %s: %w", s.name(), err)
	}
	c, err := parse(text)
	if err != nil {
		return Credential{}, fmt.Errorf("credential: %s: %w", s.name(), err)
	}
	return c, nil
}

// name tells people which source it is. Arguments of a command may be secret.
func (s Source) name() string {
	switch {
	case s.Env != "":
		return fmt.Sprintf("variable %q", s.Env)
	case s.File != "":
		return fmt.Sprintf("file %q", s.File)
	case len(s.Command) > 0:
		return fmt.Sprintf("command %q", s.Command[0])
	}
	return "nowhere"
}

func (s Source) read(ctx context.Context) (string, error) {
	switch {
	case s.Env != "":
		v, ok := os.LookupEnv(s.Env)
		if !ok {
			return "", fmt.Errorf("%w: it is not set in the worker's environment", ErrNone)
		}
		return v, nil
	case s.File != "":
		return readFile(s.File)
	case len(s.Command) > 0:
		return s.run(ctx)
	}
	return "", fmt.Errorf("%w: it names no source", ErrNone)
}

// readFile reads a regular file, which a pipe that nobody writes to is not.
func readFile(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNone, cause(err))
	}
	defer func() { _ = f.Close() }()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return "", fmt.Errorf("%w: it is no regular file", ErrNone)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxValue+1))
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNone, cause(err))
	}
	return string(b), nil
}

// cause is an error without the path, which the source's name has already.
func cause(err error) error {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		return p.Err
	}
	return err
}

// run runs the command in a clean environment. What it says on stderr may hold the value and is dropped.
func (s Source) run(ctx context.Context) (string, error) {
	limit := s.Timeout
	if limit <= 0 {
		limit = DefaultTimeout
	}
	limited, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w: it did not end within %s", ErrNone, limit))
	defer cancel()
	limited, refuse := context.WithCancelCause(limited)
	defer refuse(nil)
	cmd := exec.CommandContext(limited, s.Command[0], s.Command[1:]...)
	cmd.Env, cmd.Dir = environ(), "/"
	out := &bounded{over: func() { refuse(errLong) }}
	cmd.Stdout = out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = killDelay
	err := cmd.Run()
	if limited.Err() != nil {
		return "", context.Cause(limited)
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return "", fmt.Errorf("%w: it failed with %s", ErrNone, exit.ProcessState)
	}
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNone, bare(err))
	}
	return out.buf.String(), nil
}

// bare is why a command could not be started, without its name.
func bare(err error) error {
	if e, ok := errors.AsType[*exec.Error](err); ok {
		return e.Err
	}
	return cause(err)
}

// environ is what a command gets: where programs, the home and the agents of a login are, and nothing else of the worker's.
func environ() []string {
	env := []string{"LC_ALL=C"}
	for _, name := range []string{"PATH", "HOME", "USER", "TMPDIR", "XDG_RUNTIME_DIR", "SSH_AUTH_SOCK"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// bounded keeps a value, and calls over when there is more. Its buffer is no embedded one: that would lend it a ReadFrom,
// which io.Copy prefers to Write and which knows no bound.
type bounded struct {
	buf  bytes.Buffer
	over func()
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.buf.Len()+len(p) > maxValue {
		b.over()
		return 0, errLong
	}
	return b.buf.Write(p)
}

func parse(text string) (Credential, error) {
	if len(text) > maxValue {
		return Credential{}, errLong
	}
	text = strings.TrimSpace(text)
	c := Credential{User: DefaultUser}
	if user, password, ok := attributes(text); ok {
		c.Password = password
		if user != "" {
			c.User = user
		}
	} else if user, password, ok := strings.Cut(text, ":"); ok {
		c.User, c.Password = user, password
	} else {
		c.Password = text
	}
	switch {
	case c.Password == "":
		return Credential{}, fmt.Errorf("%w: its value is empty", ErrNone)
	case strings.ContainsFunc(c.User+c.Password, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return Credential{}, fmt.Errorf("%w: its value holds a line break or control character", ErrNone)
	}
	return c, nil
}

// attributes reads the lines of gitcredentials(7).
func attributes(text string) (user, password string, ok bool) {
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if v, is := strings.CutPrefix(line, "password="); is {
			password, ok = v, true
		} else if v, is := strings.CutPrefix(line, "username="); is {
			user = v
		}
	}
	return user, password, ok
}
