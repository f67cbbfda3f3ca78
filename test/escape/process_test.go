package escape

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

func processAttempts() []attempt {
	return []attempt{
		{name: "see processes of the host", landlock: seenProcesses, try: func(s scene) (string, error) {
			name := fmt.Sprintf("/proc/%d/cmdline", s.Worker)
			text, err := os.ReadFile(name)
			return string(text), err
		}},
		{name: "signal a process of the host", try: func(s scene) (string, error) { return "found", unix.Kill(s.Victim, 0) }},
		{name: "trace a process of the host", machine: "no LSM against it", try: func(s scene) (string, error) {
			runtime.LockOSThread()
			if err := unix.PtraceSeize(s.Victim); err != nil {
				return "", err
			}
			return "traced", nil
		}},
		{name: "read its memory", machine: "no LSM against it", try: func(s scene) (string, error) {
			return opened(fmt.Sprintf("/proc/%d/mem", s.Victim), unix.O_RDONLY)
		}},
		{name: "read its memory by process_vm_readv", machine: "no LSM against it", try: func(s scene) (string, error) {
			// Nothing is at that address, which is found out last.
			local := make([]byte, 1)
			_, err := unix.ProcessVMReadv(s.Victim, []unix.Iovec{{Base: &local[0], Len: 1}}, []unix.RemoteIovec{{Base: 1, Len: 1}}, 0)
			return asked(notThere(err))
		}},
		{name: "take its descriptors", machine: "no LSM against it", try: func(s scene) (string, error) {
			pidfd, err := unix.PidfdOpen(s.Victim, 0)
			if err != nil {
				return "", err
			}
			fd, err := unix.PidfdGetfd(pidfd, 0, 0)
			if err != nil {
				return "", err
			}
			unix.Close(fd)
			return "took", nil
		}},
		{name: "read the memory of the launcher", machine: "no LSM against it", try: func(s scene) (string, error) {
			return firstOf(
				func() (string, error) { return opened("/proc/1/mem", unix.O_RDONLY) },
				func() (string, error) { return opened(fmt.Sprintf("/proc/%d/mem", s.Worker), unix.O_RDONLY) },
			)
		}},
		{name: "read the descriptors of the launcher", try: func(s scene) (string, error) {
			for _, name := range []string{"/proc/1/fd/0", fmt.Sprintf("/proc/%d/fd/0", s.Worker)} {
				if link, err := os.Readlink(name); err == nil {
					return name + " is " + link, nil
				}
			}
			return "", errNothing
		}},
	}
}

// meddleAttempts change how a process of the host, or init, runs.
func meddleAttempts() []attempt {
	return []attempt{
		{name: "set limits of init", needs: "CAP_SYS_RESOURCE", machine: "CAP_SYS_RESOURCE or the same ids", try: func(scene) (string, error) {
			var limit unix.Rlimit
			if err := unix.Prlimit(1, unix.RLIMIT_NOFILE, nil, &limit); err != nil {
				return "", err
			}
			return "set", unix.Prlimit(1, unix.RLIMIT_NOFILE, &limit, nil)
		}},
		{name: "set limits of a process of the host", try: func(s scene) (string, error) {
			var limit unix.Rlimit
			if err := unix.Prlimit(s.Victim, unix.RLIMIT_NOFILE, nil, &limit); err != nil {
				return "", err
			}
			return "set", unix.Prlimit(s.Victim, unix.RLIMIT_NOFILE, &limit, nil)
		}},
		{name: "set its priority", landlock: sameUser, try: func(s scene) (string, error) { return "set", unix.Setpriority(unix.PRIO_PROCESS, s.Victim, 19) }},
		{name: "set its processors", landlock: sameUser, try: func(s scene) (string, error) {
			var set unix.CPUSet
			if err := unix.SchedGetaffinity(s.Victim, &set); err != nil {
				return "", err
			}
			return "set", unix.SchedSetaffinity(s.Victim, &set)
		}},
		{name: "set its score for the out-of-memory killer", try: func(s scene) (string, error) {
			return sameBack(fmt.Sprintf("/proc/%d/oom_score_adj", s.Victim))
		}},
		{name: "compare with it", machine: "a kernel with kcmp", try: func(s scene) (string, error) {
			_, err := call(unix.SYS_KCMP, os.Getpid(), s.Victim, 0, 0, 0)
			return "compared", err
		}},
	}
}

// notThere makes the error about a process that can't be seen one of privilege.
func notThere(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("%w: %w", err, unix.EPERM)
	}
	return err
}

// terminalAttempts type into the terminal that the worker was started from.
func terminalAttempts() []attempt {
	push := func(request uintptr) func(scene) (string, error) {
		return func(scene) (string, error) {
			files := []string{"/dev/tty", "/proc/self/fd/0", "/proc/self/fd/1", "/proc/self/fd/2"}
			var last error = errNothing
			for _, name := range files {
				fd, err := unix.Open(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
				if err != nil {
					last = err
					continue
				}
				x := [2]byte{'X'}
				_, err = call(unix.SYS_IOCTL, fd, request, unsafe.Pointer(&x))
				unix.Close(fd)
				if err == nil {
					return "typed into " + name, nil
				}
				last = err
			}
			return "", last
		}
	}
	const needs, machine = "CAP_SYS_ADMIN or legacy_tiocsti", "legacy_tiocsti"
	return []attempt{
		{name: "open the worker's terminal", try: func(scene) (string, error) { return opened("/dev/tty", unix.O_RDWR) }},
		{name: "type into the worker's terminal", like: "CVE-2017-5226", needs: needs, machine: machine, try: push(unix.TIOCSTI)},
		{name: "type into it, with a 64-bit request", like: "CVE-2019-10063", needs: needs, machine: machine, try: push(unix.TIOCSTI | 1<<32)},
		{name: "type into a terminal of one's own", like: "CVE-2017-5226", needs: needs, machine: machine, try: func(scene) (string, error) { return ownTerminal(unix.TIOCSTI) }},
		{name: "the same with a 64-bit request", like: "CVE-2019-10063", needs: needs, machine: machine, try: func(scene) (string, error) { return ownTerminal(unix.TIOCSTI | 1<<32) }},
		{name: "paste into a console", like: "CVE-2019-10063", needs: "a console", machine: "a console", try: func(scene) (string, error) {
			return firstOf(func() (string, error) { return opened("/dev/tty1", unix.O_RDWR) }, func() (string, error) { return opened("/dev/console", unix.O_RDWR) })
		}},
	}
}

// ownTerminal makes a terminal, makes it the controlling one, and types into it.
func ownTerminal(request uintptr) (string, error) {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return "", err
	}
	number, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return "", err
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return "", err
	}
	defer slave.Close()
	cmd := exec.Command("/proc/self/exe", modeAttempt, typeIn, strconv.FormatUint(uint64(request), 10))
	cmd.Stdin = slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return "typed", nil
}

// typeIn is the program that types into its standard input, which is its controlling terminal.
const typeIn = "type in"

func typeInto(request string) int {
	number, err := strconv.ParseUint(request, 10, 64)
	x := [2]byte{'X'}
	if err == nil {
		_, err = call(unix.SYS_IOCTL, 0, uintptr(number), unsafe.Pointer(&x))
	}
	if err != nil {
		fmt.Print(err)
		return exitStopped
	}
	return 0
}
