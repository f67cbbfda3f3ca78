package inside

import (
	"fmt"
	"os"
	"runtime"
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
	files []*os.File // what standard output and error choose from
	err   error      // why it can't start
}

func newCommand(frame wire.Frame, workspace string) command {
	c := command{id: frame.ID, files: frame.Files, cwd: -1}
	if c.err = frame.Decode(&c.exec); c.err != nil {
		return c
	}
	switch {
	case max(c.exec.Stdout, c.exec.Stderr) > uint64(len(frame.Files)):
		c.err = fmt.Errorf("%d output descriptors", len(frame.Files))
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

// output is the descriptor at a place of the message.
func (c command) output(place uint64) uintptr {
	if place == 0 {
		return 0 // standard input of this process: /dev/null, for reading and writing
	}
	return c.files[place-1].Fd()
}

// close releases what the command was given; the pipes would never end otherwise.
func (c command) close() {
	if c.cwd >= 0 {
		unix.Close(c.cwd)
	}
	for _, f := range c.files {
		f.Close()
	}
}

// commands runs one command at a time, on a thread of its own.
type commands struct {
	conn *wire.Conn
	reap reaper
	jobs chan command

	mu         sync.Mutex
	idle       *sync.Cond
	busy       int    // submitted and not answered
	id         uint64 // the frame of the command that runs, 0 when none does
	pid        int
	terminated bool
	abort      bool // what is queued must not start
}

func startCommands(conn *wire.Conn, spec wire.Spec, reap reaper) (*commands, error) {
	c := &commands{conn: conn, reap: reap, jobs: make(chan command, 8)}
	c.idle = sync.NewCond(&c.mu)
	ready := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := confine(spec)
		if err == nil && spec.NoSetuid && !spec.Bare {
			err = refuseSetuid()
		}
		ready <- err
		if err != nil {
			return
		}
		for j := range c.jobs {
			c.run(j)
		}
	}()
	return c, <-ready
}

func (c *commands) submit(j command) {
	c.mu.Lock()
	c.busy++
	c.mu.Unlock()
	c.jobs <- j
}

// run starts one command, waits for it, ends what it left behind, and answers.
func (c *commands) run(j command) {
	exited := c.execute(j)
	c.mu.Lock()
	exited.Terminated = c.terminated
	c.id, c.pid, c.terminated = 0, 0, false
	c.busy--
	if c.busy == 0 {
		c.abort = false
		c.idle.Broadcast()
	}
	c.mu.Unlock()
	c.conn.Send(j.id, wire.KindExited, &exited)
}

func (c *commands) execute(j command) wire.Exited {
	began := time.Now()
	pid, err := c.fork(j)
	j.close()
	if err != nil {
		return wire.Exited{Start: err.Error()}
	}
	if j.exec.Notify {
		c.conn.Send(j.id, wire.KindStarted, nil)
	}
	status := c.wait(pid)
	nanos := int64(time.Since(began))
	c.reap.killAll()
	return wire.Exited{Status: uint64(status), Nanos: nanos}
}

// fork starts the command from this thread, whose credentials and directory it inherits.
func (c *commands) fork(j command) (int, error) {
	if j.err != nil {
		return 0, j.err
	}
	if err := unix.Fchdir(j.cwd); err != nil {
		return 0, fmt.Errorf("enter working directory %q: %w", j.exec.Dir, err)
	}
	defer unix.Chdir("/") // the workspace must not stay busy
	name, err := lookPath(j.exec.Argv[0], j.exec.Env)
	if err != nil {
		return 0, startError(j.exec.Argv[0], err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.abort {
		c.terminated = true
		return 0, errAborted
	}
	pid, err := c.reap.fork(func() (int, error) {
		return syscall.ForkExec(name, j.exec.Argv, &syscall.ProcAttr{
			Env:   j.exec.Env,
			Files: []uintptr{0, j.output(j.exec.Stdout), j.output(j.exec.Stderr)},
			Sys:   &syscall.SysProcAttr{Setsid: true},
		})
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
	}
}

// signal ends the command of a frame, if it is the one that runs.
func (c *commands) signal(m wire.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.id != m.Exec || c.pid == 0 {
		return
	}
	c.terminated = true
	if m.Kill {
		c.reap.signal(unix.SIGKILL)
		return
	}
	c.reap.signal(unix.SIGTERM)
	c.reap.signal(unix.SIGCONT) // a stopped process gets its chance too
}

// killAndWait ends everything and returns when nothing runs any more.
func (c *commands) killAndWait() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.busy > 0 {
		c.abort = true
		if c.pid != 0 {
			c.terminated = true
			c.reap.signal(unix.SIGKILL)
		}
		c.idle.Wait()
	}
}
