package isolate

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// What a probe's command tries.
const (
	attemptRead    = "read"
	attemptWrite   = "write"
	attemptEnviron = "environ"
	attemptConnect = "connect"
	attemptSocket  = "socket"
	attemptProcess = "process"
	attemptModes   = "modes"
	attemptOutlive = "outlive"
	attemptHog     = "hog"
	attemptFork    = "fork"
	attemptBurn    = "burn"
	attemptFind    = "find"
)

// exitStopped is the exit code of an attempt that was stopped; one that worked prints how.
const exitStopped = 90

// attempt runs inside a sandbox, as a command, and returns its exit code.
func attempt(name, argument string) int {
	how := ""
	switch name {
	case attemptRead:
		how = readOutside(argument)
	case attemptWrite:
		how = writeOutside(argument)
	case attemptEnviron:
		how = readEnvironments(argument)
	case attemptConnect:
		how = connectLoopback(argument)
	case attemptSocket:
		how = connectSocket(argument)
	case attemptProcess:
		how = findProcess(argument)
	case attemptModes:
		how = changeModes(argument)
	case attemptHog:
		how = hog(argument)
	case attemptFork:
		how = fork(argument)
	case attemptBurn:
		how = burn(argument)
	case attemptFind:
		return find(argument)
	case attemptOutlive:
		return outlive(argument)
	default:
		return 1
	}
	if how == "" {
		return exitStopped
	}
	fmt.Println(how)
	return 0
}

func readOutside(secret string) string {
	for _, name := range []string{secret, "/etc/shadow", "/proc/1/root" + secret, "/proc/1/cwd" + secret} {
		if _, err := os.ReadFile(name); err == nil {
			return name + " could be read"
		}
	}
	return ""
}

func writeOutside(secret string) string {
	for _, name := range []string{secret, "/usr/.probe", "/etc/.probe", "/.probe", "/proc/sys/kernel/hostname"} {
		file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o644)
		if err == nil {
			file.Close()
			return name + " could be opened for writing"
		}
	}
	return ""
}

// readEnvironments looks at every process it can see, and for the worker among them.
func readEnvironments(worker string) string {
	if len(os.Environ()) > 0 {
		return "variables came through: " + strings.Join(os.Environ(), " ")
	}
	names, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return ""
	}
	self := fmt.Sprintf("/proc/%d/environ", os.Getpid())
	for _, name := range names {
		if content, err := os.ReadFile(name); err == nil && len(content) > 0 && name != self {
			return fmt.Sprintf("%s could be read (%d bytes)", name, len(content))
		}
	}
	if name, err := os.Readlink("/proc/" + worker + "/exe"); err == nil && worker != strconv.Itoa(os.Getpid()) {
		return "the worker's process can be seen: " + name
	}
	return ""
}

func connectLoopback(port string) string {
	number, err := strconv.Atoi(port)
	if err != nil {
		return err.Error()
	}
	if connects(unix.AF_INET, &unix.SockaddrInet4{Port: number, Addr: [4]byte{127, 0, 0, 1}}) {
		return "a server on the host's loopback could be reached"
	}
	return ""
}

func connectSocket(name string) string {
	for address, by := range map[string]string{name: "by its path", "@" + name: "by its name"} {
		if connects(unix.AF_UNIX, &unix.SockaddrUnix{Name: address}) {
			return "a server on a Unix socket of the host could be reached " + by
		}
	}
	return ""
}

func connects(family int, to unix.Sockaddr) bool {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.Connect(fd, to) == nil
}

func findProcess(worker string) string {
	pid, err := strconv.Atoi(worker)
	if err != nil {
		return err.Error()
	}
	if unix.Kill(pid, 0) == nil {
		return "the worker could be signalled"
	}
	if _, err := os.ReadFile("/proc/" + worker + "/cmdline"); err == nil {
		return "the host's processes can be seen, with their arguments"
	}
	return ""
}

func changeModes(secret string) string {
	if os.Chmod(secret, 0o644) == nil {
		return "modes, times and attributes of the worker's user's files can be changed, not their content"
	}
	return ""
}

// outlive starts itself twice over, each time in a new session, and stays in the last.
func outlive(next string) int {
	follow := map[string]string{"again": "stay"}
	if following, ok := follow[next]; ok {
		_, err := os.StartProcess(selfExe, []string{selfExe, modeProbe, attemptOutlive, following}, &os.ProcAttr{
			Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
			Sys:   &syscall.SysProcAttr{Setsid: true},
		})
		if err != nil {
			return 1
		}
		return 0
	}
	unix.Pause()
	return 0
}
