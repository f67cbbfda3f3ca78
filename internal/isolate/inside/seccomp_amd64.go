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
func foreignNumbers() []unix.SockFilter {
	const x32Bit = 0x40000000
	return []unix.SockFilter{
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: x32Bit, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: seccompKill},
	}
}
