package escape

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// asked says whether the kernel got past the question of privilege: another error is about the arguments, which are
// meaningless on purpose.
func asked(err error) (string, error) {
	switch {
	case err == nil, errors.Is(err, syscall.Errno(0)):
		return "done", nil
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EAFNOSUPPORT):
		return "", err
	}
	return "not refused: " + err.Error(), nil
}

// call makes a system call; its arguments are int, uintptr and unsafe.Pointer.
func call(number uintptr, args ...any) (uintptr, error) {
	var raw [6]uintptr
	for i, arg := range args {
		switch arg := arg.(type) {
		case int:
			raw[i] = uintptr(arg)
		case uintptr:
			raw[i] = arg
		case unsafe.Pointer:
			raw[i] = uintptr(arg)
		default:
			panic(fmt.Sprintf("argument %T", arg))
		}
	}
	r, _, errno := unix.Syscall6(number, raw[0], raw[1], raw[2], raw[3], raw[4], raw[5])
	runtime.KeepAlive(args)
	if errno != 0 {
		return 0, errno
	}
	return r, nil
}

func asks(number uintptr, args ...any) func(scene) (string, error) {
	return func(scene) (string, error) {
		_, err := call(number, args...)
		return asked(err)
	}
}

// makes makes a call whose result is a descriptor.
func makes(number uintptr, args ...any) func(scene) (string, error) {
	return func(scene) (string, error) {
		fd, err := call(number, args...)
		if err != nil {
			return "", err
		}
		unix.Close(int(fd))
		return "made", nil
	}
}

const bad = -1

func text(s string) unsafe.Pointer {
	p, err := unix.BytePtrFromString(s)
	if err != nil {
		panic(err)
	}
	return unsafe.Pointer(p)
}

func kernelAttempts() []attempt {
	ring := make([]byte, 120)
	mapCreate := [...]uint32{2, 4, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} // an array of one
	perf := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})), Bits: unix.PerfBitExcludeKernel}
	const userModeOnly, quotaOn = 1, 0x800002
	return []attempt{
		{name: "io_uring", like: "moby#47532", machine: "io_uring not disabled", try: makes(unix.SYS_IO_URING_SETUP, 1, unsafe.Pointer(&ring[0]))},
		{name: "bpf", needs: "CAP_BPF", try: makes(unix.SYS_BPF, 0, unsafe.Pointer(&mapCreate), unsafe.Sizeof(mapCreate))},
		{name: "perf events", machine: "perf_event_paranoid below 3", try: makes(unix.SYS_PERF_EVENT_OPEN, unsafe.Pointer(&perf), 0, bad, bad, 0)},
		{name: "userfaultfd", try: makes(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|userModeOnly)},
		{name: "fanotify", try: makes(unix.SYS_FANOTIFY_INIT, unix.FAN_REPORT_FID, unix.O_RDONLY)},
		{name: "read a key of the same user", like: "keyrings", try: func(s scene) (string, error) {
			id, err := unix.KeyctlSearch(unix.KEY_SPEC_USER_KEYRING, "user", s.Queue, 0)
			if err != nil {
				return "", err
			}
			buf := make([]byte, 64)
			n, err := unix.KeyctlBuffer(unix.KEYCTL_READ, id, buf, 0)
			return string(buf[:max(n, 0)]), err
		}},
		{name: "leave a key behind", try: func(scene) (string, error) {
			_, err := unix.AddKey("user", "escape", []byte("x"), unix.KEY_SPEC_SESSION_KEYRING)
			return "left", err
		}},
		{name: "request a key", try: asks(unix.SYS_REQUEST_KEY, text("user"), text("escape-none"), 0, 0)},
		{name: "load a module", needs: "CAP_SYS_MODULE", machine: "a kernel with modules", try: asks(unix.SYS_INIT_MODULE, 0, 0, text(""))},
		{name: "load a module from a file", needs: "CAP_SYS_MODULE", machine: "a kernel with modules", try: asks(unix.SYS_FINIT_MODULE, bad, text(""), 0)},
		{name: "load a kernel", needs: "CAP_SYS_BOOT", machine: "a kernel with kexec", try: asks(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0xff)},
		{name: "reboot", needs: "CAP_SYS_BOOT", try: asks(unix.SYS_REBOOT, 1, 2, 3)},
		{name: "swap", needs: "CAP_SYS_ADMIN", try: asks(unix.SYS_SWAPON, text("/nonexistent"), 0)},
		{name: "process accounting", needs: "CAP_SYS_PACCT", try: asks(unix.SYS_ACCT, text("/nonexistent"))},
		{name: "quotas", needs: "CAP_SYS_ADMIN", try: asks(unix.SYS_QUOTACTL, quotaOn<<8, text("/nonexistent"), 0, 0), machine: "a kernel with quotas"},
		{name: "set the time", needs: "CAP_SYS_TIME", try: asks(unix.SYS_SETTIMEOFDAY, 0, 0)},
		{name: "set a clock", needs: "CAP_SYS_TIME", try: func(scene) (string, error) {
			now := unix.Timespec{Nsec: -1} // refused by everybody else with EINVAL
			_, err := call(unix.SYS_CLOCK_SETTIME, unix.CLOCK_REALTIME, unsafe.Pointer(&now))
			return asked(err)
		}},
		{name: "/dev/fuse", needs: "root", machine: "a kernel with it", try: func(scene) (string, error) { return opened("/dev/fuse", unix.O_RDWR) }},
		{name: "/dev/kvm", needs: "root", machine: "a kernel with it", try: func(scene) (string, error) { return opened("/dev/kvm", unix.O_RDWR) }},
		{name: "/dev/loop-control", needs: "root", machine: "a kernel with it", try: func(scene) (string, error) { return opened("/dev/loop-control", unix.O_RDWR) }},
		{name: "/dev/net/tun", needs: "root", machine: "a kernel with it", try: func(scene) (string, error) { return opened("/dev/net/tun", unix.O_RDWR) }},
		{name: "run setuid programs", try: func(scene) (string, error) {
			if n, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err != nil || n == 1 {
				return "", errors.Join(errors.New("no_new_privs is set"), err)
			}
			return "no_new_privs is not set", nil
		}},
		{name: "become root", needs: "CAP_SETUID", try: func(scene) (string, error) { return "became", syscall.Setuid(0) }},
		{name: "have a capability", landlock: keptBounding, like: "bubblewrap#287", try: capability},
		{name: "dump core", machine: "a hard limit for cores above 0", try: func(scene) (string, error) {
			var limit unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil || limit.Max == 0 {
				return "", errors.Join(errors.New("the limit is 0"), err)
			}
			return fmt.Sprintf("up to %d bytes", limit.Max), nil
		}},
	}
}

