// Package gitrepo runs git safely and turns commits of git repositories into bases: chains of
// layers with a private git directory, a checked-out tree and the objects they need, shared by
// every sandbox of the repository and tied to nothing outside.
//
// It only reads the repositories it is given, but for Push: it never takes a lock, refreshes an index,
// writes a ref or runs a hook or filter in them. It must not know plans, sandboxes, NATS or how an
// apply makes a commit.
package gitrepo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Bounds on what a git process may keep us waiting for, and on what we keep of it.
const (
	killDelay = 3 * time.Second // between SIGTERM and SIGKILL: git removes its lock files on the former
	// containedDelay is the same for the first process of a namespace, which a SIGTERM does not end.
	containedDelay = 300 * time.Millisecond
	maxOutput      = 256 << 20 // bytes that Output accepts
	maxStderr      = 16 << 10  // bytes of stderr kept, from the end
	stderrLines    = 2         // last lines that an error quotes
)

// noProtocol is a GIT_ALLOW_PROTOCOL that allows no transport: a lazy fetch of a partial clone fails.
const noProtocol = "none"

// Git runs the git program. It never asks a question, reads no configuration of the machine or the
// user, and starts no hook, pager or editor. Safe for concurrent use.
type Git struct {
	bin  string
	path string
	// contain: a git that talks to a remote can have a process namespace, which ends with it, whatever it started.
	contain bool
}

// FindGit looks git up in PATH.
func FindGit() (Git, error) {
	bin, err := exec.LookPath("git")
	if err != nil {
		return Git{}, fmt.Errorf("gitrepo: find git: %w: install git, or have it in PATH", err)
	}
	probe := exec.Command(bin, "--version")
	probe.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "LANGUAGE=C"}
	probe.SysProcAttr = &syscall.SysProcAttr{}
	containBy(probe.SysProcAttr)
	return Git{bin: bin, path: os.Getenv("PATH"), contain: probe.Run() == nil}, nil
}

// containBy gives a process a process namespace of its own, for an ordinary user by way of a user namespace.
func containBy(a *syscall.SysProcAttr) {
	a.Cloneflags |= syscall.CLONE_NEWPID
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
	}
}

// Call is one run of git. GitDir and Args are required.
type Call struct {
	// Args are the subcommand and its arguments. Values from outside belong in full ref form or on stdin.
	Args []string
	// GitDir is the repository. It is always named, never discovered.
	GitDir string
	// WorkTree, Index and Objects replace what GitDir says, where they are set.
	WorkTree, Index, Objects string
	// Alternates are object directories read besides the repository's own.
	Alternates []string
	// Dir is the working directory, default WorkTree, else GitDir.
	Dir string
	// Config are "key=value" settings, stronger than those of the repository.
	Config []string
	// Env are more variables, "NAME=value".
	Env []string
	// Protocols are the transports that may be used, separated by colons; "" is none.
	Protocols string
	// Secrets are texts that no error may contain.
	Secrets []string
	// As is whom git runs as, nil for whoever we are.
	As     *Account
	Stdin  io.Reader
	Stdout io.Writer
	// Watch, if set, is called with the process group once it runs, and what it returns when that has ended.
	Watch func(group int) (stop func())
}

// ExitError is a git that ran and failed.
type ExitError struct {
	Command string // the subcommand
	Code    int    // exit code, -1 if a signal ended it
	Stderr  string // its last lines, without secrets
}

func (e *ExitError) Error() string {
	if e.Stderr == "" {
		return fmt.Sprintf("git %s: exit status %d", e.Command, e.Code)
	}
	return fmt.Sprintf("git %s: %s", e.Command, e.Stderr)
}

// ExitCode is the code of a git that failed by itself, -1 for every other error.
func ExitCode(err error) int {
	if exit, ok := errors.AsType[*ExitError](err); ok {
		return exit.Code
	}
	return -1
}

