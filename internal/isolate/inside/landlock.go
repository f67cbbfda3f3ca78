package inside

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

// What a Landlock rule allows, by what it is for.
const (
	landRead  = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	landWrite = landRead | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_REFER |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_MAKE_DIR |
		unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO |
		unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX
	landDevice = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE
	// landFile are those of the rights that mean something for what is no directory.
	landFile = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
		unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX
)

// minLandlock is the first version of Landlock that keeps a command from truncating files, Linux 6.2.
const minLandlock = 3

// landlock forbids each command to open what is not listed, by a Landlock domain and the filter of system calls. It has
// no namespaces: processes and names of files can be seen, and before version 9 Unix sockets with a path be reached.
type landlock struct {
	spec wire.Spec
	attr unix.LandlockRulesetAttr
	into entrance
}

func newLandlock(spec wire.Spec, into entrance) (fence, error) {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return nil, fmt.Errorf("ask for the version of Landlock: %w", errno)
	}
	if version < minLandlock {
		return nil, fmt.Errorf("the kernel's Landlock is of version %d: at least %d is needed, of Linux 6.2", version, minLandlock)
	}
	if err := noCapabilities(); err != nil {
		return nil, err
	}
	return landlock{spec: spec, into: into, attr: landlockOf(int(version))}, nil
}

// landlockOf is all that a version can forbid.
func landlockOf(version int) unix.LandlockRulesetAttr {
	a := unix.LandlockRulesetAttr{
		Handled_access_fs: landWrite&^unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX | unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK,
	}
	if version >= 5 {
		a.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	if version >= 6 {
		a.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	if version >= 9 {
		a.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX
	}
	return a
}

func (l landlock) reaper() reaper { return treeReaper{} }

func (l landlock) enclose(j command, _ string) (*enclosure, error) {
	rules, err := l.rules(j)
	if err != nil {
		return nil, err
	}
	defer rules.Close()
	where, err := openThread(unix.CLONE_FS, func() error {
		unix.Umask(0o022)
		if err := l.into.enter(); err != nil {
			return err
		}
		if err := noNewPrivileges(); err != nil {
			return err
		}
		if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, rules.Fd(), 0, 0); errno != 0 {
			return fmt.Errorf("enter Landlock domain: %w", errno)
		}
		return renounce(filterOf{noSetuid: l.spec.NoSetuid, shared: true, network: l.spec.Network})
	})
	if err != nil {
		return nil, err
	}
	return &enclosure{where: where}, nil
}

// rules is the ruleset of one command.
func (l landlock) rules(j command) (*os.File, error) {
	attr := l.attr
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return nil, fmt.Errorf("make Landlock rules: %w", errno)
	}
	rules := os.NewFile(fd, "rules")
	for _, r := range l.allowed(j) {
		if err := l.allow(rules, r); err != nil {
			rules.Close()
			return nil, err
		}
	}
	return rules, nil
}

// landRule allows something for a path and all below.
type landRule struct {
	path   string
	access uint64
	must   bool // the path has to be there
}

func (l landlock) allowed(j command) []landRule {
	rules := []landRule{
		{"/proc", landRead &^ unix.LANDLOCK_ACCESS_FS_EXECUTE, true},
		{l.spec.Private + "/home", landWrite, true},
		{l.spec.Private + "/tmp", landWrite, true},
		{j.workspace, landWrite, true},
	}
	for _, name := range systemDirs() {
		rules = append(rules, landRule{"/" + name, landRead, false})
	}
	for _, name := range etcFiles() {
		rules = append(rules, landRule{"/etc/" + name, landRead &^ unix.LANDLOCK_ACCESS_FS_EXECUTE, false})
	}
	if l.spec.Network {
		for _, name := range []string{"hosts", "resolv.conf"} {
			rules = append(rules, landRule{"/etc/" + name, unix.LANDLOCK_ACCESS_FS_READ_FILE, false})
		}
	}
	for _, name := range devices() {
		rules = append(rules, landRule{"/dev/" + name, landDevice, false})
	}
	for _, dir := range l.spec.Expose {
		rules = append(rules, landRule{dir, landRead, true})
	}
	if dir := j.exec.SecretsDir; dir != "" {
		rules = append(rules, landRule{dir, landRead, true})
	}
	return rules
}

func (l landlock) allow(rules *os.File, r landRule) error {
	fd, err := unix.Open(r.path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if !r.must && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES)) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %q: %w", r.path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("look at %q: %w", r.path, err)
	}
	access := r.access & l.attr.Handled_access_fs
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		access &= landFile
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, rules.Fd(), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("allow %q: %w", r.path, errno)
	}
	return nil
}
