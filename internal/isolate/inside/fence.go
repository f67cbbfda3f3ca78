package inside

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

// fence keeps each command of a hosted init from what it must not reach, where the init itself has no namespaces.
type fence interface {
	// enclose makes the place of one command, whose directory is open. The caller closes it when the command has been
	// started, or was not.
	enclose(j command, self string) (*enclosure, error)
	// reaper reaches what came of commands in their places.
	reaper() reaper
}

// enclosure is where one command is started, and by what.
type enclosure struct {
	where *compartment // the thread that it is forked from; nil: that of all commands
	outer *outer       // what makes the place, if no thread does; nil: the command is started as it is
	said  *os.File     // what outer and ModeFenced say, and where the latter is asked; nil without outer
}

// outer is a program that makes a place and starts ModeFenced there, with all descriptors that it was given.
type outer struct {
	path  string
	argv  []string
	files []*os.File // from fencedFD on, the last one above standard error's copy
}

// Descriptors of ModeFenced and of what is around it. Standard error of all of them is the pipe that the init reads;
// that of the command waits at stderrFD. Below are the launcher's or supervisor's.
const (
	stderrFD  = 5
	programFD = 6
	innerFD   = 7
	outerFD   = 8 // the first of the outer program's own
	// ModeFenced is the second argument of the program that starts a command inside a fence's place.
	ModeFenced = "fenced"
	// FencedPath is its first argument.
	FencedPath = "/proc/self/fd/6"
	// fencedStarted is what it says when the command runs.
	fencedStarted = 1
)

// newFence makes what the spec asks for, nil if that is nothing.
func newFence(spec wire.Spec, into entrance) (fence, error) {
	switch spec.Fence {
	case "":
		return nil, nil
	case wire.FenceBubblewrap:
		return newBubblewrap(spec)
	case wire.FenceLandlock:
		return newLandlock(spec, into)
	}
	return nil, fmt.Errorf("unknown fence %q", spec.Fence)
}

// innerOf is what a program inside a place is told of a command.
func innerOf(j command, spec wire.Spec) *wire.Inner {
	return &wire.Inner{Argv: j.exec.Argv, Env: j.exec.Env, Processes: j.exec.Processes, NoSetuid: spec.NoSetuid, Stay: j.exec.Log != ""}
}

// newEnclosure makes what a program that makes a place needs; own are its descriptors from outerFD on.
func newEnclosure(m *wire.Inner, self string, o outer) (*enclosure, error) {
	inner, err := memoryFile("inner", wire.Encode(m))
	if err != nil {
		return nil, err
	}
	program, err := os.OpenFile(self, unix.O_PATH, 0)
	if err != nil {
		inner.Close()
		return nil, fmt.Errorf("open own program: %w", err)
	}
	o.files = append([]*os.File{program, inner}, o.files...)
	e := &enclosure{outer: &o}
	said, child, err := conversation()
	if err != nil {
		e.close()
		return nil, err
	}
	e.said = said
	o.files = append(o.files, child)
	return e, nil
}

// conversation is a pair of sockets; the first has deadlines.
func conversation() (said, child *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	child = os.NewFile(uintptr(pair[1]), "child")
	if err := unix.SetNonblock(pair[0], true); err != nil {
		return nil, nil, errors.Join(err, unix.Close(pair[0]), child.Close())
	}
	return os.NewFile(uintptr(pair[0]), "said"), child, nil
}

// ask tells what is in the place that its command is asked to end. A signal would not do: the command can send those too.
func (e *enclosure) ask() {
	if e != nil && e.said != nil {
		e.said.Write([]byte{1}) // it fails where the place has ended
	}
}

// program is what is started in place of a command, by way of a launcher or supervisor if there is one.
func (e *enclosure) program(standard []uintptr, by *program) program {
	said := e.outer.files[len(e.outer.files)-1].Fd()
	p := program{path: e.outer.path, argv: e.outer.argv, files: []uintptr{standard[0], standard[1], said, 0, 0}}
	if by != nil {
		// The launcher's or supervisor's program is ours too, and its own descriptor is about to be another's.
		p.path, p.argv = FencedPath, append(slices.Clone(by.argv), append([]string{e.outer.path}, e.outer.argv...)...)
		copy(p.files[3:], by.files[3:])
		standard = by.files
		p.files[0], p.files[1] = standard[0], standard[1]
	}
	p.files = append(p.files, standard[2])
	for _, f := range e.outer.files[:len(e.outer.files)-1] {
		p.files = append(p.files, f.Fd())
	}
	return p
}

// started gives up what only the start needed; what is said can still be read.
func (e *enclosure) started() {
	if e == nil {
		return
	}
	if e.where != nil {
		e.where.close()
		e.where = nil
	}
	if e.outer != nil {
		for _, f := range e.outer.files {
			f.Close()
		}
		e.outer.files = nil
	}
}

func (e *enclosure) close() {
	if e == nil {
		return
	}
	e.started()
	if e.said != nil {
		e.said.Close()
	}
}

// awaitStart waits until the command runs in its place.
func (e *enclosure) awaitStart() error {
	if e == nil || e.said == nil {
		return nil
	}
	e.said.SetReadDeadline(time.Now().Add(launchLimit))
	first := make([]byte, 1)
	if _, err := io.ReadFull(e.said, first); err != nil {
		return fmt.Errorf("the place of the command could not be made: %w", err)
	}
	if first[0] == fencedStarted {
		return nil
	}
	rest, err := io.ReadAll(io.LimitReader(e.said, 4096))
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return errors.New(strings.TrimSpace(string(first) + string(rest)))
}

// fencedEnd is how a command ended in its place.
type fencedEnd struct{ Status, Left uint32 }

// ended is how the command ended and how many processes it left, by what is known of the process that was started for it.
func (e *enclosure) ended(status syscall.WaitStatus, left uint64) (syscall.WaitStatus, uint64) {
	if e == nil || e.said == nil {
		return status, left
	}
	e.said.SetReadDeadline(time.Now().Add(time.Second))
	var end fencedEnd
	if binary.Read(e.said, binary.NativeEndian, &end) != nil {
		return status, left // it was killed with its place
	}
	return syscall.WaitStatus(end.Status), uint64(end.Left)
}

// memoryFile is a file in memory, to be read from its start.
func memoryFile(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(content)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("make file in memory: %w", err)
	}
	return f, nil
}
