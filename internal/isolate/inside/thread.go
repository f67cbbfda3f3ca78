package inside

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

// confine takes everything from the calling thread that a command must not have. The
// goroutine must be locked to its thread and never unlock. Without namespaces only the
// working directory becomes the thread's own.
func confine(spec wire.Spec) error {
	// An own working directory and umask: a command's directory must not become the process's.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("separate working directory: %w", err)
	}
	unix.Umask(0o022)
	if spec.Hosted {
		return nil
	}
	if err := leaveKeyring(); err != nil {
		return err
	}
	if err := dropCapabilities(); err != nil {
		return err
	}
	return noNewPrivileges()
}

func leaveKeyring() error {
	if _, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0); err != nil && err != unix.ENOSYS && err != unix.EPERM {
		return fmt.Errorf("join new session keyring: %w", err)
	}
	return nil
}

func noNewPrivileges() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return nil
}

// becomeCommand makes the calling thread what commands are forked from, in their control groups; see confine.
func becomeCommand(spec wire.Spec, into entrance) error {
	if err := into.enter(); err != nil {
		return err
	}
	if err := confine(spec); err != nil {
		return err
	}
	if spec.Hosted || spec.Runsc != "" { // a command's own kernel has the filter, and its host makes namespaces
		return nil
	}
	return refuseCalls(filterOf{noSetuid: spec.NoSetuid})
}

// renounce is confine for a thread that has had no capability to begin with, and its filter.
func renounce(f filterOf) error {
	if err := noCapabilities(); err != nil {
		return err
	}
	if err := leaveKeyring(); err != nil {
		return err
	}
	if err := noNewPrivileges(); err != nil {
		return err
	}
	return refuseCalls(f)
}

// noCapabilities is an error where the thread has any.
func noCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has [2]unix.CapUserData
	if err := unix.Capget(&header, &has[0]); err != nil {
		return fmt.Errorf("look at capabilities: %w", err)
	}
	if has[0].Permitted|has[1].Permitted != 0 {
		return errors.New("a command would have capabilities")
	}
	return nil
}

// dropCapabilities empties all five sets of the thread.
func dropCapabilities() error {
	for c := uintptr(0); c < 64; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if err == unix.EINVAL {
			break // beyond the kernel's last capability
		}
		if err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	_, _, errno := unix.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none)), 0)
	if errno != 0 {
		return fmt.Errorf("drop capabilities: %w", errno)
	}
	return nil
}
