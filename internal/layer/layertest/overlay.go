package layertest

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Overlay is what an overlay is mounted of: lower directories, the top one first, an upper one and a scratch directory.
type Overlay struct {
	Lowers      []string
	Upper, Work string
	// Trusted is how a root worker mounts: with trusted attributes, redirects and an index.
	Trusted bool
}

// Namespaces are the namespaces in which an overlay of a kind can be mounted.
func Namespaces(trusted bool) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	if !trusted {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return attr
}

// Mount does what a worker does, but that the mount is private to the process, which has to be in Namespaces: fsopen, one
// lowerdir+ a layer, the options of its kind.
func (o Overlay) Mount(at string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make private: %w", err)
	}
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	set := func(key, value string) {
		if err == nil {
			if err = unix.FsconfigSetString(fd, key, value); err != nil {
				err = fmt.Errorf("%s=%s: %w", key, value, err)
			}
		}
	}
	for _, l := range o.Lowers {
		set("lowerdir+", l)
	}
	set("upperdir", o.Upper)
	set("workdir", o.Work)
	if o.Trusted {
		set("redirect_dir", "on")
		set("index", "on")
		set("metacopy", "off")
	} else if err == nil {
		err = unix.FsconfigSetFlag(fd, "userxattr")
	}
	if err != nil {
		return err
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return err
	}
	mfd, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(mfd)
	return unix.MoveMount(mfd, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
}
