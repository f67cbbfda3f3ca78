// Package inside is the program that runs as process 1 of a sandbox: it builds the
// sandbox's root, then stays, attaches and detaches the workspace, runs commands, reaps,
// and reads and writes files on request. Where it can have no namespaces it is a process
// of the host (wire.Spec's Hosted), builds no root, and puts a fence around each command.
//
// Three kinds of threads: the main one keeps the capabilities (over the sandbox's own
// namespaces only) and answers the control socket; commands are forked from a second one,
// or from one of their own in its likeness, and files opened by a third, none with any
// capability. The kernel keeps these credentials per thread, so they never leave their goroutines.
//
// The package must not know plans, layers, or where a workspace comes from. It imports
// little: its start-up time is part of every cold start.
package inside

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/mountfd"
	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

// detachWait bounds the wait for a workspace that is still busy after everything was killed.
const detachWait = 2 * time.Second

// settled is how long nothing is asked of an init before it gives memory back: whoever has just started one goes on at once.
const settled = 200 * time.Millisecond

var errNoWorkspace = errors.New("no workspace is attached")

// server is one init.
type server struct {
	conn     *wire.Conn
	spec     wire.Spec
	commands *commands
	files    *files
	dir      string       // the workspace as this process sees it; "" when none is attached
	paused   map[int]bool // while everything is stopped: what had been before; else nil
	listener int          // what spec.Listen asks for, until it was handed on; -1
}

// Run serves the control socket until the other end is gone, and returns the exit code.
// It must be called on a goroutine that is locked to the process's first thread.
func Run(control *os.File) int {
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	conn, err := wire.NewConn(control)
	if err != nil {
		return 1
	}
	frame, err := conn.Recv()
	if err != nil {
		return 1
	}
	s := &server{conn: conn, listener: -1}
	if err := s.start(frame); err != nil {
		conn.Send(frame.ID, wire.KindFailed, failure(err))
		return 1
	}
	if s.sayReady(frame.ID) != nil {
		return 1
	}
	debug.SetGCPercent(50)
	for freed := false; ; {
		if !freed && !conn.Wait(settled) {
			s.commands.settle()
			freed = true
		}
		frame, err := conn.Recv()
		if errors.Is(err, io.EOF) {
			return s.stop()
		}
		if err != nil {
			s.stop()
			return 1
		}
		s.handle(frame)
	}
}

// start makes the sandbox. What is not private to it yet was made by the parent's clone.
func (s *server) start(frame wire.Frame) error {
	defer func() { frame.Close() }()
	if frame.Kind != wire.KindSpec {
		return fmt.Errorf("unexpected first frame %d", frame.Kind)
	}
	if err := frame.Decode(&s.spec); err != nil {
		return err
	}
	if s.spec.Version != wire.Version {
		return fmt.Errorf("protocol version %d, want %d: the programs are of different builds", s.spec.Version, wire.Version)
	}
	into, err := entranceOf(s.spec, &frame)
	if err != nil {
		return err
	}
	unix.Umask(0)
	s.commands = &commands{conn: s.conn, spec: s.spec, reap: namespaceReaper{}, into: into, self: selfExe}
	if s.spec.Runsc != "" {
		s.commands.fence, s.commands.reap = strong{spec: s.spec}, strongReaper{}
	}
	if s.spec.Hosted {
		s.commands.reap = treeReaper{}
		if s.commands.fence, err = newFence(s.spec, into); err != nil {
			return err
		}
		if s.commands.fence != nil {
			s.commands.reap = s.commands.fence.reaper()
			if s.commands.self, err = sealedCopy(); err != nil {
				return err
			}
		}
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("become subreaper: %w", err)
		}
		catchSignals()
	} else if err := s.isolate(frame); err != nil {
		return err
	}
	unix.Umask(0o022)
	unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	if err := startCommands(s.commands); err != nil {
		return err
	}
	s.files = newFiles(s.conn, s.spec)
	return nil
}

func (s *server) isolate(frame wire.Frame) error {
	if os.Getpid() != 1 {
		return errors.New("not process 1 of a process namespace")
	}
	var exposed []int
	for _, f := range frame.Files {
		// The root's builder closes its own: else the frame would close what has got the number since.
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("keep a mount: %w", err)
		}
		exposed = append(exposed, fd)
	}
	var err error
	if s.commands.self, err = ownProgram(); err != nil {
		return err
	}
	if err := buildRoot(s.spec, exposed); err != nil {
		return err
	}
	if err := ownStandardFiles(); err != nil {
		return err
	}
	if !s.spec.Network {
		if err := loopbackUp(); err != nil {
			return fmt.Errorf("bring loopback up: %w", err)
		}
	}
	if s.spec.Listen != 0 {
		var err error
		if s.listener, err = listen(int(s.spec.Listen)); err != nil {
			return fmt.Errorf("listen on port %d of the loopback: %w", s.spec.Listen, err)
		}
	}
	if err := unix.Sethostname([]byte("sandbox")); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	return ignoreSignals()
}

