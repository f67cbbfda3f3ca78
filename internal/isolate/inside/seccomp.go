package inside

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What a filter returns, linux/seccomp.h.
const (
	seccompAllow = 0x7fff0000
	seccompErrno = 0x00050000
	seccompKill  = 0x80000000
)

// Offsets in struct seccomp_data. Arguments are 64 bits; modes and flags are the low half.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16
)

const (
	setidBits   = unix.S_ISUID | unix.S_ISGID
	createFlags = unix.O_CREAT | unix.O_TMPFILE&^unix.O_DIRECTORY
)

// modeCall is a system call with a file mode in an argument; flags >= 0 is the argument
// that says whether the mode means anything.
type modeCall struct {
	number      uint32
	mode, flags int
}

// refuseSetuid makes the calling thread and all that it starts unable to set the setuid
// or setgid bit (EPERM). It is for workspaces that are the original itself under a root
// worker, where such a file would be real. openat2 hides its mode behind a pointer and
// io_uring goes around filters: both are answered with ENOSYS, which programs expect.
func refuseSetuid() error {
	filter := setuidFilter()
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return fmt.Errorf("install seccomp filter: %w", errno)
	}
	return nil
}

func setuidFilter() []unix.SockFilter {
	const (
		load = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		jeq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		jset = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		ret  = unix.BPF_RET | unix.BPF_K
	)
	f := []unix.SockFilter{
		{Code: load, K: offsetArch},
		{Code: jeq, K: auditArch, Jt: 1},
		{Code: ret, K: seccompKill}, // another architecture has other numbers
		{Code: load, K: offsetNumber},
	}
	f = append(f, foreignNumbers()...)
	for _, number := range []uint32{unix.SYS_OPENAT2, unix.SYS_IO_URING_SETUP} {
		f = append(f,
			unix.SockFilter{Code: jeq, K: number, Jf: 1},
			unix.SockFilter{Code: ret, K: seccompErrno | uint32(unix.ENOSYS)})
	}
	argument := func(i int) unix.SockFilter {
		return unix.SockFilter{Code: load, K: uint32(offsetArgs + 8*i)}
	}
	for _, c := range modeCalls() {
		var body []unix.SockFilter
		if c.flags >= 0 {
			body = append(body, argument(c.flags),
				unix.SockFilter{Code: jset, K: createFlags, Jt: 1},
				unix.SockFilter{Code: ret, K: seccompAllow})
		}
		body = append(body, argument(c.mode),
			unix.SockFilter{Code: jset, K: setidBits, Jf: 1},
			unix.SockFilter{Code: ret, K: seccompErrno | uint32(unix.EPERM)},
			unix.SockFilter{Code: ret, K: seccompAllow})
		f = append(f, unix.SockFilter{Code: jeq, K: c.number, Jf: uint8(len(body))})
		f = append(f, body...)
	}
	return append(f, unix.SockFilter{Code: ret, K: seccompAllow})
}
