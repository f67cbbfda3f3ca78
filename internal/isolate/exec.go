package isolate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

const (
	// DefaultGrace is the time between SIGTERM and SIGKILL.
	DefaultGrace = 2 * time.Second
	// outputGrace bounds the wait for the end of output after every process is dead:
	// only a descriptor that was passed out of the sandbox can hold it open.
	outputGrace = time.Second
	// killLimit bounds the wait for a killed tree (a process may hang in the kernel);
	// afterwards the whole init is killed.
	killLimit = 10 * time.Second
	copySize  = 32 << 10 // bytes read at once
	// pipeSize is what a command may be ahead of who reads its output, in bytes: four times what pipes have, for half the switches.
	pipeSize = 256 << 10
)

// Cause says why a command ended.
type Cause string

// The causes. A command that exits by itself while it is being ended for a timeout or a
// cancellation keeps that cause.
const (
	CauseExit      Cause = "exit"      // it returned ExitCode
	CauseSignal    Cause = "signal"    // Signal ended it, and was not ours
	CauseTimeout   Cause = "timeout"   // Command.Timeout
	CauseCancelled Cause = "cancelled" // its context, or Detach
	CauseStart     Cause = "start"     // it could not be started, StartError says why
	CauseLost      Cause = "lost"      // the init died
	CauseOOM       Cause = "oom"       // Limits.Memory
	CausePIDs      Cause = "pids"      // it failed after Limits.PIDs had refused a fork
	CauseDisk      Cause = "disk"      // Limits.Disk
)

// Command is one program to run in the workspace.
type Command struct {
	Argv []string
	Env  []string // whole; nothing is added but SecretsVariable where there are Secrets
	Dir  string   // relative to the workspace, "" is its root; links do not lead out
	// Stdin is what the command reads, copied on a goroutine of its own until the reader's end (an error of Read counts
	// as one) or the command's. Exec does not wait for a Read that blocks: that Read outlives it, and the goroutine ends
	// with it; close what it reads from. nil is empty.
	Stdin io.Reader
	// Stdout and Stderr get the bytes as they come, on one goroutine each, or on one for
	// both when they are the same. While a Write blocks so does the command, once the
	// pipe (256 KiB) is full; and Exec does not return before the Write does. nil discards.
	Stdout, Stderr io.Writer
	Timeout        time.Duration // 0: none
	Grace          time.Duration // from SIGTERM to SIGKILL, both to the whole tree; 0: DefaultGrace
	Started        func()        // called once the program runs, if it ever does
	// Secrets are files that only this command and what it starts sees, by name: SecretsDir/NAME, mode 0400, in memory,
	// gone with the last process that saw them. See MaxSecrets. RungLandlock and RungBare keep them in a private directory
	// instead, named by SecretsVariable, until the command ends; on RungBare other commands' processes can read them there meanwhile.
	Secrets map[string][]byte
	// Script, if not empty, is a file like a secret; its path becomes the last argument. At most MaxScript bytes.
	Script []byte
	// Processes, if not 0, is how many processes and threads there may be at once, kept by RLIMIT_NPROC: for where no
	// group counts them, and where the kernel counts each user namespace apart (Report.ProcessLimit).
	Processes int
}

// Result is how a command ended.
type Result struct {
	ExitCode   *int   // nil when a signal ended it, or it never ran
	Signal     string // without "SIG"; "" when it was our own, or none
	Cause      Cause
	Duration   time.Duration // of the program itself
	StartError string        // one line, with CauseStart
	Why        string        // of an ExceededError that ended it
	Left       int           // processes and threads it left behind, counted where Command.Processes is set
}

