package escape

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// sameBack writes to a file what it holds.
func sameBack(name string) (string, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	file, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return "", err
	}
	defer file.Close()
	_, err = file.Write(text)
	return "wrote " + name, err
}

// create makes a file and removes it.
func create(name string) (string, error) {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	file.Close()
	return "made " + name, os.Remove(name)
}

func writeAttempts() []attempt {
	back := func(name string) func(scene) (string, error) {
		return func(scene) (string, error) { return sameBack(name) }
	}
	return []attempt{
		{name: "write a file of the host", try: func(s scene) (string, error) {
			return "wrote", os.WriteFile(s.Writable, []byte("changed"), 0)
		}},
		{name: "make a file of the host", try: func(s scene) (string, error) { return create(filepath.Join(s.Dir, "new")) }},
		{name: "write to /usr", needs: "root", try: func(scene) (string, error) { return create("/usr/.warmfleet-escape") }},
		{name: "write to /etc", needs: "root", try: func(scene) (string, error) { return create("/etc/.warmfleet-escape") }},
		{name: "write to /", needs: "root", try: func(scene) (string, error) { return create("/.warmfleet-escape") }},
		{name: "write to /dev", needs: "root", try: func(scene) (string, error) { return create("/dev/.warmfleet-escape") }},
		{name: "touch a device of the host", landlock: keptTimes, bubblewrap: devicesOfHost, try: func(scene) (string, error) {
			return "touched /dev/null", unix.UtimesNanoAt(unix.AT_FDCWD, "/dev/null", nil, 0)
		}},
		{name: "write core_pattern", needs: "root", try: back("/proc/sys/kernel/core_pattern")},
		{name: "write modprobe's path", needs: "root", machine: "a kernel with modules", try: back("/proc/sys/kernel/modprobe")},
		{name: "write a kernel parameter", needs: "root", try: back("/proc/sys/kernel/panic")},
		{name: "write a network parameter", needs: "root", try: back("/proc/sys/net/ipv4/ip_forward")},
		{name: "allow nested namespaces again", needs: "CAP_SYS_RESOURCE", machine: "CAP_SYS_RESOURCE", try: back("/proc/sys/user/max_user_namespaces")},
		{name: "open sysrq-trigger", needs: "root", machine: "a kernel with sysrq", try: func(scene) (string, error) {
			return opened("/proc/sysrq-trigger", unix.O_WRONLY)
		}},
		{name: "write to a control group", needs: "root", machine: "mounted control groups", try: func(scene) (string, error) {
			return firstOf(
				func() (string, error) { return opened("/sys/fs/cgroup/cgroup.procs", unix.O_WRONLY) },
				func() (string, error) { return opened("/sys/fs/cgroup/memory/cgroup.procs", unix.O_WRONLY) },
			)
		}},
	}
}

// ownerAttempts make files what they must not be, or bring them where they must not.
func ownerAttempts() []attempt {
	return []attempt{
		{name: "overwrite the launcher's program", like: "CVE-2019-5736", needs: "root", try: func(s scene) (string, error) {
			return overwrite("/proc/1/exe", fmt.Sprintf("/proc/%d/exe", s.Worker))
		}},
		{name: "change the mode of the worker's program", like: "CVE-2019-5736", try: func(s scene) (string, error) {
			return "changed", os.Chmod(fmt.Sprintf("/proc/%d/exe", s.Worker), 0o755)
		}},
		{name: "change the owner of a file", needs: "CAP_CHOWN", try: func(scene) (string, error) { return "done", os.Chown("file", 0, 0) }},
		{name: "make a device", needs: "CAP_MKNOD", try: func(scene) (string, error) {
			os.Remove("device")
			defer os.Remove("device")
			return "made", unix.Mknod("device", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 1)))
		}},
		{name: "make a file that is root's and setuid", like: "setuid in upper layers", needs: "root", try: func(scene) (string, error) {
			return "made", errors.Join(os.WriteFile("setuid", nil, 0o755), os.Chmod("setuid", os.ModeSetuid|0o755))
		}, after: rootSetuid},
		{name: "forge marks of layers", needs: "CAP_SYS_ADMIN", try: func(scene) (string, error) {
			os.Mkdir("forged", 0o755)
			return "made", unix.Setxattr("forged", "trusted.overlay.redirect", []byte("/../../etc"), 0)
		}},
		{name: "link a file of the host", like: "hard links", machine: "one file system for all", try: func(s scene) (string, error) {
			os.Remove("hard")
			defer os.Remove("hard")
			return "linked", os.Link(s.Secret, "hard")
		}},
		{name: "rename a file out", machine: "one file system for all", try: func(s scene) (string, error) {
			if err := os.WriteFile("moved", nil, 0o644); err != nil {
				return "", err
			}
			return "moved", os.Rename("moved", filepath.Join(s.Dir, "moved"))
		}},
		{name: "replace a mount point", like: "CVE-2026-87766", try: func(s scene) (string, error) {
			if filepath.Dir(s.MountPoint) == s.Dir {
				os.Mkdir(s.MountPoint, 0o755)
			}
			os.Remove(s.MountPoint + ".old")
			if err := os.Rename(s.MountPoint, s.MountPoint+".old"); err != nil {
				return "", err
			}
			return "replaced", os.Symlink(s.Dir, s.MountPoint)
		}},
	}
}

