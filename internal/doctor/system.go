package doctor

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

// System is what isolation here is built from. Empty texts mean that something works, others say why not.
type System struct {
	Kernel string `json:"kernel"`
	Arch   string `json:"arch"`
	UID    int    `json:"uid"`
	// UserNamespaces, IDMap and Seccomp say why they can't be had.
	UserNamespaces string `json:"user_namespaces"`
	IDMap          string `json:"idmap"`
	Seccomp        string `json:"seccomp"`
	// Landlock is the version of its interface, 0 where there is none.
	Landlock int `json:"landlock_abi"`
	// Cgroups are what bounds plans: v2, v1 or none.
	Cgroups string `json:"cgroups"`
	// Strong says why isolation strong would be refused, "" where commands can have kernels of their own.
	Strong string `json:"strong"`
}

func (e *examination) system(ctx context.Context) System {
	var u unix.Utsname
	s := System{Arch: runtime.GOARCH, UID: unix.Getuid(), Cgroups: string(e.groups.Version()), Landlock: landlock()}
	if unix.Uname(&u) == nil {
		s.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	switch {
	case e.held.Rung == isolate.RungBare:
		s.UserNamespaces = e.held.Guarantees[isolate.HiddenFiles].Why
	case !e.held.Rung.Mounts():
		s.UserNamespaces = e.held.RungWhy
	}
	s.IDMap = said(e.tryIDMap(ctx))
	s.Seccomp = said(seccomp())
	return s
}

func said(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// tryIDMap shows a directory with its owner mapped, as root does with originals and live bases.
func (e *examination) tryIDMap(ctx context.Context) error {
	if e.held.Rung != isolate.RungRoot {
		return errors.New("not used: only a worker that is root has to map owners")
	}
	m, err := isolate.NewMounter(isolate.RungRoot)
	if err != nil {
		return err
	}
	defer m.Close()
	mount, err := m.Bind(ctx, isolate.Bind{Dir: e.dir, IDMap: true})
	if err != nil {
		return err
	}
	return mount.Close()
}

// seccomp asks the kernel whether filters can refuse calls.
func seccomp() error {
	action := uint32(unix.SECCOMP_RET_ERRNO)
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, pointer(&action))
	if errno != 0 {
		return fmt.Errorf("the kernel has no filters of system calls: %w", errno)
	}
	return nil
}

// landlock asks for the version of the interface.
func landlock() int {
	const createRulesetVersion = 1 // LANDLOCK_CREATE_RULESET_VERSION, linux/landlock.h
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, createRulesetVersion)
	if errno != 0 {
		return 0
	}
	return int(version)
}
