package inside

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

const (
	// ModeStrong is the second argument of a process that runs a command on a kernel of the command's own.
	ModeStrong = "strong"
	// runtimeFailed is the exit code of gVisor's program when it could not do its work itself.
	runtimeFailed = 128
	// maxMessages bounds what is read of the runtime's messages, in bytes.
	maxMessages = 16 << 10
)

// strong is the fence of inits in namespaces whose commands have a kernel of their own each: gVisor's. The namespaces stay
// around it, so that who gets out of that kernel is in a sandbox like another.
type strong struct{ spec wire.Spec }

func (s strong) reaper() reaper { return strongReaper{} }

func (s strong) enclose(j command, self string) (*enclosure, error) {
	m := innerOf(j, s.spec)
	var err error
	if m.Dir, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", j.cwd)); err != nil {
		return nil, fmt.Errorf("find working directory: %w", err)
	}
	o := strongOptions{hostNetwork: s.spec.Network || s.spec.Listen != 0, caches: s.spec.Caches}
	return newEnclosure(m, self, outer{path: FencedPath, argv: append([]string{FencedPath, ModeStrong}, o.strings()...)})
}

// strongReaper asks only what was started itself to end: it hands on to the command's processes, and a kernel would not
// survive the signal.
type strongReaper struct{ namespaceReaper }

func (r strongReaper) signal(sig syscall.Signal, spared map[int]bool) {
	if sig == unix.SIGKILL {
		r.namespaceReaper.signal(sig, spared)
		return
	}
	for pid, parent := range parentsOfAll() {
		if parent == os.Getpid() && !spared[pid] {
			unix.Kill(pid, sig)
		}
	}
}

// Strong is the host of one command's kernel: it starts gVisor's program with a Guest, hands on SIGTERM and what the guest
// says, and ends when that kernel has. It is killed by its own hand when the kernel died before the command.
func Strong(args []string) int {
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // its program is the init's
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, unix.SIGTERM)
	h := host{dir: strongDir(os.Getpid())}
	var err error
	if h.options, err = optionsOf(args); err == nil {
		err = h.start()
	}
	if err != nil {
		os.RemoveAll(h.dir)
		fmt.Fprintf(os.Stderr, "start gVisor: %v", err)
		return 1
	}
	go func() {
		for range terminated {
			h.ask.Write([]byte{0})
		}
	}()
	return h.serve()
}

// host is what a command's kernel is started from.
type host struct {
	options  strongOptions
	dir      string
	pid      int      // of gVisor's program
	said     *os.File // by the guest
	ask      *os.File // the guest to terminate
	messages *os.File // of gVisor's program
}

// start starts gVisor's program, whose own messages go to a file.
func (h *host) start() error {
	if err := makeBundle(h.options, h.dir); err != nil {
		return err
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	program, err := os.Open(FencedPath)
	if err != nil {
		return fmt.Errorf("open own program: %w", err)
	}
	defer program.Close()
	if h.messages, err = os.OpenFile(h.dir+"/messages", os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		return err
	}
	said, child, err := os.Pipe()
	if err != nil {
		return err
	}
	defer child.Close()
	asked, ask, err := os.Pipe()
	if err != nil {
		return err
	}
	defer asked.Close()
	h.said, h.ask = said, ask
	h.pid, err = syscall.ForkExec(runscPath, strongArgv(h.options, h.dir), &syscall.ProcAttr{
		Env: []string{"PATH=" + defaultPath}, Dir: "/",
		Files: []uintptr{null.Fd(), null.Fd(), h.messages.Fd(), 0, 1, stderrFD, child.Fd(), innerFD, asked.Fd(), program.Fd()},
	})
	if err != nil {
		return startError(runscPath, err)
	}
	// What holds the command's pipes open is to be its kernel alone.
	for _, fd := range []int{0, 1, stderrFD} {
		unix.Dup3(int(null.Fd()), fd, unix.O_CLOEXEC)
	}
	return nil
}

// serve returns the exit code of this process when the kernel is gone.
func (h *host) serve() int {
	heard, _ := io.Copy(os.Stderr, h.said)
	var status syscall.WaitStatus
	for {
		if _, err := syscall.Wait4(h.pid, &status, 0, nil); err != syscall.EINTR {
			break
		}
	}
	failure := h.lastMessage()
	os.RemoveAll(h.dir)
	switch {
	case heard == 0 && status.ExitStatus() == runtimeFailed:
		fmt.Fprintf(os.Stderr, "start gVisor: %s", failure)
		return 1
	case status.ExitStatus() == 0:
		return 0
	}
	unix.Kill(os.Getpid(), unix.SIGKILL)
	return 1
}

// lastMessage is what gVisor's program wrote last.
func (h *host) lastMessage() string {
	buf := make([]byte, maxMessages)
	n, _ := h.messages.ReadAt(buf, 0)
	lines := slices.DeleteFunc(strings.Split(string(buf[:n]), "\n"), func(line string) bool { return strings.TrimSpace(line) == "" })
	if len(lines) == 0 {
		return "it says nothing"
	}
	return lines[len(lines)-1]
}