// Exec runs a command. When its first process has ended, all that it left behind is
// killed, so its output ends and nothing runs on but what Start started. Failure of the command is a Result; an
// error means that its end is unknown (CauseLost) or the call was wrong. Cancelling ctx
// ends the tree like a timeout does, with CauseCancelled and no error.
func (i *Init) Exec(ctx context.Context, c Command) (Result, error) {
	if err := c.check(); err != nil {
		return Result{}, fmt.Errorf("isolate: exec: %w", err)
	}
	select {
	case i.turn <- struct{}{}:
		defer func() { <-i.turn }()
	case <-ctx.Done():
		return Result{Cause: CauseCancelled}, nil
	case <-i.done:
		return Result{Cause: CauseLost}, i.lost()
	}
	if ctx.Err() != nil {
		return Result{Cause: CauseCancelled}, nil
	}
	in, err := openInput(c.Stdin)
	if err != nil {
		return Result{}, err
	}
	defer in.finish()
	out, err := openOutputs(c)
	if err != nil {
		return Result{}, err
	}
	fds, stdin := in.add(out.child)
	m := i.request(c)
	m.Stdin, m.Stdout, m.Stderr = stdin, out.stdout, out.stderr
	id, answers, err := i.send(wire.KindExec, m, fds...)
	out.closeChild()
	in.closeChild()
	if err != nil {
		out.finish()
		if errors.Is(err, ErrLost) {
			return Result{Cause: CauseLost}, err
		}
		return Result{}, fmt.Errorf("isolate: exec: %w", err)
	}
	defer i.drop(id)
	r := run{init: i, command: c, id: id, answers: answers}
	result, err := r.wait(ctx)
	out.finish()
	return result, err
}

// run is one command under way.
type run struct {
	init    *Init
	command Command
	id      uint64
	answers <-chan wire.Frame
	cause   Cause // why we ended it, "" if we did not
	why     string
}

func (r *run) wait(ctx context.Context) (Result, error) {
	var timeout, step <-chan time.Time
	if r.command.Timeout > 0 {
		timer := time.NewTimer(r.command.Timeout)
		defer timer.Stop()
		timeout = timer.C
	}
	cancelled, killed := ctx.Done(), false
	for {
		select {
		case frame := <-r.answers:
			result, over, err := r.answer(frame)
			if over {
				return result, err
			}
		case <-timeout:
			timeout = nil
			step = r.terminate(CauseTimeout, step)
		case <-cancelled:
			cancelled = nil
			if limit := exceeded(context.Cause(ctx)); limit != nil && r.cause == "" {
				r.cause, r.why, killed = limit.Cause, limit.Why, true
				r.signal(true)
				step = time.After(killLimit)
				continue
			}
			step = r.terminate(CauseCancelled, step)
		case <-step:
			if r.unpaused() { // it had no time to end
				step = time.After(killLimit)
				continue
			}
			if killed {
				r.init.process.os.Kill()
				step = nil
				continue
			}
			killed = true
			r.signal(true)
			step = time.After(killLimit)
		case <-r.init.done:
			return r.drain()
		}
	}
}

// unpaused waits for the end of a Pause, and tells whether there was one.
func (r *run) unpaused() (waited bool) {
	if !r.init.still.TryRLock() {
		r.init.still.RLock()
		waited = true
	}
	r.init.still.RUnlock()
	return waited
}

// drain takes what arrived before the init died.
func (r *run) drain() (Result, error) {
	for {
		select {
		case frame := <-r.answers:
			if result, over, err := r.answer(frame); over {
				return result, err
			}
		default:
			return Result{Cause: CauseLost}, r.init.lost()
		}
	}
}

// terminate asks the tree to end; a second reason does not restart the clock.
func (r *run) terminate(cause Cause, step <-chan time.Time) <-chan time.Time {
	if r.cause != "" {
		return step
	}
	r.cause = cause
	r.signal(false)
	grace := r.command.Grace
	if grace == 0 {
		grace = DefaultGrace
	}
	return time.After(grace)
}

func (r *run) signal(kill bool) {
	r.init.still.RLock() // behind a Pause, which it would undo
	defer r.init.still.RUnlock()
	id, _, err := r.init.send(wire.KindSignal, &wire.Signal{Exec: r.id, Kill: kill})
	if err == nil {
		r.init.drop(id)
	}
}

// answer takes one frame; over: it was the last.
func (r *run) answer(frame wire.Frame) (result Result, over bool, err error) {
	switch frame.Kind {
	case wire.KindStarted:
		if r.command.Started != nil {
			r.command.Started()
		}
		return Result{}, false, nil
	case wire.KindExited:
		var m wire.Exited
		if err := frame.Decode(&m); err != nil {
			return Result{}, true, fmt.Errorf("isolate: exec: %w", err)
		}
		result := r.result(m)
		if m.Terminated {
			result.Why = r.why
		}
		return result, true, nil
	}
	frame.Close()
	return Result{}, true, fmt.Errorf("isolate: exec: unexpected frame %d", frame.Kind)
}

