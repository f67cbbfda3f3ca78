package inside

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/mountfd"
)

// ownProgram is where a supervisor finds this process's program, in a way that what it runs can't change the program
// by: /proc/PID/exe of a process leads to its file on the mount that it was executed from, until the process closes
// that way. "" means that there is no such place yet: see sealedCopy. It must be called while the host's files are seen.
func ownProgram() (string, error) {
	var own unix.Stat_t
	if err := unix.Stat(selfExe, &own); err != nil {
		return "", fmt.Errorf("look at own program: %w", err)
	}
	if int(own.Uid) != os.Getuid() && own.Mode&0o022 == 0 {
		return selfExe, nil // another's, who alone may change it
	}
	name, err := os.Readlink(selfExe)
	if err != nil {
		return "", fmt.Errorf("look at own program: %w", err)
	}
	fd, err := mountfd.Tree(name, readOnly)
	if err != nil {
		return "", nil // deleted, or a file in memory
	}
	var seen unix.Stat_t
	if err := unix.Fstatat(fd, "", &seen, unix.AT_EMPTY_PATH); err != nil || seen.Dev != own.Dev || seen.Ino != own.Ino {
		unix.Close(fd) // replaced since
		return "", nil
	}
	return fmt.Sprintf("/proc/self/fd/%d", fd), nil
}

// sealedCopy is the program in memory, where nothing of the host can be changed by way of it.
func sealedCopy() (string, error) {
	source, err := os.Open(selfExe)
	if err != nil {
		return "", fmt.Errorf("copy own program: %w", err)
	}
	defer source.Close()
	fd, err := unix.MemfdCreate("program", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return "", fmt.Errorf("copy own program: %w", err)
	}
	file := os.NewFile(uintptr(fd), "program")
	_, err = io.Copy(file, source)
	if err == nil {
		_, err = unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	// Executing a file that is open for writing is ETXTBSY.
	again := -1
	if err == nil {
		again, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), unix.O_PATH|unix.O_CLOEXEC, 0)
	}
	file.Close()
	high := -1
	if err == nil { // where no descriptor of a child is put
		high, err = unix.FcntlInt(uintptr(again), unix.F_DUPFD_CLOEXEC, stderrFD)
		unix.Close(again)
	}
	if err != nil {
		return "", fmt.Errorf("copy own program: %w", err)
	}
	return fmt.Sprintf("/proc/self/fd/%d", high), nil
}
