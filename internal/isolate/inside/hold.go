package inside

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

// hold makes the workspace read-only, now or as soon as there is one.
func (s *server) hold() error {
	if s.held {
		return errors.New("the workspace is held already")
	}
	s.held = true
	if s.dir == "" {
		return nil
	}
	if err := s.closeGate(); err != nil {
		s.held = false
		return err
	}
	return nil
}

// closeGate keeps a writable view in a compartment and makes everybody else's read-only.
// Without mounts only the file calls heed it.
func (s *server) closeGate() error {
	if s.spec.Bare {
		return nil
	}
	s.files.wait() // an open file would be in the way
	gate, err := openCompartment(s.spec, s.commands.into, func(c *compartment) error {
		var err error
		c.root, err = unix.Open(workspace, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return err
	}
	if err := setReadOnly(true); err != nil {
		gate.close()
		if err == unix.EBUSY {
			return fmt.Errorf("a process has a file of the workspace open for writing: %w", err)
		}
		return err
	}
	s.gate = gate
	return nil
}

func (s *server) release() error {
	if !s.held {
		return errors.New("the workspace is not held")
	}
	s.dropGate()
	s.held = false
	if s.dir == "" || s.spec.Bare {
		return nil
	}
	return setReadOnly(false)
}

// dropGate ends the writable view; what was started there has ended.
func (s *server) dropGate() {
	if s.gate != nil {
		s.files.wait()
		s.gate.close()
		s.gate = nil
	}
}

func setReadOnly(on bool) error {
	attr := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	if on {
		attr = unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	}
	return unix.MountSetattr(unix.AT_FDCWD, workspace, unix.AT_RECURSIVE|unix.AT_SYMLINK_NOFOLLOW, &attr)
}

// fileCallOf says where a file call is to happen, or that it must not while the workspace is held.
func (s *server) fileCallOf(frame wire.Frame) (fileCall, error) {
	j := fileCall{frame: frame, dir: s.dir, root: -1}
	if !s.held || frame.Kind != wire.KindWrite && frame.Kind != wire.KindChange {
		return j, nil
	}
	var m wire.File
	if frame.Kind == wire.KindWrite {
		if err := frame.Decode(&m); err != nil {
			return j, err
		}
	}
	if !m.Sync {
		return j, unix.EROFS
	}
	if s.gate != nil {
		j.root = s.gate.root
	}
	return j, nil
}
