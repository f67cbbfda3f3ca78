package inside

import (
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What a filter returns, linux/seccomp.h.
const (
	seccompAllow = 0x7fff0000
	seccompErrno = 0x00050000
	seccompKill  = 0x80000000
)

// Offsets in struct seccomp_data. Arguments are 64 bits; their low half comes first on the architectures that are built for.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16
)

// The instructions that filters are made of.
const (
	bpfLoad = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	bpfJeq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	bpfJset = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	bpfRet  = unix.BPF_RET | unix.BPF_K
)

const (
	setidBits   = unix.S_ISUID | unix.S_ISGID
	createFlags = unix.O_CREAT | unix.O_TMPFILE&^unix.O_DIRECTORY
	// newNamespaces are the flags of clone; unshare knows CLONE_NEWTIME too, which is part of the signal in clone.
	newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
		unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
)

// modeCall is a system call with a file mode in an argument; flags >= 0 is the argument
// that says whether the mode means anything.
type modeCall struct {
	number      uint32
	mode, flags int
}

// filterOf is what commandFilter depends on.
type filterOf struct {
	noSetuid bool
	// shared: there is no network and no IPC namespace around the command, so it gets no System V IPC and no message
	// queues of the host, and without network only Unix sockets.
	shared, network bool
}

// refuseCalls takes system calls from the calling thread and all that it starts, for good: see commandFilter.
func refuseCalls(o filterOf) error {
	filter := commandFilter(o)
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// The processor's speculation stays as it is, which old kernels would slow down.
	const flags = unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&program)))
	if errno == unix.EINVAL { // gVisor knows no such flag
		_, _, errno = unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
	}
	if errno != 0 {
		return fmt.Errorf("install seccomp filter: %w", errno)
	}
	return nil
}

// commandFilter refuses what no build needs and what namespaces don't contain: parts of the kernel that know none
// (hypervisor sockets, keys, io_uring), those that only widen what can be attacked, and ways back to privileges. Calls
// whose arguments don't matter cost nothing at run time: the kernel keeps the answer by number.
//
// The answer is EPERM, or ENOSYS where programs then do without. Another architecture's calls have other numbers, so
// they end the process. With noSetuid, setting the setuid or setgid bit fails with EPERM: it is for workspaces that are
// the original itself under a root worker, where such a file would be real; openat2 then is ENOSYS, for its mode is
// behind a pointer.
func commandFilter(o filterOf) []unix.SockFilter {
	f := []unix.SockFilter{
		{Code: bpfLoad, K: offsetArch},
		{Code: bpfJeq, K: auditArch, Jt: 1},
		{Code: bpfRet, K: seccompKill},
		{Code: bpfLoad, K: offsetNumber},
	}
	f = append(f, foreignNumbers()...)
	for _, part := range [][]unix.SockFilter{
		onCall(unix.SYS_IOCTL, refuseValues(1, unix.EPERM, unix.TIOCSTI, unix.TIOCLINUX)),
		onCall(unix.SYS_CLONE, refuseBits(0, unix.EPERM, newNamespaces)),
		onCall(unix.SYS_UNSHARE, refuseBits(0, unix.EPERM, newNamespaces|unix.CLONE_NEWTIME)),
		onCall(unix.SYS_SOCKET, allowValues(0, unix.EAFNOSUPPORT, o.socketFamilies()...)),
		onCall(unix.SYS_SOCKETPAIR, allowValues(0, unix.EAFNOSUPPORT, unix.AF_UNIX)),
		onCall(unix.SYS_PRLIMIT64, refuseOthersLimits()),
	} {
		f = append(f, part...)
	}
	absent := []uint32{unix.SYS_CLONE3, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER}
	if o.noSetuid {
		absent = append(absent, unix.SYS_OPENAT2)
		f = append(f, refuseSetuid()...)
	}
	for _, number := range absent {
		f = append(f, onCall(number, []unix.SockFilter{errno(unix.ENOSYS)})...)
	}
	refused := slices.Concat(refusedCalls(), refusedHere())
	if o.shared {
		refused = append(refused, unix.SYS_SHMGET, unix.SYS_SEMGET, unix.SYS_MSGGET, unix.SYS_MQ_OPEN)
	}
	for _, number := range refused {
		f = append(f, onCall(number, []unix.SockFilter{errno(unix.EPERM)})...)
	}
	return append(f, unix.SockFilter{Code: bpfRet, K: seccompAllow})
}

