package inside

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

func modeCalls() []modeCall {
	return []modeCall{
		{unix.SYS_OPEN, 2, 1},
		{unix.SYS_OPENAT, 3, 2},
		{unix.SYS_CREAT, 1, -1},
		{unix.SYS_CHMOD, 1, -1},
		{unix.SYS_FCHMOD, 1, -1},
		{unix.SYS_FCHMODAT, 2, -1},
		{unix.SYS_FCHMODAT2, 2, -1},
		{unix.SYS_MKNOD, 1, -1},
		{unix.SYS_MKNODAT, 2, -1},
	}
}

// foreignNumbers refuses the x32 calls, which share the architecture and differ in number.
// -1 is nobody's: programs that trace others use it.
func foreignNumbers() []unix.SockFilter {
	const x32Bit, none = 0x40000000, 0xffffffff
	return []unix.SockFilter{
		{Code: bpfJeq, K: none, Jt: 2},
		{Code: bpfJset, K: x32Bit, Jf: 1},
		{Code: bpfRet, K: seccompKill},
	}
}

// refusedHere are the calls that only this architecture has.
func refusedHere() []uint32 {
	return []uint32{unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_USELIB, unix.SYS__SYSCTL, unix.SYS_CREATE_MODULE}
}
