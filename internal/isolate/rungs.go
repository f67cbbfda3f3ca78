package isolate

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

// isolator is what the rungs differ in: who their inits are, what these are told, and what can be promised at most.
type isolator interface {
	// check says what of a configuration the rung can't do.
	check(c Config) error
	// birth is how the process of an init is started, with the host's network or without.
	birth(network bool) *syscall.SysProcAttr
	// tell completes what an init is told.
	tell(spec *wire.Spec)
	// qualify takes from what a probe found what the rung can't promise whatever was found.
	qualify(r Report)
}

// Rungs are those that the calling user can have on some machine, the best first, but for RungBare, and for RungStrong,
// which is slower.
func Rungs() []Rung { return []Rung{RungStrong.namespaced(), RungBubblewrap, RungLandlock} }

// namespaced is the rung whose namespaces RungStrong has, for the calling user; any other is itself.
func (r Rung) namespaced() Rung {
	switch {
	case r != RungStrong:
		return r
	case os.Geteuid() == 0:
		return RungRoot
	}
	return RungUser
}

func (r Rung) isolator() (isolator, error) {
	switch r {
	case RungRoot, RungUser:
		return namespaced{rung: r}, nil
	case RungStrong:
		return strong{namespaced{rung: r.namespaced()}}, nil
	case RungBubblewrap:
		return hosted{fence: wire.FenceBubblewrap}, nil
	case RungLandlock:
		return hosted{fence: wire.FenceLandlock}, nil
	case RungBare:
		return hosted{}, nil
	}
	return nil, fmt.Errorf("unknown rung %q", r)
}

// Mounts tells whether workspaces are mounts that a Mounter makes; they are directories else.
func (r Rung) Mounts() bool { return r.namespaced() == RungRoot || r.namespaced() == RungUser }

// MountsAsUser tells whether they are those of an ordinary user, of which the kernel lets do less.
func (r Rung) MountsAsUser() bool { return r.namespaced() == RungUser }

// Owner is the host's user and group id of what runs in sandboxes, and of the files that it owns.
func (r Rung) Owner() int {
	if os.Geteuid() == 0 && r != RungBare {
		return HostID
	}
	return os.Getuid()
}

// CountsProcesses tells whether each sandbox, or each command, has a user namespace, in which processes are counted apart.
func (r Rung) CountsProcesses() bool { return r.Mounts() && r != RungStrong || r == RungBubblewrap }

// namespaced are the rungs whose init is process 1 of new namespaces.
type namespaced struct{ rung Rung }

func (n namespaced) check(Config) error {
	if n.rung == RungUser && os.Getuid() == 0 {
		return errors.New("rung namespaces-user as root would run commands as the host's user 0")
	}
	return nil
}

func (n namespaced) birth(network bool) *syscall.SysProcAttr {
	flags := uintptr(unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP)
	if !network {
		flags |= unix.CLONE_NEWNET
	}
	return namespaces(n.rung, flags)
}

func (namespaced) tell(*wire.Spec) {}

func (namespaced) qualify(Report) {}

// hosted are the rungs whose init is a process of the host: it never runs as user 0 but on RungBare, and starts each
// command inside a fence.
type hosted struct{ fence string } // "": RungBare

func (h hosted) check(c Config) error {
	switch {
	case c.Network == NetworkProxy:
		return fmt.Errorf("a list of hosts: %w", ErrBare)
	case len(c.Caches) > 0:
		return fmt.Errorf("caches: %w", ErrBare)
	}
	return nil
}

func (h hosted) birth(bool) *syscall.SysProcAttr {
	if h.fence == "" || os.Geteuid() != 0 {
		return &syscall.SysProcAttr{}
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: HostID, Gid: HostID}}
}

func (h hosted) tell(spec *wire.Spec) { spec.Hosted, spec.Fence = true, h.fence }

func (h hosted) qualify(r Report) {
	if h.fence != wire.FenceLandlock {
		return
	}
	if r.Guarantees[TreeKill].State == Enforced {
		r.Guarantees[TreeKill] = Guarantee{
			State: BestEffort, Why: "without namespaces descendants are found by walking /proc, which a fork bomb can outrun", Fix: landlockFix,
		}
	}
}

// landlockFix is how to get what Landlock does not give.
const landlockFix = "allow user namespaces to the worker, or to bubblewrap: `warmfleet doctor` says what forbids them"