// socketFamilies are those that know network namespaces and that programs need.
func (o filterOf) socketFamilies() []uint32 {
	if o.shared && !o.network {
		return []uint32{unix.AF_UNIX}
	}
	return []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}
}

// refusedCalls are the numbers that are refused whatever their arguments. ptrace is not among them: it reaches no more
// than /proc/PID/mem does, and debuggers and leak checkers need it.
func refusedCalls() []uint32 {
	return []uint32{
		unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT,
		unix.SYS_FSPICK, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_MOUNT_SETATTR, unix.SYS_OPEN_TREE_ATTR, unix.SYS_SETNS,
		unix.SYS_KCMP, unix.SYS_PIDFD_GETFD, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
		unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL, unix.SYS_FANOTIFY_INIT, unix.SYS_OPEN_BY_HANDLE_AT,
		unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD,
		unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_SYSLOG,
		unix.SYS_CLOCK_SETTIME, unix.SYS_SETTIMEOFDAY, unix.SYS_NFSSERVCTL, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_VHANGUP,
	}
}

// refuseOthersLimits lets a process set limits of itself alone (pid 0): init is of the same user and would take them.
func refuseOthersLimits() []unix.SockFilter {
	return []unix.SockFilter{
		argument(2),
		{Code: bpfJeq, K: 0, Jf: 2}, // no new limit?
		argumentHigh(2),
		{Code: bpfJeq, K: 0, Jt: 3},
		argument(0),
		{Code: bpfJeq, K: 0, Jt: 1},
		errno(unix.EPERM),
		allow(),
	}
}

func refuseSetuid() []unix.SockFilter {
	var f []unix.SockFilter
	for _, c := range modeCalls() {
		var body []unix.SockFilter
		if c.flags >= 0 {
			body = append(body, argument(c.flags), unix.SockFilter{Code: bpfJset, K: createFlags, Jt: 1}, allow())
		}
		f = append(f, onCall(c.number, append(body, refuseBits(c.mode, unix.EPERM, setidBits)...))...)
	}
	return f
}

// onCall runs body, which must return, for a number. The number is what the accumulator holds here.
func onCall(number uint32, body []unix.SockFilter) []unix.SockFilter {
	return append([]unix.SockFilter{{Code: bpfJeq, K: number, Jf: uint8(len(body))}}, body...)
}

func argument(i int) unix.SockFilter {
	return unix.SockFilter{Code: bpfLoad, K: uint32(offsetArgs + 8*i)}
}

func argumentHigh(i int) unix.SockFilter {
	return unix.SockFilter{Code: bpfLoad, K: uint32(offsetArgs + 8*i + 4)}
}

func errno(e unix.Errno) unix.SockFilter {
	return unix.SockFilter{Code: bpfRet, K: seccompErrno | uint32(e)}
}

func allow() unix.SockFilter { return unix.SockFilter{Code: bpfRet, K: seccompAllow} }

// refuseBits compares the low half, as the kernel does with what is an int or a mode to it.
func refuseBits(arg int, e unix.Errno, bits uint32) []unix.SockFilter {
	return []unix.SockFilter{argument(arg), {Code: bpfJset, K: bits, Jf: 1}, errno(e), allow()}
}

func refuseValues(arg int, e unix.Errno, values ...uint32) []unix.SockFilter {
	f := []unix.SockFilter{argument(arg)}
	for _, v := range values {
		f = append(f, unix.SockFilter{Code: bpfJeq, K: v, Jf: 1}, errno(e))
	}
	return append(f, allow())
}

func allowValues(arg int, e unix.Errno, values ...uint32) []unix.SockFilter {
	f := []unix.SockFilter{argument(arg)}
	for _, v := range values {
		f = append(f, unix.SockFilter{Code: bpfJeq, K: v, Jf: 1}, allow())
	}
	return append(f, errno(e))
}
