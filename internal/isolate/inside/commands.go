package inside

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
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

	workspace string
	place     *enclosure // behind a fence
}

// newCommand reads a request.
func newCommand(frame wire.Frame, workspace string) command {
	c := command{id: frame.ID, files: frame.Files, cwd: -1, workspace: workspace}
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
	default:
		c.cwd, c.err = openBelow(workspace, c.exec.Dir, unix.O_PATH|unix.O_DIRECTORY, 0)
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
	c.place.close()
	c.place = nil
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
	// fence is around each command of a hosted init, nil if nothing is.
	fence fence
	self  string // the program of supervisors and launchers, "" until there is a copy
	// settle gives memory back, once. It starts threads, so it comes before they are counted.
	settle func()

	mu         sync.Mutex
	idle       *sync.Cond
	queued     map[uint64]bool // submitted and not answered, by frame; true: ended before it ran
	id         uint64          // the frame of the command that runs, 0 when none does
	pid        int
	place      *enclosure // of that command
	terminated bool
	killed     bool // by SIGKILL
	abort      bool // what is queued must not start

	moving sync.Mutex // held while a command starts and while one is cleared away, and by pause
}

// startCommands makes c, of which conn, spec, reap, into and self are set, ready for submit.
func startCommands(c *commands) error {
	c.kept.trees, c.jobs, c.queued = map[int]string{}, make(chan command, 8), map[uint64]bool{}
	c.idle = sync.NewCond(&c.mu)
	c.settle = sync.OnceFunc(debug.FreeOSMemory)
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
	c.id, c.pid, c.terminated, c.killed = 0, 0, false, false
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
	if j.exec.Processes > 0 {
		c.settle()
	}
	c.moving.Lock()
	if j.err == nil && j.exec.Log != "" {
		defer c.moving.Unlock()
		return c.detach(j)
	}
	began := time.Now()
	pid, err := c.launch(&j)
	c.moving.Unlock()
	place := j.place
	j.place = nil
	defer place.close()
	j.close()
	if err == nil && j.exec.Notify {
		c.conn.Send(j.id, wire.KindStarted, nil)
	}
	var exited wire.Exited
	if err == nil {
		status := c.wait(pid)
		exited.Nanos = int64(time.Since(began))
		c.linger()
		c.moving.Lock()
		defer c.moving.Unlock()
		c.mu.Lock()
		c.pid = 0
		c.mu.Unlock()
		if j.exec.Processes > 0 {
			exited.Left = uint64(c.reap.count())
		}
		status, exited.Left = place.ended(status, exited.Left)
		exited.Status = uint64(status)
		c.reap.killAll(c.kept.spared, c.kept.ended)
	} else {
		exited.Start = err.Error()
	}
	if dir := j.exec.SecretsDir; dir != "" {
		os.RemoveAll(dir)
	}
	return exited
}

// enclose gives a command its place behind the fence.
func (c *commands) enclose(j *command) error {
	if j.err != nil || c.fence == nil {
		return j.err
	}
	if j.exec.SecretsDir != "" {
		if err := writeSecretsDir(j.exec.SecretsDir, j.exec.Secrets); err != nil {
			return err
		}
	}
	if err := c.ownSelf(); err != nil {
		return err
	}
	place, err := c.fence.enclose(*j, c.self)
	if err != nil {
		return err
	}
	j.place = place
	if place.outer != nil {
		j.exec.Processes = 0 // counted in the command's own user namespace, where it is set
	}
	return nil
}

// launch starts a command in its place, and returns when it runs there.
func (c *commands) launch(j *command) (int, error) {
	if err := c.enclose(j); err != nil {
		return 0, err
	}
	pid, err := c.launchBounded(*j)
	j.place.started()
	if err != nil {
		return 0, err
	}
	if err := j.place.awaitStart(); err != nil {
		c.giveUp()
		return 0, err
	}
	return pid, nil
}

// giveUp ends what was started for a command that could not be.
func (c *commands) giveUp() {
	c.reap.killAll(c.kept.spared, c.kept.ended)
	c.mu.Lock()
	c.pid = 0
	c.mu.Unlock()
}

// launchBounded starts a command, through a launcher where it has to be bounded first.
func (c *commands) launchBounded(j command) (int, error) {
	if !c.into.launches(j.exec) {
		return c.start(j, nil)
	}
	if err := c.ownSelf(); err != nil {
		return 0, err
	}
	status, child, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer status.Close()
	pid, err := c.start(j, c.into.program(again{c.self, ModeLaunch}, j.exec, c.standards(j), child))
	child.Close()
	if err != nil {
		return 0, err
	}
	if err := launched(status); err != nil {
		c.giveUp()
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
	var where *compartment
	switch {
	case j.place != nil && c.spec.Hosted:
		where = j.place.where
	case len(j.exec.Secrets) == 0:
	case c.spec.Hosted:
		err = writeSecretsDir(j.exec.SecretsDir, j.exec.Secrets)
	default:
		where, err = openCompartment(c.spec, c.into, func() error { return mountSecrets(j.exec.Secrets) })
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
	p, err := c.programOf(j, by)
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.abort || c.queued[j.id] {
		c.terminated = true
		return 0, errAborted
	}
	pid, err := c.reap.fork(func() (int, error) {
		return syscall.ForkExec(p.path, p.argv, &syscall.ProcAttr{Env: p.env, Files: p.files, Sys: &syscall.SysProcAttr{Setsid: true}})
	})
	if err != nil {
		return 0, startError(p.path, err)
	}
	c.id, c.pid, c.place = j.id, pid, j.place
	return pid, nil
}

// programOf is what is executed for a command.
func (c *commands) programOf(j command, by *program) (program, error) {
	if j.place != nil && j.place.outer != nil {
		return j.place.program(c.standards(j), by), nil
	}
	name, err := lookPath(j.exec.Argv[0], j.exec.Env)
	if err != nil {
		return program{}, startError(j.exec.Argv[0], err)
	}
	if name == selfExe && j.place != nil {
		name = c.self // its file may be out of reach of a command
	}
	if by == nil {
		return program{path: name, argv: j.exec.Argv, env: j.exec.Env, files: c.standards(j)}, nil
	}
	argv := append(slices.Clone(by.argv), append([]string{name}, j.exec.Argv...)...)
	return program{path: by.path, argv: argv, env: j.exec.Env, files: by.files}, nil
}

// wait reaps until the command itself has ended; orphans come to this process too. It is signalled until pid is cleared.
func (c *commands) wait(pid int) syscall.WaitStatus {
	for {
		var status syscall.WaitStatus
		got, err := syscall.Wait4(-1, &status, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		if got == pid || err != nil {
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
		c.killed = true
		c.reap.signal(unix.SIGKILL, c.kept.spared())
		return
	}
	c.place.ask()
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
			c.terminated, c.killed = true, true
			c.reap.signal(unix.SIGKILL, nil)
		}
		c.idle.Wait()
	}
	c.reap.killAll(func() map[int]bool { return nil }, c.kept.ended)
}
