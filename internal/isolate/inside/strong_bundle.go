package inside

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Where what runs a kernel for each command lies in a sandbox's root. Commands see an empty directory instead.
const (
	strongPath = "/run/strong"
	// runscPath is gVisor's program, shown by the worker.
	runscPath = strongPath + "/runsc"
	// strongState holds a directory a command, named by the process id of its host.
	strongState = strongPath + "/state"
	// strongStateSize bounds all of them; one takes about 20 KiB.
	strongStateSize = "size=16m"
)

// strongOptions are what the kernel of a command is made with.
type strongOptions struct {
	hostNetwork bool     // sockets are those of the sandbox's network namespace; else a loopback of the kernel's own
	caches      []string // names
}

// strings are the options as arguments, for optionsOf.
func (o strongOptions) strings() []string {
	return []string{strconv.FormatBool(o.hostNetwork), strings.Join(o.caches, ",")}
}

func optionsOf(args []string) (o strongOptions, err error) {
	if len(args) != 2 {
		return o, fmt.Errorf("%d options, want the kind of network and names of caches", len(args))
	}
	if args[1] != "" {
		o.caches = strings.Split(args[1], ",")
	}
	o.hostNetwork, err = strconv.ParseBool(args[0])
	return o, err
}

func (o strongOptions) network() string {
	if o.hostNetwork {
		return "host"
	}
	return "none"
}

// bundle is the configuration of the OCI runtime: the sandbox's root as it is, read-only, with what commands may write to
// mounted again, so that what is written from outside meanwhile shows. The guest is the user 0 of its kernel with the
// capabilities that making a user namespace of other ids takes; commands get none of them. No string of a plan is in it:
// it would have to be valid UTF-8.
func (o strongOptions) bundle() string {
	writable := []string{workspace, "/tmp", home, "/dev/shm"}
	for _, name := range o.caches {
		writable = append(writable, cachesPath+"/"+name)
	}
	var mounts strings.Builder
	for _, dir := range writable {
		fmt.Fprintf(&mounts, `, {"destination": %[1]q, "type": "bind", "source": %[1]q, "options": ["rbind", "rw", "nosuid", "nodev"]}`, dir)
	}
	const capabilities = `["CAP_KILL", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETUID"]`
	return fmt.Sprintf(`{"ociVersion": "1.0.2",
"process": {"user": {"uid": 0, "gid": 0}, "args": [%q, %q], "env": [], "cwd": "/", "noNewPrivileges": true,
"capabilities": {"bounding": %[3]s, "effective": %[3]s, "permitted": %[3]s},
"rlimits": [{"type": "RLIMIT_CORE", "soft": 0, "hard": 0}]},
"root": {"path": "/", "readonly": true}, "hostname": "sandbox",
"mounts": [{"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "nodev", "noexec"]}%[4]s,
{"destination": %[5]q, "type": "tmpfs", "source": "tmpfs", "options": ["ro", "nosuid", "nodev", "noexec", "mode=0755"]}],
"linux": {"namespaces": [{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}]}}
`, selfExe, ModeGuest, capabilities, mounts.String(), strongPath)
}

// strongArgv is how the runtime is started, from the directory of one command.
func strongArgv(o strongOptions, dir string) []string {
	argv := []string{
		"runsc", "--rootless", "--ignore-cgroups", "--host-settings=ignore", "--network=" + o.network(), "--root=" + dir + "/root",
		"run", "--bundle=" + dir, fmt.Sprintf("--exec-fd=%d", guestProgramFD),
	}
	for fd := guestStdinFD; fd < guestProgramFD; fd++ {
		argv = append(argv, fmt.Sprintf("--pass-fd=%[1]d:%[1]d", fd))
	}
	return append(argv, "command")
}

func strongDir(pid int) string { return fmt.Sprintf("%s/%d", strongState, pid) }

// makeBundle makes the directory of one command, of which another with that process id may have left some.
func makeBundle(o strongOptions, dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(dir+"/config.json", []byte(o.bundle()), 0o600)
}
