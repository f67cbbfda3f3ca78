package inside

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// defaultPath is where programs are looked for when the command's environment has no PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

var (
	errEmptyCommand = errors.New("empty command")
	errAborted      = errors.New("not started: it was ended before")
)

// outsideError is a path that leads out of the workspace, by a link, by ".." or because it is absolute. It is EXDEV, as the kernel says.
type outsideError struct{}

func (outsideError) Error() string { return "leads out of the workspace" }
func (outsideError) Unwrap() error { return unix.EXDEV }

// openBelow opens a path below the workspace. What leads out, in any part of it, is an outsideError.
func openBelow(workspace, name string, flags, mode uint64) (int, error) {
	root, err := unix.Open(workspace, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(root)
	return openIn(root, name, flags, mode)
}

func openIn(root int, name string, flags, mode uint64) (int, error) {
	if name == "" {
		name = "."
	}
	how := unix.OpenHow{
		Flags:   flags | unix.O_CLOEXEC,
		Mode:    mode,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	}
	for {
		fd, err := unix.Openat2(root, name, &how)
		if err == unix.EXDEV {
			return -1, outsideError{}
		}
		if err != unix.EAGAIN && err != unix.EINTR { // EAGAIN: a rename elsewhere raced with ".."
			return fd, err
		}
	}
}

// LookPath finds a program as commands of this process's environment are found.
func LookPath(name string) (string, error) { return lookPath(name, os.Environ()) }

// lookPath finds a program as execvp does, with the command's own PATH.
func lookPath(name string, env []string) (string, error) {
	if name == "" {
		return "", unix.ENOENT
	}
	if strings.Contains(name, "/") {
		return name, nil
	}
	search := defaultPath
	for _, e := range env {
		if value, ok := strings.CutPrefix(e, "PATH="); ok {
			search = value
		}
	}
	err := error(unix.ENOENT)
	for dir := range strings.SplitSeq(search, ":") {
		if dir == "" {
			dir = "."
		}
		candidate := dir + "/" + name
		var st unix.Stat_t
		if unix.Stat(candidate, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		if st.Mode&0o111 != 0 && unix.Access(candidate, unix.X_OK) == nil {
			return candidate, nil
		}
		err = unix.EACCES
	}
	return "", err
}

// startError says in one line why a program could not be started.
func startError(name string, err error) error {
	switch err {
	case unix.ENOENT:
		var st unix.Stat_t
		if !strings.Contains(name, "/") || unix.Stat(name, &st) != nil {
			return fmt.Errorf("start %q: no such program", name)
		}
		if interpreter := interpreterOf(name); interpreter != "" {
			return fmt.Errorf("start %q: its interpreter %q does not exist", name, interpreter)
		}
		return fmt.Errorf("start %q: its loader does not exist here", name)
	case unix.EACCES:
		return fmt.Errorf("start %q: not executable", name)
	case unix.ENOEXEC:
		return fmt.Errorf("start %q: neither a program nor a script with an interpreter line", name)
	case unix.E2BIG:
		return fmt.Errorf("start %q: arguments and environment are too long for the system", name)
	}
	return fmt.Errorf("start %q: %w", name, err)
}

// interpreterOf reads the "#!" line of a script; "" where there is none.
func interpreterOf(name string) string {
	file, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer file.Close()
	line, _, err := bufio.NewReaderSize(file, 256).ReadLine()
	if err != nil {
		return ""
	}
	rest, ok := bytes.CutPrefix(line, []byte("#!"))
	if !ok {
		return ""
	}
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return ""
	}
	return string(fields[0])
}