// ownStandardFiles replaces the parent's /dev/null by the sandbox's. Standard error stays:
// it is where a crash of this program is written, and no command inherits it.
func ownStandardFiles() error {
	fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/null: %w", err)
	}
	defer unix.Close(fd)
	for _, to := range []int{0, 1} {
		if err := unix.Dup3(fd, to, 0); err != nil {
			return fmt.Errorf("replace descriptor %d: %w", to, err)
		}
	}
	return nil
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}

// handle answers one request. What may take long is handed to the other threads.
func (s *server) handle(frame wire.Frame) {
	switch frame.Kind {
	case wire.KindExec:
		s.commands.submit(newCommand(frame, s.dir))
		return
	case wire.KindRead, wire.KindWrite, wire.KindStat, wire.KindList, wire.KindLook, wire.KindChange:
		s.files.submit(fileCall{frame: frame, dir: s.dir})
		return
	case wire.KindDetached:
		frame.Close()
		s.conn.Send(frame.ID, wire.KindDetached, &wire.Detached{Count: uint64(s.commands.detached())})
		return
	}
	defer frame.Close()
	var err error
	switch frame.Kind {
	case wire.KindAttach:
		err = s.attach(frame)
	case wire.KindDetach:
		err = s.detach()
	case wire.KindPause:
		err = s.pause()
	case wire.KindResume:
		err = s.resume()
	case wire.KindSignal:
		var m wire.Signal
		if err = frame.Decode(&m); err == nil {
			s.commands.signal(m)
		}
	default:
		err = fmt.Errorf("unexpected frame %d", frame.Kind)
	}
	if err != nil {
		s.conn.Send(frame.ID, wire.KindFailed, failure(err))
		return
	}
	s.conn.Send(frame.ID, wire.KindDone, nil)
}

func (s *server) attach(frame wire.Frame) error {
	var m wire.Attach
	if err := frame.Decode(&m); err != nil {
		return err
	}
	if s.dir != "" {
		return errors.New("a workspace is attached already")
	}
	if s.spec.Hosted {
		s.dir = m.Dir
		return nil
	}
	if len(frame.Files) != 1 {
		return fmt.Errorf("attach with %d descriptors", len(frame.Files))
	}
	mount := int(frame.Files[0].Fd())
	if err := mountfd.SetAttr(mount, unix.MountAttr{Attr_set: mountfd.Safe}); err != nil {
		return fmt.Errorf("restrict workspace: %w", err)
	}
	if err := mountfd.Attach(mount, unix.AT_FDCWD, workspace); err != nil {
		return err
	}
	s.dir = workspace
	return nil
}

// detach kills what runs and unmounts, never lazily: afterwards nothing can write to the layers.
func (s *server) detach() error {
	if s.dir == "" {
		return errNoWorkspace
	}
	s.commands.killAndWait()
	s.files.wait()
	if s.spec.Hosted {
		s.dir = ""
		return nil
	}
	pause := time.Millisecond
	for end := time.Now().Add(detachWait); ; pause *= 2 {
		err := unix.Unmount(workspace, unix.UMOUNT_NOFOLLOW)
		if err == nil {
			break
		}
		if err != unix.EBUSY || time.Now().After(end) {
			return fmt.Errorf("unmount workspace: %w", err)
		}
		time.Sleep(pause)
	}
	s.dir = ""
	return nil
}

// stop ends the sandbox because its worker is gone or wants it so. In namespaces the
// kernel kills the rest when process 1 exits.
func (s *server) stop() int {
	if !s.spec.Hosted {
		return 0
	}
	if s.paused != nil {
		s.resume()
	}
	s.commands.killAndWait()
	for _, dir := range []string{s.spec.Private, s.spec.Secrets} {
		if dir != "" {
			os.RemoveAll(dir) // the worker does it too, if it still can
		}
	}
	return 0
}

func failure(err error) *wire.Failure {
	var errno syscall.Errno
	f := &wire.Failure{Text: err.Error()}
	if errors.As(err, &errno) {
		f.Errno = uint64(errno)
	}
	return f
}
