package escape

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// canary is what a secret of the host looks like.
	canary = "canary-1f6c"
	before = "as it was"
	// leakedFD is a descriptor that a careless launcher left open.
	leakedFD = 251
)

// scene is what there is on the host to be reached, as the attempts are told of it.
type scene struct {
	Dir      string // open to everybody
	Secret   string // file, readable to everybody
	Writable string // file, writable to everybody
	Shm      string // file below /dev/shm, readable to everybody
	Port     int    // of a TCP server on the loopback
	UDPPort  int
	Abstract string // name of a server's socket
	Socket   string // path of a server's socket
	Victim   int    // process id; canary is in its environment and its arguments
	Worker   int    // process id of whoever started the sandbox
	SysV     int    // key of a segment, a semaphore and a queue
	Queue    string // name of a POSIX message queue
	Mark     string // argument of processes that are to outlive their step, as seconds
	// MountPoint is a place where something is mounted at the next step.
	MountPoint string
}

// newScene sets the host up. Everything is gone at the end of the test.
func newScene(t *testing.T) scene {
	t.Helper()
	dir := scratch(t)
	s := scene{
		Dir: filepath.Join(dir, "outside"), Worker: os.Getpid(), SysV: 0x57460000 | os.Getpid()&0xffff,
		Abstract: fmt.Sprintf("@escape-%d", os.Getpid()), Queue: fmt.Sprintf("escape-%d", os.Getpid()),
		Mark: newMark(), Shm: fmt.Sprintf("/dev/shm/escape-%d", os.Getpid()),
	}
	s.Secret, s.Writable, s.Socket = filepath.Join(s.Dir, "secret"), filepath.Join(s.Dir, "writable"), filepath.Join(s.Dir, "socket")
	must(t, os.Mkdir(s.Dir, 0o755))
	must(t, os.Chmod(s.Dir, 0o777))
	t.Cleanup(func() { os.Remove(s.Shm) })
	s.restore(t)
	s.serve(t)
	s.victim(t)
	s.share(t)
	leak(t)
	return s
}

// restore puts the files back and says what had been changed.
func (s scene) restore(t *testing.T) string {
	t.Helper()
	var changed []string
	for name, want := range map[string]string{s.Secret: canary, s.Writable: before, s.Shm: canary} {
		if got, err := os.ReadFile(name); err == nil && string(got) == want {
			continue
		}
		changed = append(changed, name)
		must(t, os.WriteFile(name, []byte(want), 0o644))
	}
	must(t, os.Chmod(s.Writable, 0o666))
	entries, err := os.ReadDir(s.Dir)
	must(t, err)
	for _, e := range entries {
		if !strings.Contains("secret writable socket", e.Name()) {
			changed = append(changed, e.Name())
			must(t, os.RemoveAll(filepath.Join(s.Dir, e.Name())))
		}
	}
	return strings.Join(changed, " ")
}

func (s *scene) serve(t *testing.T) {
	t.Helper()
	for _, at := range []struct{ network, address string }{{"tcp", "127.0.0.1:0"}, {"unix", s.Abstract}, {"unix", s.Socket}} {
		l, err := net.Listen(at.network, at.address)
		must(t, err)
		t.Cleanup(func() { l.Close() })
		if tcp, ok := l.Addr().(*net.TCPAddr); ok {
			s.Port = tcp.Port
		}
	}
	must(t, os.Chmod(s.Socket, 0o777))
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { udp.Close() })
	s.UDPPort = udp.LocalAddr().(*net.UDPAddr).Port
}

func (s *scene) victim(t *testing.T) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "read x; : "+canary)
	cmd.Env = []string{"CANARY=" + canary}
	in, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	s.Victim = cmd.Process.Pid
}

// share makes what processes of different origins share: memory, semaphores, queues, keys.
func (s scene) share(t *testing.T) {
	t.Helper()
	id, err := unix.SysvShmGet(s.SysV, 4096, unix.IPC_CREAT|0o666)
	must(t, err)
	t.Cleanup(func() { unix.SysvShmCtl(id, unix.IPC_RMID, nil) })
	mem, err := unix.SysvShmAttach(id, 0, 0)
	must(t, err)
	copy(mem, canary)
	must(t, unix.SysvShmDetach(mem))
	for _, made := range []struct{ get, control, count uintptr }{
		{unix.SYS_SEMGET, unix.SYS_SEMCTL, 1}, {unix.SYS_MSGGET, unix.SYS_MSGCTL, 0},
	} {
		args := []uintptr{uintptr(s.SysV), unix.IPC_CREAT | 0o666, 0}
		if made.count > 0 {
			args = []uintptr{uintptr(s.SysV), made.count, unix.IPC_CREAT | 0o666}
		}
		id, _, errno := unix.Syscall(made.get, args[0], args[1], args[2])
		if errno != 0 {
			t.Fatal(errno)
		}
		t.Cleanup(func() {
			if made.count > 0 {
				unix.Syscall(made.control, id, 0, unix.IPC_RMID)
				return
			}
			unix.Syscall(made.control, id, unix.IPC_RMID, 0)
		})
	}
	queue, err := openQueue(s.Queue, unix.O_CREAT|unix.O_RDWR)
	must(t, err)
	t.Cleanup(func() {
		unix.Close(queue)
		name, _ := unix.BytePtrFromString(s.Queue)
		unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(name)), 0, 0)
	})
	// The thread's session keyring is what its children start with.
	runtime.LockOSThread()
	_, err = unix.AddKey("user", s.Queue, []byte(canary), unix.KEY_SPEC_USER_KEYRING)
	must(t, err)
}

func openQueue(name string, flags int) (int, error) {
	p, err := unix.BytePtrFromString(name)
	if err != nil {
		return -1, err
	}
	fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(p)), uintptr(flags), 0o666, 0, 0, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// leak keeps the end of a pipe and a directory open for children, as a careless launcher does.
func leak(t *testing.T) {
	t.Helper()
	var ends [2]int
	must(t, unix.Pipe2(ends[:], unix.O_CLOEXEC))
	must(t, unix.Dup2(ends[1], leakedFD))
	root, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	must(t, unix.Dup2(root, leakedFD+1))
	unix.Close(root)
	t.Cleanup(func() {
		for _, fd := range []int{ends[0], ends[1], leakedFD, leakedFD + 1} {
			unix.Close(fd)
		}
	})
}

// scratch is a directory that anybody may pass, and that goes whatever is left in it.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "escape-")
	must(t, err)
	must(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() {
		filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				os.Chmod(name, 0o700)
			}
			return nil
		})
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func copyFile(t *testing.T, from, to string, mode fs.FileMode) {
	t.Helper()
	content, err := os.ReadFile(from)
	must(t, err)
	must(t, os.WriteFile(to, content, mode))
	must(t, os.Chmod(to, mode))
}

// newMark is a number of seconds that no other run of these tests uses meanwhile.
func newMark() string { return strconv.Itoa(10_000_000 + os.Getpid()) }

// survivors are the processes of the host with a mark.
func survivors(mark string) []int {
	var pids []int
	for _, name := range glob("/proc/[0-9]*/cmdline") {
		line, err := os.ReadFile(name)
		var pid int
		if err == nil && strings.Contains(string(line), "\x00"+mark+"\x00") {
			fmt.Sscanf(name, "/proc/%d/", &pid)
			pids = append(pids, pid)
		}
	}
	return pids
}

func endSurvivors(mark string) {
	for _, pid := range survivors(mark) {
		unix.Kill(pid, syscall.SIGKILL)
	}
}
