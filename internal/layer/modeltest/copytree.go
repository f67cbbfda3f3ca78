package modeltest

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// CopyTree makes the directory to, which must not exist, the same as the directory from in all that Take tells.
// Owners are kept where the caller may give files away.
func CopyTree(to, from string) error {
	host := layertest.Host()
	c := copier{links: map[[2]uint64]linked{}}
	err := c.copy(host, to, host, from)
	for _, l := range c.links {
		err = errors.Join(err, l.dir.Close())
	}
	if err != nil {
		return fmt.Errorf("copy %q to %q: %w", from, to, err)
	}
	return nil
}

// RemoveTree removes a tree of the caller's own whatever its modes. An absent one is success.
func RemoveTree(dir string) error {
	host := layertest.Host()
	if err := removeAll(host, dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %q: %w", dir, err)
	}
	return nil
}

// removeAll removes name and all that is in it.
func removeAll(f *layertest.Folder, name string) error {
	st, err := f.Stat(name)
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return unix.Unlinkat(f.FD(), name, 0)
	}
	sub, err := f.Sub(name)
	if err != nil {
		return err
	}
	if err := errors.Join(sub.OpenUp(0o700), removeChildren(sub)); err != nil {
		return errors.Join(err, sub.Close())
	}
	return errors.Join(sub.Close(), unix.Unlinkat(f.FD(), name, unix.AT_REMOVEDIR))
}

func removeChildren(f *layertest.Folder) error {
	names, err := f.Names()
	for _, name := range names {
		err = errors.Join(err, removeAll(f, name))
	}
	return err
}

// copier copies a tree; links are the copies of files that have several names, by device and inode. With a nil map
// each name becomes a file of its own.
type copier struct{ links map[[2]uint64]linked }

// linked is where a copy was put first.
type linked struct {
	dir  *layertest.Folder
	name string
}

// link gives the copy another name. Its directory may have got its mode by now.
func (l linked) link(to *layertest.Folder, name string) error {
	if err := l.dir.OpenUp(0o100); err != nil {
		return err
	}
	return errors.Join(unix.Linkat(l.dir.FD(), l.name, to.FD(), name, 0), l.dir.CloseUp())
}

func (c *copier) copy(to *layertest.Folder, toName string, from *layertest.Folder, fromName string) error {
	st, err := from.Stat(fromName)
	if err != nil {
		return err
	}
	key := [2]uint64{st.Dev, st.Ino}
	if first, ok := c.links[key]; ok {
		return first.link(to, toName)
	}
	if c.links != nil && st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
		dir, err := to.Again()
		if err != nil {
			return err
		}
		c.links[key] = linked{dir, toName}
	}
	if err := c.make(to, toName, from, fromName, st); err != nil {
		return fmt.Errorf("%q: %w", fromName, err)
	}
	return dress(to, toName, st)
}

func (c *copier) make(to *layertest.Folder, toName string, from *layertest.Folder, fromName string, st unix.Stat_t) error {
	switch kind := st.Mode & unix.S_IFMT; kind {
	case unix.S_IFREG:
		return copyFile(to, toName, from, fromName, st)
	case unix.S_IFDIR:
		return c.copyDir(to, toName, from, fromName)
	case unix.S_IFLNK:
		text, err := from.Readlink(fromName)
		return errors.Join(err, unix.Symlinkat(text, to.FD(), toName))
	default:
		return unix.Mknodat(to.FD(), toName, kind|0o600, int(st.Rdev))
	}
}

// dress gives a copy owner, mode and time.
func dress(to *layertest.Folder, name string, st unix.Stat_t) error {
	err := unix.Fchownat(to.FD(), name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.EPERM) && os.Geteuid() != 0 || errors.Is(err, unix.EINVAL) { // EINVAL: not mapped in a user namespace
		err = nil
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		err = errors.Join(err, unix.Fchmodat(to.FD(), name, st.Mode&0o7777, 0))
	}
	return errors.Join(err, to.SetMTime(name, st.Mtim.Nano()))
}

func (c *copier) copyDir(to *layertest.Folder, toName string, from *layertest.Folder, fromName string) error {
	if err := unix.Mkdirat(to.FD(), toName, 0o700); err != nil {
		return err
	}
	dst, err := to.Sub(toName)
	if err != nil {
		return err
	}
	src, err := from.Sub(fromName)
	if err != nil {
		return errors.Join(err, dst.Close())
	}
	err = src.OpenUp(0o500)
	if err == nil {
		err = errors.Join(copyXattrs(dst, ".", src, "."), c.children(dst, src))
	}
	return errors.Join(err, src.Close(), dst.Close())
}

func (c *copier) children(dst, src *layertest.Folder) error {
	names, err := src.Names()
	for _, name := range names {
		err = errors.Join(err, c.copy(dst, name, src, name))
	}
	return err
}

func copyXattrs(to *layertest.Folder, toName string, from *layertest.Folder, fromName string) error {
	attrs, err := from.Xattrs(fromName)
	for name, value := range attrs {
		err = errors.Join(err, unix.Lsetxattr(to.Path(toName), name, []byte(value), 0))
	}
	return err
}

// copyFile copies data, holes and attributes.
func copyFile(to *layertest.Folder, toName string, from *layertest.Folder, fromName string, st unix.Stat_t) (err error) {
	if os.Geteuid() != 0 && st.Mode&0o400 == 0 {
		if err := unix.Fchmodat(from.FD(), fromName, st.Mode&0o7777|0o400, 0); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, unix.Fchmodat(from.FD(), fromName, st.Mode&0o7777, 0)) }()
	}
	src, err := from.Open(fromName, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer src.Close()
	fd, err := unix.Openat(to.FD(), toName, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	dst := os.NewFile(uintptr(fd), toName)
	data, err := layertest.Segments(src, st.Size)
	for i := 0; i < len(data) && err == nil; i += 2 {
		_, err = io.Copy(io.NewOffsetWriter(dst, data[i]), io.NewSectionReader(src, data[i], data[i+1]-data[i]))
	}
	err = errors.Join(err, dst.Truncate(st.Size), dst.Close())
	return errors.Join(err, copyXattrs(to, toName, from, fromName))
}