func (r *run) result(m wire.Exited) Result {
	result := Result{Duration: time.Duration(m.Nanos), Left: int(m.Left)}
	ended := r.cause
	if ended == "" {
		ended = CauseCancelled // by Detach
	}
	if m.Start != "" {
		result.Cause, result.StartError = CauseStart, m.Start
		if m.Terminated {
			result.Cause, result.StartError = ended, ""
		}
		return result
	}
	status := syscall.WaitStatus(m.Status)
	switch {
	case status.Signaled() && m.Terminated:
		result.Cause = ended
	case status.Signaled():
		result.Cause = CauseSignal
		result.Signal = strings.TrimPrefix(unix.SignalName(status.Signal()), "SIG")
	default:
		code := status.ExitStatus()
		result.Cause, result.ExitCode = CauseExit, &code
		if m.Terminated {
			result.Cause = ended
		}
	}
	return result
}

// outputs are the pipes of one command.
type outputs struct {
	child          []int  // the command's ends
	stdout, stderr uint64 // their places in child, from 1; 0: discarded
	readers        []*os.File
	done           chan struct{}
}

func openOutputs(c Command) (*outputs, error) {
	o := &outputs{done: make(chan struct{}, 2)}
	var err error
	o.stdout, err = o.open(c.Stdout)
	if err == nil && sameWriter(c.Stdout, c.Stderr) {
		o.stderr = o.stdout
		return o, nil
	}
	if err == nil {
		o.stderr, err = o.open(c.Stderr)
	}
	if err != nil {
		o.closeChild()
		o.finish()
		return nil, fmt.Errorf("isolate: exec: open output: %w", err)
	}
	return o, nil
}

// sameWriter compares without the panic of types that can't be compared.
func sameWriter(a, b io.Writer) bool {
	defer func() { _ = recover() }()
	return a == b
}

// open makes one pipe and returns its place. Programs expect a blocking write end.
func (o *outputs) open(w io.Writer) (uint64, error) {
	if w == nil {
		return 0, nil
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return 0, err
	}
	o.child = append(o.child, ends[1])
	_, _ = unix.FcntlInt(uintptr(ends[1]), unix.F_SETPIPE_SZ, pipeSize) // a user with many pipes is refused: any size does
	if err := unix.SetNonblock(ends[0], true); err != nil {
		unix.Close(ends[0])
		return 0, err
	}
	reader := os.NewFile(uintptr(ends[0]), "output")
	o.readers = append(o.readers, reader)
	go func() {
		copyOutput(w, reader)
		o.done <- struct{}{}
	}()
	return uint64(len(o.child)), nil
}

func (o *outputs) closeChild() {
	for _, fd := range o.child {
		unix.Close(fd)
	}
}

// finish returns when everything that was written has been handed on.
func (o *outputs) finish() {
	for _, r := range o.readers {
		r.SetReadDeadline(time.Now().Add(outputGrace))
	}
	for range o.readers {
		<-o.done
	}
}

// copyOutput hands on what a pipe gives until its end, or, past a deadline, until it is
// empty. A writer that fails gets no more; the command is not to notice.
func copyOutput(w io.Writer, r *os.File) {
	defer r.Close()
	buf := make([]byte, copySize)
	for {
		n, err := r.Read(buf)
		if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
			n, err = readWaiting(r, buf)
		}
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				w = io.Discard
			}
		}
		if err != nil {
			return
		}
	}
}

// readWaiting reads what is there now, whatever the deadline.
func readWaiting(r *os.File, buf []byte) (n int, err error) {
	raw, err := r.SyscallConn()
	if err != nil {
		return 0, err
	}
	ctlErr := raw.Control(func(fd uintptr) { n, err = unix.Read(int(fd), buf) })
	if err == nil {
		err = ctlErr
	}
	if n <= 0 && err == nil {
		err = io.EOF
	}
	return max(n, 0), err
}
