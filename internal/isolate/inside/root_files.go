package inside

import (
	"fmt"
	"path"

	"golang.org/x/sys/unix"
)

// mkdirs makes a directory and its parents in the new root.
func (b *builder) mkdirs(name string) error {
	if name == "." {
		return nil
	}
	err := unix.Mkdirat(b.root, name, 0o755)
	if err == nil || err == unix.EEXIST {
		return nil
	}
	if err != unix.ENOENT {
		return fmt.Errorf("make directory %q: %w", name, err)
	}
	if err := b.mkdirs(path.Dir(name)); err != nil {
		return err
	}
	if err := unix.Mkdirat(b.root, name, 0o755); err != nil {
		return fmt.Errorf("make directory %q: %w", name, err)
	}
	return nil
}

func (b *builder) symlink(target, name string) error {
	if err := unix.Symlinkat(target, b.root, name); err != nil {
		return fmt.Errorf("make link %q: %w", name, err)
	}
	return nil
}

// write makes a new file in the new root.
func (b *builder) write(name, content string) error {
	fd, err := unix.Openat(b.root, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return fmt.Errorf("make file %q: %w", name, err)
	}
	defer unix.Close(fd)
	for content != "" {
		n, err := unix.Write(fd, []byte(content))
		if err != nil {
			return fmt.Errorf("write file %q: %w", name, err)
		}
		content = content[n:]
	}
	return nil
}

// writeAt sets a kernel parameter; one that this kernel lacks is no error.
func writeAt(dir int, name, value string) error {
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(value))
	return err
}
