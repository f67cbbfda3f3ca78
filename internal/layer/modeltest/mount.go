package modeltest

import (
	"errors"
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

// InOverlay does a job in a process that has the overlay mounted for itself.
func InOverlay(job Job, o Overlay) (r Report, err error) {
	at, err := os.MkdirTemp("", "overlay")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.Remove(at)) }()
	job.Dir, job.Mount = at, &o
	return Process(job, OverlayProcess(o.Trusted))
}

// OverlayProcess are the namespaces in which an overlay of a kind can be mounted.
func OverlayProcess(trusted bool) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	if !trusted {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return attr
}

// doMounted does a job in its overlay.
func doMounted(job Job) Report {
	if err := job.Mount.mount(job.Dir); err != nil {
		return Report{Err: "mount: " + err.Error()}
	}
	r := Do(job)
	if err := unix.Unmount(job.Dir, 0); err != nil && r.Err == "" {
		r.Err = "unmount: " + err.Error()
	}
	return r
}

// mount is what a worker does, but that it is private to the process: fsopen, one lowerdir+ a layer, the options of its kind.
func (o Overlay) mount(at string) error {
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
