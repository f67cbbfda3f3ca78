package isolate_test

import "golang.org/x/sys/unix"

// oldModeCalls are those that newer architectures do not have.
func oldModeCalls(path func(int) uintptr) map[string][]uintptr {
	return map[string][]uintptr{
		"chmod": {unix.SYS_CHMOD, path(1), 0o4755, 0},
		"creat": {unix.SYS_CREAT, path(50), 0o4755, 0},
		"open":  {unix.SYS_OPEN, path(51), unix.O_CREAT | unix.O_WRONLY, 0o4755},
		"mknod": {unix.SYS_MKNOD, path(52), unix.S_IFREG | 0o4755, 0},
	}
}
