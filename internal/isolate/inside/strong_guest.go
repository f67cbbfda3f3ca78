package inside

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

const (
	// ModeGuest is the second argument of process 1 of a command's own kernel.
	ModeGuest = "guest"
	// ModeConfine is the second argument of a process there that becomes the command.
	ModeConfine = "confine"
)

// Descriptors of a guest beside the standard ones, which are gVisor's program's.
const (
	guestStdinFD = iota + 3
	guestStdoutFD
	guestStderrFD
	guestSaidFD
	guestInnerFD
	guestAskFD     // the host writes a byte for SIGTERM: gVisor's program hands on none
	guestProgramFD // what it executes; of gVisor's program only
)

// Guest runs the command that it was told, as the user that commands are everywhere, and says how it ended like Fenced.
// With it ends everything on its kernel.
func Guest() int {
	for fd := guestStdinFD; fd < guestProgramFD; fd++ {
		unix.CloseOnExec(fd)
	}
	said := os.NewFile(guestSaidFD, "said")
	catchSignals() // which commands may send: this kernel takes both for the same user
	pid, stay, err := beginInner()
	if err != nil {
		fmt.Fprint(said, err)
		return 0
	}
	said.Write([]byte{fencedStarted})
	go terminateWhenAsked(os.NewFile(guestAskFD, "ask"))
	var status syscall.WaitStatus
	for {
		var got int
		got, err = syscall.Wait4(-1, &status, 0, nil)
		if got == pid && !stay || err != nil && err != syscall.EINTR {
			break
		}
	}
	left := tasksOf(func(pid int) bool { return pid != os.Getpid() })
	binary.Write(said, binary.NativeEndian, fencedEnd{Status: uint32(status), Left: uint32(left)})
	return 0
}

// terminateWhenAsked asks everything that the command is made of to end, at each byte.
func terminateWhenAsked(asks *os.File) {
	for ask := make([]byte, 1); ; {
		if _, err := asks.Read(ask); err != nil {
			return
		}
		unix.Kill(-1, unix.SIGTERM)
		unix.Kill(-1, unix.SIGCONT) // a stopped process gets its chance too
	}
}

// beginInner starts the command; stay: the end of its last process counts.
func beginInner() (pid int, stay bool, err error) {
	content, err := io.ReadAll(os.NewFile(guestInnerFD, "inner"))
	if err != nil {
		return 0, false, fmt.Errorf("read command: %w", err)
	}
	var m wire.Inner
	if err := (wire.Frame{Body: content}).Decode(&m); err != nil {
		return 0, false, err
	}
	if err := unix.Chdir(m.Dir); err != nil {
		return 0, false, fmt.Errorf("enter working directory %q: %w", m.Dir, err)
	}
	name, err := lookPath(m.Argv[0], m.Env)
	if err != nil {
		return 0, false, startError(m.Argv[0], err)
	}
	pid, err = confined(name, m)
	return pid, m.Stay, err
}

// confined starts what becomes the command in a user namespace where the one user of this kernel, to which all files of
// the sandbox belong, has the number that it has in other sandboxes. It takes a process of one thread.
func confined(name string, m wire.Inner) (int, error) {
	status, child, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer status.Close()
	id, err := strconv.Atoi(sandboxID)
	if err != nil {
		return 0, err
	}
	alone := []syscall.SysProcIDMap{{ContainerID: id, HostID: 0, Size: 1}}
	argv := slices.Concat([]string{selfExe, ModeConfine, strconv.FormatBool(m.NoSetuid), name}, m.Argv)
	pid, err := syscall.ForkExec(selfExe, argv, &syscall.ProcAttr{
		Env: m.Env, Files: []uintptr{guestStdinFD, guestStdoutFD, guestStderrFD, child.Fd()},
		Sys: &syscall.SysProcAttr{
			Setsid: true, Cloneflags: unix.CLONE_NEWUSER, UidMappings: alone, GidMappings: alone, GidMappingsEnableSetgroups: true,
		},
	})
	child.Close()
	if err == unix.ENAMETOOLONG { // what gVisor says of one long argument
		return 0, startError(name, unix.E2BIG)
	}
	if err != nil {
		return 0, fmt.Errorf("make user namespace: %w", err)
	}
	for fd := guestStdinFD; fd <= guestStderrFD; fd++ {
		unix.Close(fd)
	}
	return pid, launched(status)
}

// Confine becomes a command, given as its path and arguments behind whether it is kept from setting setuid bits, under the
// filter of commands. It lost its capabilities when it was executed as another user than 0. It says on descriptor 3 why it
// could not.
func Confine(args []string) int {
	unix.CloseOnExec(statusFD)
	status := os.NewFile(statusFD, "status")
	runtime.LockOSThread()
	unix.Umask(0o022)
	err := confineThread(args[0] == strconv.FormatBool(true))
	if err == nil {
		err = startError(args[1], syscall.Exec(args[1], args[2:], os.Environ()))
	}
	fmt.Fprint(status, err)
	return 1
}

func confineThread(noSetuid bool) error {
	return errors.Join(noCapabilities(), noNewPrivileges(), refuseCalls(filterOf{noSetuid: noSetuid}))
}