// Output runs c and returns its stdout, 256 MiB at most.
func (g Git) Output(ctx context.Context, c Call) ([]byte, error) {
	out := &boundedBuffer{max: maxOutput}
	c.Stdout = out
	if err := g.Run(ctx, c); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// Run runs c to its end. When ctx ends, git and its children get SIGTERM, SIGKILL three seconds
// later, and Run returns the context's error. A git that failed is an *ExitError. One that may talk to a remote, and all it
// started, dies with this process.
func (g Git) Run(ctx context.Context, c Call) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("git %s: %w", c.Args[0], context.Cause(ctx))
	}
	cmd := exec.CommandContext(ctx, g.bin, c.Args...)
	cmd.Env = g.environ(c)
	cmd.Dir = firstOf(c.Dir, c.WorkTree, c.GitDir)
	stderr := &tailBuffer{max: maxStderr}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, stderr
	g.tie(cmd, c)
	err := cmd.Start()
	if err == nil {
		if c.Watch != nil {
			defer c.Watch(cmd.Process.Pid)()
		}
		err = cmd.Wait()
	}
	if ctx.Err() != nil {
		if cmd.Process != nil {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		}
		return fmt.Errorf("git %s: %w", c.Args[0], context.Cause(ctx))
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return &ExitError{Command: c.Args[0], Code: exit.ExitCode(), Stderr: summary(stderr.String(), c.Secrets)}
	}
	if err != nil {
		return fmt.Errorf("git %s: %w", c.Args[0], err)
	}
	return nil
}

// tie gives cmd a group of its own, so that ssh and git-remote-http end with it and a Ctrl-C of ours is not theirs.
func (g Git) tie(cmd *exec.Cmd, c Call) {
	attr := &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = killDelay
	if c.Protocols != "" {
		attr.Pdeathsig = syscall.SIGKILL // who waits for a remote must not outlive a killed worker
		if g.contain && c.Watch != nil { // the far end of a push to a local repository is not ours to end
			containBy(attr)
			cmd.WaitDelay = containedDelay
		}
	}
	if c.As != nil {
		attr.Credential = &syscall.Credential{Uid: c.As.UID, Gid: c.As.GID}
	}
	cmd.SysProcAttr = attr
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
}

// passedOn are the variables of our own environment that git gets for transports: the way to an
// ssh agent, proxies and certificates are the worker's configuration.
func passedOn() []string {
	return []string{
		"SSH_AUTH_SOCK", "http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY",
		"SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO",
	}
}

// environ builds the environment from nothing: an inherited GIT_DIR or HOME would redirect git.
// HOME stays unset, since $HOME/.config/git/attributes is read whatever GIT_CONFIG_GLOBAL says.
func (g Git) environ(c Call) []string {
	env := []string{
		"PATH=" + g.path, "LC_ALL=C", "LANGUAGE=C",
		"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_ATTR_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=/bin/false", "SSH_ASKPASS=/bin/false", "SSH_ASKPASS_REQUIRE=never",
		"GIT_PAGER=cat", "GIT_EDITOR=/bin/false", "GIT_SEQUENCE_EDITOR=/bin/false",
		"GIT_OPTIONAL_LOCKS=0", "GIT_NO_REPLACE_OBJECTS=1", "GIT_NO_LAZY_FETCH=1",
		"GIT_ALLOW_PROTOCOL=" + firstOf(c.Protocols, noProtocol),
		"GIT_DIR=" + c.GitDir,
	}
	if c.Protocols != "" {
		for _, name := range passedOn() {
			if v, ok := os.LookupEnv(name); ok {
				env = append(env, name+"="+v)
			}
		}
	}
	for _, v := range []struct{ name, value string }{
		{"GIT_WORK_TREE", c.WorkTree},
		{"GIT_INDEX_FILE", c.Index},
		{"GIT_OBJECT_DIRECTORY", c.Objects},
		{"GIT_ALTERNATE_OBJECT_DIRECTORIES", alternates(c.Alternates)},
	} {
		if v.value != "" {
			env = append(env, v.name+"="+v.value)
		}
	}
	return append(append(env, configEnv(c.Config)...), c.Env...)
}

