package layer

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// RemoveTree removes path and what is below it. It never follows a link, opens up the caller's own directories
// that lack permissions, and refuses to enter another file system. An absent path is success.
func RemoveTree(path string) error {
	parent, err := openParent(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("layer: remove %q: %w", path, err)
	}
	err = parent.remove(filepath.Base(path))
	if err := errors.Join(err, parent.close()); err != nil {
		return fmt.Errorf("layer: remove %q: %w", path, err)
	}
	return nil
}

// openParent opens the directory that holds path; links on the way to it are the host's own.
func openParent(path string) (*folder, error) {
	fd, err := openRetry(unix.AT_FDCWD, filepath.Dir(path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &folder{fd: fd, restore: -1}, nil
}

// remove removes name from f, with everything below it.
func (f *folder) remove(name string) error {
	st, err := f.stat(name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return unix.Unlinkat(f.fd, name, 0)
	}
	var here unix.Stat_t
	if err := unix.Fstat(f.fd, &here); err != nil {
		return err
	}
	if here.Dev != st.Dev {
		return fmt.Errorf("%q is a mount point: %w", name, unix.EBUSY)
	}
	if err := f.empty(name); err != nil {
		return err
	}
	return unix.Unlinkat(f.fd, name, unix.AT_REMOVEDIR)
}

func (f *folder) empty(name string) error {
	sub, err := f.sub(name, needWrite)
	if err != nil {
		return err
	}
	names, err := sub.names()
	for _, n := range names {
		if err != nil {
			break
		}
		err = sub.remove(n)
	}
	return errors.Join(err, sub.close())
}
