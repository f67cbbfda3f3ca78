package inside

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

const (
	// ModeLaunch is the second argument of a process that becomes a command once it is bounded.
	ModeLaunch = "launch"
	doorFD     = 4 // of a launcher or supervisor: its control group's cgroup.procs, where there is one
	// launchLimit bounds the start of a launcher or supervisor, which takes milliseconds.
	launchLimit = 10 * time.Second
	// spareThreads are what this program may start beside those that it has, where it shares a limit of processes with commands.
	spareThreads = 2
)

// entrance is how commands get into their control groups. Of version 1, the thread that they
// are forked from enters, and they are born inside. Of version 2 a thread can't be elsewhere
// than its process, which must not be killed with the commands: they enter themselves.
type entrance struct {
	threads []*os.File
	whole   *os.File // nil where there is none
}

// entranceOf takes the last descriptors of a spec's frame away, which stay open.
func entranceOf(spec wire.Spec, frame *wire.Frame) (entrance, error) {
	if spec.Doors > uint64(len(frame.Files)) {
		return entrance{}, fmt.Errorf("%d descriptors, %d doors", len(frame.Files), spec.Doors)
	}
	others := len(frame.Files) - int(spec.Doors)
	doors := frame.Files[others:]
	frame.Files = frame.Files[:others]
	if spec.Whole && len(doors) == 1 {
		return entrance{whole: doors[0]}, nil
	}
	return entrance{threads: doors}, nil
}

// enter moves the calling thread into the control groups of the commands; the rest of this
// process stays where it is. The kernel checks who opened the files, so no capability is needed.
func (e entrance) enter() error {
	for _, door := range e.threads {
		if _, err := door.WriteString("0"); err != nil {
			return fmt.Errorf("enter control group: %w", err)
		}
	}
	return nil
}

// launches tells whether a command has to be started through a launcher.
func (e entrance) launches(x wire.Exec) bool { return e.whole != nil || x.Processes > 0 }

// again is this program, started once more to start a command.
type again struct{ path, mode string }

// program is what runs a command: this program again, told by arguments and descriptors.
func (e entrance) program(by again, x wire.Exec, standard []uintptr, status *os.File) *program {
	p := &program{path: by.path, files: append(standard, status.Fd())}
	limit := 0
	if x.Processes > 0 {
		limit = int(x.Processes) + ownThreads() + spareThreads
	}
	door := "no"
	if e.whole != nil {
		p.files, door = append(p.files, e.whole.Fd()), "door"
	}
	p.argv = []string{selfExe, by.mode, strconv.Itoa(limit), door}
	return p
}

// ownThreads counts those of this process, which the limit of processes counts too.
func ownThreads() int {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 16 // more than it has
	}
	return len(threads)
}

// bounded makes the calling process one of the commands: as its first two arguments say, it
// enters their control group and may not start more processes. It returns the others.
func bounded(args []string) ([]string, error) {
	if len(args) < 3 {
		return nil, errors.New("too few arguments")
	}
	if args[1] == "door" {
		unix.CloseOnExec(doorFD)
		door := os.NewFile(doorFD, "door")
		if _, err := door.WriteString("0"); err != nil {
			return nil, fmt.Errorf("enter control group: %w", err)
		}
		door.Close()
	}
	limit, err := strconv.ParseUint(args[0], 10, 32)
	if err != nil {
		return nil, err
	}
	if limit > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return nil, fmt.Errorf("limit processes: %w", err)
		}
	}
	return args[2:], nil
}

// Launch is the launcher of a command, given as its path and its arguments behind what bounds
// it. It says on descriptor 3 why it could not start it.
func Launch(args []string) int {
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // its program is the init's
	unix.CloseOnExec(statusFD)
	status := os.NewFile(statusFD, "status")
	command, err := bounded(args)
	if err == nil {
		err = startError(command[0], syscall.Exec(command[0], command[1:], os.Environ()))
	}
	fmt.Fprint(status, err)
	return 1
}

// launched waits for a launcher to have become its command.
func launched(status *os.File) error {
	status.SetReadDeadline(time.Now().Add(launchLimit))
	said, err := io.ReadAll(io.LimitReader(status, 4096))
	if err == nil && len(said) > 0 {
		err = errors.New(string(said))
	}
	return err
}
