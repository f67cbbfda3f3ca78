package disk

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/mountfd"
)

const loopControl = "/dev/loop-control"

// attachTries bounds how often a device that was free is another's by then.
const attachTries = 64

// attach puts a loop device before a file. The kernel frees it when nobody has it open or mounted.
func attach(image *os.File) (*os.File, error) {
	control, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for range attachTries {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		loop, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &unix.LoopConfig{
			Fd: uint32(image.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR},
		})
		if err == nil {
			return loop, nil
		}
		if err = errors.Join(os.NewSyscallError("LOOP_CONFIGURE", err), loop.Close()); !errors.Is(err, unix.EBUSY) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("find a free loop device: %w", unix.EBUSY)
}

// tryOverlay makes an overlay that writes to the disk, which is in no mount namespace: kernels before 6.15 refuse that.
func (d *Disk) tryOverlay() error {
	at := func(name string) string { return d.Dir() + "/" + name }
	for _, name := range []string{"lower", "upper", "work"} {
		if err := os.Mkdir(at(name), 0o755); err != nil {
			return err
		}
	}
	fd, err := mountfd.Overlay{Lowers: []string{at("lower")}, Upper: at("upper"), Work: at("work"), Volatile: true}.Mount()
	if err != nil {
		return err
	}
	// An overlay that cannot be written to is mounted all the same.
	err = os.Mkdir(fmt.Sprintf("/proc/self/fd/%d/made", fd), 0o755)
	return errors.Join(err, unix.Close(fd))
}
