package inside

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

func modeCalls() []modeCall {
	return []modeCall{
		{unix.SYS_OPENAT, 3, 2},
		{unix.SYS_FCHMOD, 1, -1},
		{unix.SYS_FCHMODAT, 2, -1},
		{unix.SYS_FCHMODAT2, 2, -1},
		{unix.SYS_MKNODAT, 2, -1},
	}
}

// foreignNumbers is empty: 32-bit calls come with another architecture.
func foreignNumbers() []unix.SockFilter { return nil }

// refusedHere is empty: this architecture has none of the calls that others have outlived.
func refusedHere() []uint32 { return nil }
