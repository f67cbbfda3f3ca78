package escape

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

var errNothing = errors.New("nothing found")

// secretIn reads files until one holds the canary.
func secretIn(names ...string) (string, error) {
	err := errNothing
	for _, name := range names {
		text, readErr := os.ReadFile(name)
		if readErr != nil {
			err = readErr
			continue
		}
		if strings.Contains(string(text), canary) {
			return "read " + name, nil
		}
	}
	return "", err
}

// opened opens a file, changes nothing, and closes it.
func opened(name string, flags int) (string, error) {
	fd, err := unix.Open(name, flags|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	unix.Close(fd)
	return "opened " + name, nil
}

// firstOf makes tries until one succeeds.
func firstOf(tries ...func() (string, error)) (string, error) {
	var last error = errNothing
	for _, try := range tries {
		how, err := try()
		if err == nil {
			return how, nil
		}
		last = err
	}
	return "", last
}

func glob(pattern string) []string {
	names, _ := filepath.Glob(pattern)
	return names
}

func readAttempts() []attempt {
	return []attempt{
		{name: "read a file of the host", try: func(s scene) (string, error) { return secretIn(s.Secret) }},
		{name: "read it by way of ..", try: func(s scene) (string, error) {
			return secretIn(strings.Repeat("../", 20)+s.Secret, "/proc/self/cwd/"+strings.Repeat("../", 20)+s.Secret)
		}},
		{name: "read it by way of a link", try: func(s scene) (string, error) {
			os.Remove("link")
			if err := os.Symlink(s.Secret, "link"); err != nil {
				return "", err
			}
			return secretIn("link")
		}},
		{name: "read it by way of /proc/PID/root", needs: "CAP_SYS_PTRACE", try: func(s scene) (string, error) {
			return secretIn("/proc/1/root"+s.Secret, fmt.Sprintf("/proc/%d/root%s", s.Worker, s.Secret), "/proc/1/cwd"+s.Secret)
		}},
		{name: "read /etc/shadow", needs: "root", try: func(scene) (string, error) { return opened("/etc/shadow", unix.O_RDONLY) }},
		{name: "read the home of root", needs: "root", try: func(scene) (string, error) {
			_, err := os.ReadDir("/root")
			return "listed /root", err
		}},
		{name: "read private keys and logs", landlock: seenNames, try: func(scene) (string, error) {
			for _, dir := range []string{"/etc/ssh", "/etc/ssl/private", "/var/log", "/var/lib", "/boot", "/opt", "/srv"} {
				if _, err := os.Stat(dir); err == nil {
					return dir + " is there", nil
				}
			}
			return "", errNothing
		}},
		{name: "read sockets and state below /run", like: "greywall#55", try: func(scene) (string, error) {
			for _, name := range glob("/run/*") {
				if name != "/run/secrets" {
					return name + " is there", nil
				}
			}
			return "", errNothing
		}},
	}
}

// leakAttempts use what somebody left open, or shows of itself.
func leakAttempts() []attempt {
	return []attempt{
		{name: "read another sandbox's files", needs: "CAP_SYS_PTRACE", try: func(s scene) (string, error) {
			for _, name := range glob("/proc/[0-9]*/root/workspace/probe") {
				if self, _ := os.Stat("/workspace/probe"); self == nil {
					return "found " + name, nil
				}
			}
			return "", errNothing
		}},
		{name: "read through a handle of a file", like: "shocker", needs: "CAP_DAC_READ_SEARCH", try: func(s scene) (string, error) {
			handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, "file", 0)
			if err != nil {
				return "", err
			}
			dir, err := unix.Open(".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
			if err != nil {
				return "", err
			}
			fd, err := unix.OpenByHandleAt(dir, handle, unix.O_RDONLY)
			if err != nil {
				return "", err
			}
			unix.Close(fd)
			return "opened", nil
		}},
		{name: "read through a leaked directory", like: "CVE-2024-21626", try: func(s scene) (string, error) {
			for fd := range 300 {
				if how, err := secretIn(fmt.Sprintf("/proc/self/fd/%d%s", fd, s.Secret)); err == nil {
					return how, nil
				}
			}
			return "", errNothing
		}},
		{name: "use a leaked pipe", like: "leaked descriptors", try: func(scene) (string, error) {
			for fd := 3; fd < 300; fd++ {
				link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
				if err == nil && fd >= leakedFD {
					return fmt.Sprintf("descriptor %d is %s", fd, link), nil
				}
			}
			return "", errNothing
		}},
		{name: "read the disk", needs: "root", machine: "a disk at /dev/vda", try: func(scene) (string, error) {
			return firstOf(func() (string, error) { return opened("/dev/vda", unix.O_RDONLY) }, func() (string, error) {
				os.Remove("disk")
				if err := unix.Mknod("disk", unix.S_IFBLK|0o600, int(unix.Mkdev(254, 0))); err != nil {
					return "", err
				}
				defer os.Remove("disk")
				return opened("disk", unix.O_RDONLY)
			})
		}},
	}
}

// tellingAttempts read what processes and mounts show of their makers.
func tellingAttempts() []attempt {
	return []attempt{
		{name: "read the environment: own", like: "inflexa#88", try: func(scene) (string, error) {
			return envHolds(os.Environ())
		}},
		{name: "read the environment: another process's", like: "bubblewrap#725", try: func(s scene) (string, error) {
			return secretIn(glob("/proc/[0-9]*/environ")...)
		}},
		{name: "read the environment: the launcher's", like: "bubblewrap#725", try: func(s scene) (string, error) {
			return secretIn("/proc/1/environ", fmt.Sprintf("/proc/%d/environ", s.Worker))
		}},
		{name: "read arguments of processes", landlock: seenProcesses, like: "bubblewrap#631", try: func(s scene) (string, error) {
			return secretIn(glob("/proc/[0-9]*/cmdline")...)
		}},
		{name: "read host paths in the mount table", landlock: seenMachine, like: "bubblewrap#631", try: func(s scene) (string, error) {
			text, err := os.ReadFile("/proc/self/mountinfo")
			if err == nil && strings.Contains(string(text), " / / ") && !strings.Contains(string(text), "/workspace") {
				return "the host's mounts", nil
			}
			return "", errNothing
		}},
	}
}

func envHolds(env []string) (string, error) {
	for _, pair := range env {
		if strings.Contains(pair, canary) {
			return pair, nil
		}
	}
	return "", errNothing
}

// machineAttempts read what tells of the machine.
func machineAttempts() []attempt {
	content := func(name string) func(scene) (string, error) {
		return func(scene) (string, error) {
			text, err := os.ReadFile(name)
			if err == nil && len(text) == 0 {
				err = errNothing
			}
			return fmt.Sprintf("%d bytes", len(text)), err
		}
	}
	open := func(name string) func(scene) (string, error) {
		return func(scene) (string, error) {
			how, err := opened(name, unix.O_RDONLY)
			if err != nil {
				return "", err
			}
			if fi, statErr := os.Stat(name); statErr == nil && fi.Mode()&os.ModeDevice != 0 && strings.HasPrefix(name, "/proc") {
				return "", errors.New("masked")
			}
			return how, nil
		}
	}
	return []attempt{
		{name: "read /proc/kcore", needs: "root", machine: "a kernel that has it, CAP_SYS_RAWIO", try: open("/proc/kcore")},
		{name: "read /proc/kmsg", needs: "CAP_SYSLOG", try: open("/proc/kmsg")},
		{name: "read /dev/kmsg", needs: "CAP_SYSLOG", try: open("/dev/kmsg")},
		{name: "read the kernel's log by syslog", needs: "CAP_SYSLOG", try: func(scene) (string, error) {
			n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, make([]byte, 4096))
			return fmt.Sprintf("%d bytes", n), err
		}},
		{name: "read addresses of the kernel", needs: "CAP_SYSLOG", machine: "kptr_restrict below 2", try: func(scene) (string, error) {
			text, err := os.ReadFile("/proc/kallsyms")
			if err != nil {
				return "", err
			}
			if line, _, _ := strings.Cut(string(text), " "); strings.Trim(line, "0") != "" {
				return line, nil
			}
			return "", errNothing
		}},
		{name: "read /proc/keys", landlock: seenMachine, try: content("/proc/keys")},
		{name: "read /proc/timer_list", needs: "root", try: content("/proc/timer_list")},
		{name: "read the kernel's command line", landlock: seenMachine, try: content("/proc/cmdline")},
		{name: "read /proc/interrupts", landlock: seenMachine, try: content("/proc/interrupts")},
		{name: "read /sys", try: func(scene) (string, error) {
			_, err := os.ReadDir("/sys/class")
			return "listed /sys/class", err
		}},
	}
}

// knownAttempts succeed, and do no harm.
func knownAttempts() []attempt {
	return []attempt{
		{name: "read the load of the machine", known: "/proc/loadavg, meminfo, stat and cpuinfo are the machine's", try: func(scene) (string, error) {
			text, err := os.ReadFile("/proc/loadavg")
			return string(text), err
		}},
		{name: "watch a program of the host", known: "programs below /usr are the host's own files", try: func(scene) (string, error) {
			fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
			if err != nil {
				return "", err
			}
			defer unix.Close(fd)
			_, err = unix.InotifyAddWatch(fd, "/usr/bin/env", unix.IN_OPEN)
			return "watched /usr/bin/env", err
		}},
		{name: "lock a program of the host", known: "programs below /usr are the host's own files", try: func(scene) (string, error) {
			fd, err := unix.Open("/usr/bin/env", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return "", err
			}
			defer unix.Close(fd)
			return "locked /usr/bin/env", unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB)
		}},
	}
}
