package layer

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// whiteoutDev is the device number of the character device by which overlayfs marks a deletion.
const whiteoutDev = 0

// typeOf gives the kind of a stat mode, false for a socket or an unknown kind.
func typeOf(mode uint32) (Type, bool) {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return File, true
	case unix.S_IFDIR:
		return Dir, true
	case unix.S_IFLNK:
		return Symlink, true
	case unix.S_IFIFO:
		return Fifo, true
	case unix.S_IFCHR:
		return Char, true
	case unix.S_IFBLK:
		return Block, true
	}
	return "", false
}

func isWhiteout(st unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == whiteoutDev
}

func isSocket(st unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFSOCK }

func mtimeOf(st unix.Stat_t) time.Time { return time.Unix(st.Mtim.Unix()) }

// describe is the entry of name in f, without attributes, hard link and digest. Owners are those on disk.
func (f *folder) describe(p Path, name string, st unix.Stat_t) (Entry, error) {
	typ, ok := typeOf(st.Mode)
	if !ok {
		return Entry{}, fmt.Errorf("file type %#o is not known", st.Mode&unix.S_IFMT)
	}
	e := Entry{Path: p, Type: typ, Mode: st.Mode & 0o7777, UID: int(st.Uid), GID: int(st.Gid), MTime: mtimeOf(st)}
	switch typ {
	case File:
		e.Size = st.Size
	case Symlink:
		link, err := f.readlink(name)
		if err != nil {
			return Entry{}, err
		}
		e.Link = LinkText(link)
	case Char, Block:
		e.Rdev = st.Rdev
	}
	return e, nil
}

// hasXattrs tells which kinds Linux lets have the attributes that are kept.
func (t Type) hasXattrs() bool { return t == File || t == Dir }

// ids are the numbers that a file on disk gets; -1 leaves one as it is.
type ids struct{ uid, gid int }

// shape gives name in f the owner, attributes, mode and times of e, in the order in which none undoes another:
// chown clears setuid and capabilities, attributes need write permission, mode and access list meet in the mask.
func (f *folder) shape(name string, e Entry, o overlayPrefix, own ids) ([]Lost, error) {
	var lost []Lost
	if own.uid >= 0 || own.gid >= 0 {
		if err := unix.Fchownat(f.fd, name, own.uid, own.gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return nil, fmt.Errorf("chown: %w", err)
		}
	}
	if e.Type.hasXattrs() {
		refused, err := f.shapeXattrs(name, e, o)
		if err != nil {
			return nil, fmt.Errorf("set attributes: %w", err)
		}
		for _, n := range refused {
			lost = append(lost, Lost{Path: e.Path, What: "attribute " + n})
		}
	}
	if e.Type != Symlink {
		if err := f.chmod(name, e.Mode); err != nil {
			return nil, fmt.Errorf("chmod: %w", err)
		}
	}
	return lost, f.setMTime(name, e.MTime)
}

func (f *folder) shapeXattrs(name string, e Entry, o overlayPrefix) ([]string, error) {
	refused, err := f.setXattrs(name, o, e.Xattrs)
	if !errors.Is(err, unix.EACCES) || os.Geteuid() == 0 {
		return refused, err
	}
	if err := f.chmod(name, e.Mode|needWrite); err != nil {
		return nil, err
	}
	return f.setXattrs(name, o, e.Xattrs)
}

// chmod never follows a link: fchmodat has no such flag, a path descriptor has.
func (f *folder) chmod(name string, mode uint32) error {
	fd, st, err := openPath(f.fd, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return unix.ELOOP
	}
	if st.Mode&0o7777 == mode {
		return nil
	}
	return chmodPath(fd, mode)
}

// setMTime sets the modification time in nanoseconds and leaves the access time alone.
func (f *folder) setMTime(name string, t time.Time) error {
	mtime := unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, mtime}
	dir, flags := f.fd, unix.AT_SYMLINK_NOFOLLOW
	if name == "." { // in a directory that is closed even that cannot be looked up
		dir, name, flags = unix.AT_FDCWD, procPath(f.fd), 0
	}
	if err := unix.UtimesNanoAt(dir, name, ts, flags); err != nil {
		return fmt.Errorf("set time: %w", err)
	}
	return nil
}

// create makes name in f, which must be free, as e's kind with a mode that only its owner can use. A regular
// file comes back open for writing; everything else is nil.
func (f *folder) create(name string, e Entry) (*os.File, error) {
	switch e.Type {
	case File:
		const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
		fd, err := openRetry(f.fd, name, flags, 0o600)
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), name), nil
	case Dir:
		return nil, unix.Mkdirat(f.fd, name, 0o700)
	case Symlink:
		return nil, unix.Symlinkat(string(e.Link), f.fd, name)
	case Fifo:
		return nil, unix.Mkfifoat(f.fd, name, 0o600)
	case Char:
		if e.Rdev == whiteoutDev {
			return nil, fmt.Errorf("character device 0:0 cannot be told from a deletion: %w", unix.EINVAL)
		}
		return nil, unix.Mknodat(f.fd, name, unix.S_IFCHR|0o600, int(e.Rdev))
	case Block:
		return nil, unix.Mknodat(f.fd, name, unix.S_IFBLK|0o600, int(e.Rdev))
	}
	return nil, fmt.Errorf("type %q is not known: %w", e.Type, unix.EINVAL)
}
