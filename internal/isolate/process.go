package isolate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

const (
	selfExe   = "/proc/self/exe"
	crashTail = 4096 // bytes of a dead process's standard error that are reported
)

// process is one of our own programs in its own namespaces.
type process struct {
	os    *os.Process
	conn  *wire.Conn
	crash *os.File // its standard error, in memory
}

// spawnThread runs functions on one OS thread that is never given up. A child's parent
// death signal is bound to the thread that started it, and Go ends threads at will.
type spawnThread struct{ calls chan func() }

// spawner is the process's spawn thread; a thread can't be passed in, and one is enough.
var spawner = sync.OnceValue(func() *spawnThread {
	s := &spawnThread{calls: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for call := range s.calls {
			call()
		}
	}()
	return s
})

func (s *spawnThread) do(call func()) {
	done := make(chan struct{})
	s.calls <- func() {
		defer close(done)
		call()
	}
	<-done
}

// spawn starts this program, or the lean one, in a mode. Nothing of this process's
// environment goes along, and no descriptor but the standard ones and the control socket.
func spawn(mode, binary string, attr *syscall.SysProcAttr) (*process, error) {
	conn, child, err := wire.Pair()
	if err != nil {
		return nil, err
	}
	defer child.Close()
	p := &process{conn: conn}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err == nil {
		defer null.Close()
		p.crash, err = memoryFile()
	}
	files := []*os.File{null, null, p.crash, child}
	var program *os.File
	if err == nil {
		program, err = openProgram(binary, bornAs(attr), beyond(files))
	}
	if err == nil {
		defer program.Close()
		if attr.Cloneflags != 0 {
			attr.Pdeathsig = syscall.SIGKILL // which takes its namespace along; else the end of its socket makes it end its tree
		}
		attr.Setsid = true
		spawner().do(func() {
			p.os, err = os.StartProcess(fmt.Sprintf("/proc/self/fd/%d", program.Fd()), []string{processName, mode}, &os.ProcAttr{
				Dir:   "/",
				Env:   []string{"GOMAXPROCS=2"}, // else the runtime opens and follows the host's cgroup
				Files: files,
				Sys:   attr,
			})
		})
	}
	if err != nil {
		p.release()
		return nil, fmt.Errorf("isolate: start %s: %w", mode, err)
	}
	return p, nil
}

func (p *process) release() {
	p.conn.Close()
	if p.crash != nil {
		p.crash.Close()
	}
}

// end kills the process, if it is not dead, and returns when all its namespace is.
func (p *process) end() {
	p.os.Kill()
	p.reap()
}

// reap waits for the process, whose end is near, and says how it came.
func (p *process) reap() string {
	state, err := p.os.Wait()
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(state.String() + " " + p.lastWords())
}

// lastWords is what the process wrote before it died, in one line.
func (p *process) lastWords() string {
	buf := make([]byte, crashTail)
	n, _ := p.crash.ReadAt(buf, 0)
	return strings.Join(strings.Fields(string(buf[:n])), " ")
}

func memoryFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("stderr", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make memory file: %w", err)
	}
	return os.NewFile(uintptr(fd), "stderr"), nil
}

// bornAs is the host's user id of a process with these attributes.
func bornAs(attr *syscall.SysProcAttr) int {
	switch {
	case len(attr.UidMappings) > 0:
		return attr.UidMappings[0].HostID
	case attr.Credential != nil:
		return int(attr.Credential.Uid)
	}
	return os.Geteuid()
}

// openProgram opens the program to execute: the one that was asked for, the lean init
// beside this executable, or this executable itself, also when that was deleted since.
// A descriptor is executed, so no path has to be reachable by the sandbox's user; it is
// floor or above.
func openProgram(binary string, uid, floor int) (*os.File, error) {
	if binary == "" {
		binary = selfExe
		if self, err := os.Executable(); err == nil {
			lean := filepath.Join(filepath.Dir(self), processName)
			if fi, err := os.Stat(lean); err == nil && fi.Mode().IsRegular() {
				binary = lean
			}
		}
	}
	fd, err := unix.Open(binary, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open program %q: %w", binary, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open program %q: %w", binary, err)
	}
	safe, err := raise(fd, floor)
	if err != nil {
		return nil, err
	}
	if st.Mode&0o001 != 0 || uid == int(st.Uid) {
		return os.NewFile(uintptr(safe), binary), nil
	}
	unix.Close(safe)
	return copyProgram(binary, floor)
}

// copyProgram makes a copy that anybody may execute, for a program with mode 0700.
func copyProgram(binary string, floor int) (*os.File, error) {
	source, err := os.Open(binary)
	if err != nil {
		return nil, fmt.Errorf("copy program: %w", err)
	}
	defer source.Close()
	fd, err := unix.MemfdCreate(processName, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("copy program: %w", err)
	}
	file := os.NewFile(uintptr(fd), processName)
	if _, err = file.ReadFrom(source); err == nil {
		err = file.Chmod(0o555)
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("copy program: %w", err)
	}
	// Executing a file that is open for writing is ETXTBSY.
	again, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_PATH|unix.O_CLOEXEC, 0)
	file.Close()
	if err != nil {
		return nil, fmt.Errorf("copy program: %w", err)
	}
	if again, err = raise(again, floor); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(again), processName), nil
}

// beyond is the lowest descriptor that a child does not move one of its files to, or a pipe
// of the runtime's, on their way to 0, 1 and so on: it uses those above the highest of them.
func beyond(files []*os.File) int {
	highest := 0
	for _, f := range files {
		highest = max(highest, int(f.Fd()))
	}
	return highest + len(files) + 3
}

// raise moves a descriptor to floor or above.
func raise(fd, floor int) (int, error) {
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, floor)
	unix.Close(fd)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EMFILE) {
		return -1, fmt.Errorf("move descriptor: the limit of open files is too low: raise it, as with ulimit -n 1024: %w", err)
	}
	if err != nil {
		return -1, fmt.Errorf("move descriptor: %w", err)
	}
	return high, nil
}

// namespaces describes a new user namespace with one id, and the namespaces of flags in it.
func namespaces(r Rung, flags uintptr) *syscall.SysProcAttr {
	uid, gid := os.Getuid(), os.Getgid()
	if r == RungRoot {
		uid, gid = HostID, HostID
	}
	return &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | flags,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: SandboxID, HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: SandboxID, HostID: gid, Size: 1}},
		// Only a privileged parent may drop its supplementary groups, and must.
		GidMappingsEnableSetgroups: r == RungRoot,
		Credential:                 &syscall.Credential{Uid: SandboxID, Gid: SandboxID, NoSetGroups: r != RungRoot},
		// A user id other than 0 loses its capabilities at exec without these.
		AmbientCaps: allCapabilities(),
	}
}

func allCapabilities() []uintptr {
	var all []uintptr
	for c := uintptr(0); c < 64; c++ {
		if unix.Prctl(unix.PR_CAPBSET_READ, c, 0, 0, 0) == unix.EINVAL {
			break
		}
		all = append(all, c)
	}
	return all
}