// configEnv passes settings by environment: unlike -c they show up in no process list, and any
// byte may occur in them. The first ones hold for every call.
func configEnv(settings []string) []string {
	all := append([]string{
		"core.hooksPath=/dev/null", "core.fsmonitor=false", "core.fsync=none", "core.untrackedCache=false", "core.splitIndex=false",
		"index.version=2", "feature.manyFiles=false", "gc.auto=0", "maintenance.auto=false", "protocol.ext.allow=never",
		"commit.gpgSign=false", "tag.gpgSign=false", "submodule.recurse=false", "transfer.bundleURI=false",
	}, settings...)
	env := []string{"GIT_CONFIG_COUNT=" + strconv.Itoa(len(all))}
	for i, s := range all {
		key, value, _ := strings.Cut(s, "=")
		env = append(env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", i, key), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", i, value))
	}
	return env
}

// alternates joins directories as GIT_ALTERNATE_OBJECT_DIRECTORIES wants them: quoted, since colons
// separate and a leading quote would be taken for quoting.
func alternates(dirs []string) string {
	quoted := make([]string, len(dirs))
	for i, d := range dirs {
		quoted[i] = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(d) + `"`
	}
	return strings.Join(quoted, ":")
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// boundedBuffer fails when more than max bytes are written to it. Its buffer is no embedded one: that would lend it a
// ReadFrom, which io.Copy prefers to Write and which knows no bound.
type boundedBuffer struct {
	buf bytes.Buffer
	max int
}

func (b *boundedBuffer) Write(p []byte) (int, error) {
	if b.buf.Len()+len(p) > b.max {
		return 0, fmt.Errorf("more than %d bytes of output", b.max)
	}
	return b.buf.Write(p)
}

func (b *boundedBuffer) Bytes() []byte { return b.buf.Bytes() }

func (b *boundedBuffer) String() string { return b.buf.String() }

// tailBuffer keeps the last max bytes.
type tailBuffer struct {
	b   []byte
	max int
}

func (t *tailBuffer) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if over := len(t.b) - t.max; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	return len(p), nil
}

func (t *tailBuffer) String() string { return string(t.b) }

// summary is what stderr ends with: the last lines that say something, on one line, without secrets.
func summary(stderr string, secrets []string) string {
	var said []string
	for line := range strings.FieldsFuncSeq(stderr, func(r rune) bool { return r == '\n' || r == '\r' }) {
		line = strings.TrimSpace(line)
		if line == "" || isNoise(line) {
			continue
		}
		said = append(said, line)
	}
	if len(said) > stderrLines {
		said = said[len(said)-stderrLines:]
	}
	return redact(strings.Join(said, "; "), secrets)
}

// isNoise tells lines that git appends to real messages.
func isNoise(line string) bool {
	for _, p := range []string{"hint:", "warning:", "Please make sure you have the correct access rights", "and the repository exists."} {
		if strings.HasPrefix(line, p) {
			return true
		}
	}
	return false
}

// Pipe runs two gits, the second of which reads what the first one writes, and returns when both have ended.
func (g Git) Pipe(ctx context.Context, from, to Call) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("git %s: %w", from.Args[0], err)
	}
	from.Stdout, to.Stdin = w, r
	written := make(chan error, 1)
	go func() {
		err := g.Run(ctx, from)
		written <- errors.Join(err, w.Close())
	}()
	err = g.Run(ctx, to)
	// A writer whose reader is gone ends by SIGPIPE.
	if closeErr := r.Close(); err == nil {
		err = closeErr
	}
	if from := <-written; from != nil && err == nil {
		return from
	}
	return err
}