// capability looks at every set, the bounding set included.
func capability(scene) (string, error) {
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if in, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0); err == nil && in == 1 {
			return fmt.Sprintf("%d is in the bounding set", c), nil
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return "", err
	}
	for _, s := range sets {
		if s.Effective|s.Permitted|s.Inheritable != 0 {
			return fmt.Sprintf("%+v", s), nil
		}
	}
	return "", errors.New("every set is empty")
}

func namespaceAttempts() []attempt {
	unshare := func(flag int) func(scene) (string, error) {
		return func(scene) (string, error) {
			runtime.LockOSThread()
			return "made", unix.Unshare(flag)
		}
	}
	return []attempt{
		{name: "nested user namespace by unshare", like: "sandbox-runtime#180", try: func(scene) (string, error) {
			return startsIn(unix.CLONE_NEWUSER, unix.CLONE_NEWUSER)
		}},
		{name: "nested user namespace by clone", try: func(scene) (string, error) { return startsIn(unix.CLONE_NEWUSER, 0) }},
		{name: "clone3, whose flags no filter can see", like: "containerd#5982", try: asks(unix.SYS_CLONE3, 0, 0)},
		{name: "new mounts", needs: "CAP_SYS_ADMIN", try: unshare(unix.CLONE_NEWNS | unix.CLONE_FS)},
		{name: "new network", needs: "CAP_SYS_ADMIN", try: unshare(unix.CLONE_NEWNET)},
		{name: "new control groups", needs: "CAP_SYS_ADMIN", try: unshare(unix.CLONE_NEWCGROUP)},
		{name: "new processes", needs: "CAP_SYS_ADMIN", try: unshare(unix.CLONE_NEWPID)},
		{name: "new times", needs: "CAP_SYS_ADMIN", try: unshare(unix.CLONE_NEWTIME)},
		{name: "enter the launcher's namespaces", needs: "CAP_SYS_ADMIN", try: func(s scene) (string, error) {
			runtime.LockOSThread()
			var last error = errNothing
			for _, name := range []string{"/proc/1/ns/net", fmt.Sprintf("/proc/%d/ns/net", s.Worker), "/proc/self/ns/net"} {
				fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err == nil {
					err = unix.Setns(fd, unix.CLONE_NEWNET)
					unix.Close(fd)
				}
				if err == nil {
					return "entered " + name, nil
				}
				last = err
			}
			return "", last
		}},
	}
}

// startsIn starts a program in new namespaces, by unshare or by clone.
func startsIn(flags, unshared uintptr) (string, error) {
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags &^ unshared, Unshareflags: unshared}
	return "started", cmd.Run()
}

func mountAttempts() []attempt {
	const needs = "CAP_SYS_ADMIN"
	return []attempt{
		{name: "mount a file system", needs: needs, try: func(scene) (string, error) {
			os.Mkdir("mnt", 0o755)
			if err := unix.Mount("none", "mnt", "tmpfs", 0, "size=4k"); err != nil {
				return "", err
			}
			return "mounted", unix.Unmount("mnt", 0)
		}},
		{name: "mount by descriptors", needs: needs, try: makes(unix.SYS_FSOPEN, text("tmpfs"), 0)},
		{name: "mount another /proc", like: "CVE-2025-52881", needs: needs, try: makes(unix.SYS_FSOPEN, text("proc"), 0)},
		{name: "mount control groups", needs: needs, try: makes(unix.SYS_FSOPEN, text("cgroup2"), 0)},
		{name: "copy a mount", needs: needs, try: func(scene) (string, error) {
			fd, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
			if err != nil {
				return "", err
			}
			unix.Close(fd)
			return "copied", nil
		}},
		{name: "make a mount writable", needs: needs, try: func(scene) (string, error) {
			return asked(unix.MountSetattr(unix.AT_FDCWD, "file", 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}))
		}},
		{name: "unmask /proc", like: "CVE-2025-31133", needs: needs, try: func(scene) (string, error) {
			return asked(unix.Unmount("/proc/kcore", 0))
		}},
		{name: "pivot_root", needs: needs, try: func(scene) (string, error) { return asked(unix.PivotRoot("file", "file")) }},
		{name: "chroot", needs: "CAP_SYS_CHROOT", try: func(scene) (string, error) { return "done", unix.Chroot(".") }},
	}
}
