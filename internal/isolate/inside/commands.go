package inside

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

// command is a request to run one, with its directory opened: the thread of the commands
// may be under a filter that refuses openat2.
type command struct {
	id    uint64
	exec  wire.Exec
	cwd   int
	files []*os.File // what the standard descriptors choose from
	err   error      // why it can't start
	gate  *compartment
}

// newCommand reads a request. The gate is where commands that may write are started while the workspace is held; else nil.
func newCommand(frame wire.Frame, workspace string, gate *compartment) command {
	c := command{id: frame.ID, files: frame.Files, cwd: -1}
	if c.err = frame.Decode(&c.exec); c.err != nil {
		return c
	}
	switch {
	case max(c.exec.Stdin, c.exec.Stdout, c.exec.Stderr) > uint64(len(frame.Files)):
		c.err = fmt.Errorf("%d descriptors", len(frame.Files))
	case len(c.exec.Argv) == 0:
		c.err = errEmptyCommand
	case workspace == "":
		c.err = errNoWorkspace
	case c.exec.Sync && gate != nil && len(c.exec.Secrets) > 0:
		c.err = errors.New("secrets are not given to a command that may write while the workspace is held")
	default:
		const flags = unix.O_PATH | unix.O_DIRECTORY
		if c.exec.Sync && gate != nil {
			c.gate = gate
			c.cwd, c.err = openIn(gate.root, c.exec.Dir, flags, 0)
		} else {
			c.cwd, c.err = openBelow(workspace, c.exec.Dir, flags, 0)
		}
		if c.err != nil {
			c.err = fmt.Errorf("open working directory %q: %w", c.exec.Dir, c.err)
		}
	}
	return c
}

// standard is the descriptor at a place of the message.
func (c command) standard(place uint64) uintptr {
	if place == 0 {
		return 0 // standard input of this process: /dev/null, for reading and writing
	}
	return c.files[place-1].Fd()
}

// close releases what the command was given; the pipes would never end otherwise.
func (c *command) close() {
	if c.cwd >= 0 {
		unix.Close(c.cwd)
		c.cwd = -1
	}
	for _, f := range c.files {
		f.Close()
	}
}

// commands runs one command at a time, on a thread of its own.
type commands struct {
	conn *wire.Conn
	spec wire.Spec
	reap reaper
	into entrance
	kept kept
	jobs chan command
	self string // the program of supervisors and launchers, "" until there is a copy

	mu         sync.Mutex
	idle       *sync.Cond
	queued     map[uint64]bool // submitted and not answered, by frame; true: ended before it ran
	id         uint64          // the frame of the command that runs, 0 when none does
	pid        int
	terminated bool
	abort      bool // what is queued must not start
}

// startCommands makes c, of which conn, spec, reap, into and self are set, ready for submit.
func startCommands(c *commands) error {
	c.kept.trees, c.jobs, c.queued = map[int]string{}, make(chan command, 8), map[uint64]bool{}
	c.idle = sync.NewCond(&c.mu)
	ready := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := becomeCommand(c.spec, c.into)
		ready <- err
		if err != nil {
			return
		}
		for j := range c.jobs {
			c.run(j)
		}
	}()
	return <-ready
}

func (c *commands) submit(j command) {
	c.mu.Lock()
	c.queued[j.id] = false
	c.mu.Unlock()
	c.jobs <- j
}

// run starts one command, waits for it, ends what it left behind, and answers.
func (c *commands) run(j command) {
	exited := c.execute(j)
	c.mu.Lock()
	exited.Terminated = c.terminated
	c.id, c.pid, c.terminated = 0, 0, false
	delete(c.queued, j.id)
	if len(c.queued) == 0 {
		c.abort = false
		c.idle.Broadcast()
	}
	c.mu.Unlock()
	c.conn.Send(j.id, wire.KindExited, &exited)
}

func (c *commands) execute(j command) wire.Exited {
	defer j.close()
	if j.err == nil && j.exec.Log != "" {
		return c.detach(j)
	}
	began := time.Now()
	pid, err := c.launch(j)
	j.close()
	if err == nil && j.exec.Notify {
		c.conn.Send(j.id, wire.KindStarted, nil)
	}
	var exited wire.Exited
	if err == nil {
		exited.Status = uint64(c.wait(pid))
		exited.Nanos = int64(time.Since(began))
		if j.exec.Processes > 0 {
			exited.Left = uint64(c.reap.count())
		}
		c.reap.killAll(c.kept.spared, c.kept.ended)
	} else {
		exited.Start = err.Error()
	}
	if dir := j.exec.SecretsDir; dir != "" {
		os.RemoveAll(dir)
	}
	return exited
}

