package inside

import (
	"os"

	"golang.org/x/sys/unix"
)

// CloseInherited closes what the parent leaked: every descriptor above a number
// that is not close-on-exec. This process's own are.
func CloseInherited(above int) {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return
	}
	for _, name := range names {
		fd := 0
		for _, digit := range name {
			fd = fd*10 + int(digit-'0')
		}
		if fd <= above {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
}
