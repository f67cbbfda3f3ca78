package inside

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

// Fenced is the program that starts a command inside the place that a fence has made, and says how it ended: a fence's
// own program tells an exit code from a signal no more. It is process 1 of the place, as powerless as the command.
func Fenced() int {
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return 1
	}
	fd, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, outerFD)
	if err != nil {
		return 1
	}
	said := os.NewFile(uintptr(fd), "said")
	err = ignoreSignals()
	if err == nil {
		err = fenced(said)
	}
	if err != nil {
		fmt.Fprint(said, err)
		return 1
	}
	return 0
}

func fenced(said *os.File) error {
	content, err := io.ReadAll(os.NewFile(innerFD, "inner"))
	if err != nil {
		return fmt.Errorf("read command: %w", err)
	}
	var m wire.Inner
	if err := (wire.Frame{Body: content}).Decode(&m); err != nil {
		return err
	}
	name, err := lookPath(m.Argv[0], m.Env)
	if err != nil {
		return startError(m.Argv[0], err)
	}
	runtime.LockOSThread()
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbid core files: %w", err)
	}
	if m.Processes > 0 {
		limit := m.Processes + uint64(ownThreads()+spareThreads)
		if err := unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return fmt.Errorf("limit processes: %w", err)
		}
	}
	if err := renounce(filterOf{noSetuid: m.NoSetuid}); err != nil {
		return err
	}
	pid, err := withLibrarySignals(func() (int, error) {
		return syscall.ForkExec(name, m.Argv, &syscall.ProcAttr{
			Env: m.Env, Files: []uintptr{0, 1, stderrFD}, Sys: &syscall.SysProcAttr{Setsid: true},
		})
	})
	if err != nil {
		return startError(name, err)
	}
	unix.Close(stderrFD)
	if _, err := said.Write([]byte{fencedStarted}); err != nil {
		return err
	}
	var status syscall.WaitStatus
	for got := 0; got != pid; { // orphans come to this process too
		if got, err = syscall.Wait4(-1, &status, 0, nil); err != nil && err != syscall.EINTR {
			return err
		}
	}
	left := namespaceReaper{}.count()
	for stay := m.Stay || left > 0 && wasAsked(said); stay; {
		if _, err := syscall.Wait4(-1, nil, 0, nil); err != nil && err != syscall.EINTR {
			break
		}
	}
	// Nobody reads it of a detached command.
	_ = binary.Write(said, binary.NativeEndian, fencedEnd{Status: uint32(status), Left: uint32(left)})
	return nil
}

// wasAsked tells whether the command was asked to end, not killed: then what it left has the rest of the grace, and is
// killed with this process.
func wasAsked(said *os.File) bool {
	n, _, err := unix.Recvfrom(int(said.Fd()), make([]byte, 1), unix.MSG_DONTWAIT)
	return n > 0 && err == nil
}
