package applier

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// kept says which extended attributes an apply compares or sets: those that layers keep.
func kept(name string) bool {
	switch name {
	case capability, aclAccess, aclDefault:
		return true
	}
	return strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.")
}

func readXattrs(f *os.File, s *state) error {
	p := reopen(f)
	buf := make([]byte, 1<<16) // XATTR_LIST_MAX and XATTR_SIZE_MAX of linux/limits.h
	n, err := unix.Listxattr(p, buf)
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list attributes: %w", err)
	}
	value := make([]byte, 1<<16)
	for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
		if name == "" || !kept(name) {
			continue
		}
		n, err := unix.Getxattr(p, name, value)
		if errors.Is(err, unix.ENODATA) { // removed meanwhile
			continue
		}
		if err != nil {
			return fmt.Errorf("attribute %q: %w", name, err)
		}
		s.setXattr(name, bytes.Clone(value[:n]))
	}
	return nil
}

// setXattrs makes the attributes of f those of want, from those of have; attributes in neither stay.
func setXattrs(f *os.File, have, want map[string][]byte) error {
	p := reopen(f)
	for name := range have {
		if _, stays := want[name]; stays {
			continue
		}
		if err := unix.Removexattr(p, name); err != nil && !errors.Is(err, unix.ENODATA) {
			return fmt.Errorf("remove attribute %q: %w", name, err)
		}
	}
	for name, value := range want {
		if old, has := have[name]; has && bytes.Equal(old, value) {
			continue
		}
		if err := unix.Setxattr(p, name, value, 0); err != nil {
			return fmt.Errorf("set attribute %q: %w", name, err)
		}
	}
	return nil
}

// chown gives f to the owner and group of want, as far as this process may, and says what it could not.
func chown(f *os.File, want *state) (lost string, err error) {
	fd := int(f.Fd())
	have, err := statOf(f)
	if err != nil {
		return "", err
	}
	if have.UID == want.UID && have.GID == want.GID {
		return "", nil
	}
	err = unix.Fchownat(fd, "", want.UID, want.GID, unix.AT_EMPTY_PATH)
	if !errors.Is(err, unix.EPERM) {
		return "", err
	}
	// The group alone is allowed to its members.
	if err := unix.Fchownat(fd, "", -1, want.GID, unix.AT_EMPTY_PATH); err != nil && !errors.Is(err, unix.EPERM) {
		return "", err
	}
	return fmt.Sprintf("owner %d:%d", want.UID, want.GID), nil
}

// setMTime sets the modification time of a name in a directory that nobody else can write.
func setMTime(dir *os.File, name string, mtime time.Time) error {
	ts, err := unix.TimeToTimespec(mtime)
	if err != nil {
		return err
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, ts}
	return unix.UtimesNanoAt(int(dir.Fd()), name, times, unix.AT_SYMLINK_NOFOLLOW)
}

// touch sets the modification time of an O_PATH descriptor.
func touch(f *os.File, s *state) error {
	ts, err := unix.TimeToTimespec(s.MTime)
	if err != nil {
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, reopen(f), []unix.Timespec{{Nsec: unix.UTIME_OMIT}, ts}, 0)
}

func chmod(f *os.File, s *state) error {
	if s.Type == layer.Symlink {
		return nil
	}
	return unix.Chmod(reopen(f), s.Mode)
}