// launch starts a command, through a launcher where it has to be bounded first.
func (c *commands) launch(j command) (int, error) {
	if j.err != nil || !c.into.launches(j.exec) {
		return c.start(j, nil)
	}
	status, child, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer status.Close()
	pid, err := c.start(j, c.into.program(c.self, ModeLaunch, j.exec, c.standards(j), child))
	child.Close()
	if err != nil {
		return 0, err
	}
	if err := launched(status); err != nil {
		c.reap.killAll(c.kept.spared, c.kept.ended)
		c.mu.Lock()
		c.pid = 0
		c.mu.Unlock()
		return 0, err
	}
	return pid, nil
}

// standards are the standard descriptors of a command.
func (c *commands) standards(j command) []uintptr {
	return []uintptr{j.standard(j.exec.Stdin), j.standard(j.exec.Stdout), j.standard(j.exec.Stderr)}
}

// start starts the command of a request, or what is to run it, where it sees what it is to see.
func (c *commands) start(j command, by *program) (pid int, err error) {
	if j.err != nil {
		return 0, j.err
	}
	where := j.gate
	switch {
	case len(j.exec.Secrets) == 0:
	case c.spec.Bare:
		err = writeSecretsDir(j.exec.SecretsDir, j.exec.Secrets)
	default:
		where, err = openCompartment(c.spec, c.into, func(*compartment) error { return mountSecrets(j.exec.Secrets) })
		if err == nil {
			defer where.close() // the command keeps its mounts alive
		}
	}
	if err != nil {
		return 0, err
	}
	if where == nil {
		return c.fork(j, by)
	}
	where.do(func() { pid, err = c.fork(j, by) })
	return pid, err
}

// fork starts a command from the calling thread, whose credentials, mounts and directory it inherits.
func (c *commands) fork(j command, by *program) (int, error) {
	if err := unix.Fchdir(j.cwd); err != nil {
		return 0, fmt.Errorf("enter working directory %q: %w", j.exec.Dir, err)
	}
	defer unix.Chdir("/") // the workspace must not stay busy
	name, err := lookPath(j.exec.Argv[0], j.exec.Env)
	if err != nil {
		return 0, startError(j.exec.Argv[0], err)
	}
	p := program{path: name, argv: j.exec.Argv, files: c.standards(j)}
	if by != nil {
		p = program{path: by.path, argv: append(slices.Clone(by.argv), append([]string{name}, j.exec.Argv...)...), files: by.files}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.abort || c.queued[j.id] {
		c.terminated = true
		return 0, errAborted
	}
	pid, err := c.reap.fork(func() (int, error) {
		return syscall.ForkExec(p.path, p.argv, &syscall.ProcAttr{Env: j.exec.Env, Files: p.files, Sys: &syscall.SysProcAttr{Setsid: true}})
	})
	if err != nil {
		return 0, startError(name, err)
	}
	c.id, c.pid = j.id, pid
	return pid, nil
}

// wait reaps until the command itself has ended; orphans come to this process too.
func (c *commands) wait(pid int) syscall.WaitStatus {
	for {
		var status syscall.WaitStatus
		got, err := syscall.Wait4(-1, &status, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		if got == pid || err != nil {
			c.mu.Lock()
			c.pid = 0
			c.mu.Unlock()
			return status
		}
		c.kept.ended(got)
	}
}

// signal ends the command of a frame, which does not start when it has not yet.
func (c *commands) signal(m wire.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, waits := c.queued[m.Exec]; waits && c.id != m.Exec {
		c.queued[m.Exec] = true
	}
	if c.id != m.Exec || c.pid == 0 {
		return
	}
	c.terminated = true
	if m.Kill {
		c.reap.signal(unix.SIGKILL, c.kept.spared())
		return
	}
	c.reap.signal(unix.SIGTERM, c.kept.spared())
	c.reap.signal(unix.SIGCONT, c.kept.spared()) // a stopped process gets its chance too
}

// killAndWait ends everything, what was detached too, and returns when nothing runs any more.
func (c *commands) killAndWait() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.queued) > 0 {
		c.abort = true
		if c.pid != 0 {
			c.terminated = true
			c.reap.signal(unix.SIGKILL, nil)
		}
		c.idle.Wait()
	}
	c.reap.killAll(func() map[int]bool { return nil }, c.kept.ended)
}