// overwrite opens programs for writing; that one is being executed means that it may be once it is not.
func overwrite(names ...string) (string, error) {
	last := errNothing
	for _, name := range names {
		how, err := opened(name, unix.O_WRONLY)
		if err == nil || errors.Is(err, unix.ETXTBSY) {
			return how + " permission passed", nil
		}
		last = err
	}
	return "", last
}

// rootSetuid looks at the file as the host sees it: by way of the box's own process where there is one.
func rootSetuid(_ scene, b box) (string, error) {
	name := ""
	switch b := b.(type) {
	case sandboxBox:
		name = fmt.Sprintf("/proc/%d/root/workspace/setuid", b.Pid())
	case initBox:
		name = filepath.Join(b.dir, "setuid")
	case plainBox:
		name = filepath.Join(b.dir, "setuid")
	}
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil {
		return "", err
	}
	if st.Mode&unix.S_ISUID == 0 || st.Uid != 0 {
		return "", fmt.Errorf("mode %o of user %d", st.Mode&0o7777, st.Uid)
	}
	return "setuid root", nil
}

// linkAttempts lay links in the workspace and have the file calls of steps and sessions follow them.
func linkAttempts() []attempt {
	lay := func(name string, target func(s scene) string) func(s scene) (string, error) {
		return func(s scene) (string, error) {
			os.RemoveAll(name)
			return "laid", os.Symlink(target(s), name)
		}
	}
	reads := func(name string) func(scene, box) (string, error) {
		return func(_ scene, b box) (string, error) {
			text, err := b.read(name)
			if err == nil && string(text) != canary {
				err = errNothing
			}
			return "read " + name, err
		}
	}
	writes := func(name string) func(scene, box) (string, error) {
		return func(s scene, b box) (string, error) {
			err := b.write(name, "changed")
			if entries, _ := os.ReadDir(s.Dir); len(entries) > 3 {
				return "made a file on the host", nil
			}
			if text, _ := os.ReadFile(s.Writable); string(text) == "changed" {
				return "wrote " + s.Writable, nil
			}
			return "", errors.Join(errors.New("nothing changed outside"), err)
		}
	}
	const like = "claude-code#15789"
	up := func(scene) string { return "../../../../../../../../../../../../.." }
	return []attempt{
		{name: "file call: read a link", like: like, try: lay("a", func(s scene) string { return s.Secret }), after: reads("a")},
		{name: "file call: read through a linked directory", like: like, try: lay("d", func(s scene) string { return s.Dir }), after: reads("d/secret")},
		{name: "file call: read through .. of a link", like: like, try: lay("up", up), after: func(s scene, b box) (string, error) {
			return reads("up"+s.Secret)(s, b)
		}},
		{name: "file call: read through /proc", like: like, try: func(s scene) (string, error) {
			if _, err := lay("p1", func(s scene) string { return "/proc/1/root" + s.Secret })(s); err != nil {
				return "", err
			}
			return lay("p2", func(s scene) string { return fmt.Sprintf("/proc/%d/root%s", s.Worker, s.Secret) })(s)
		}, after: func(s scene, b box) (string, error) {
			return firstOf(func() (string, error) { return reads("p1")(s, b) }, func() (string, error) { return reads("p2")(s, b) })
		}},
		{name: "file call: write a link", like: "OpenBot#100", try: lay("w", func(s scene) string { return s.Writable }), after: writes("w")},
		{name: "file call: write a dangling link", like: "thClaws#219", try: lay("n", func(s scene) string { return filepath.Join(s.Dir, "new") }), after: writes("n")},
		{name: "file call: write into a linked directory", like: like, try: lay("wd", func(s scene) string { return s.Dir }), after: writes("wd/new")},
		{name: "file call: write while a directory is swapped", like: like, try: swap, after: func(s scene, b box) (string, error) {
			for range 200 {
				b.write("swap/new", "changed")
			}
			return writes("swap/new")(s, b)
		}},
	}
}

// swap ends with a link where a directory was, having swapped them for a while. The race itself is in the tests of the
// file calls, which run beside a step.
func swap(s scene) (string, error) {
	os.RemoveAll("swap")
	for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
		os.Remove("swap")
		os.Mkdir("swap", 0o755)
		os.Remove("swap")
		os.Symlink(s.Dir, "swap")
	}
	return "swapped", nil
}
