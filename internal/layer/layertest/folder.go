package layertest

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Folder is an open directory. What it holds is reached by descriptor, so that no path is too long.
type Folder struct {
	fd   int
	mode int64 // to put back, -1 if it was not opened up
}

// Host is where paths of the host begin. It is not to be closed.
func Host() *Folder { return &Folder{fd: unix.AT_FDCWD, mode: -1} }

// OpenFolder opens a directory of the host.
func OpenFolder(dir string) (*Folder, error) { return Host().Sub(dir) }

// Sub opens the directory name. It needs no permission on it, and gives none.
func (f *Folder) Sub(name string) (*Folder, error) {
	fd, err := openRetry(f.fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return &Folder{fd: fd, mode: -1}, nil
}

func openRetry(at int, name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(at, name, flags, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// Parent opens the directory that holds path, and gives path's last component. The root is "." in itself.
func (f *Folder) Parent(path string) (*Folder, string, error) {
	parts := strings.Split(path, "/")
	at, err := f.Sub(".")
	if err != nil {
		return nil, "", err
	}
	for _, name := range parts[:len(parts)-1] {
		next, err := at.Sub(name)
		if err := errors.Join(err, at.Close()); err != nil {
			return nil, "", err
		}
		at = next
	}
	return at, parts[len(parts)-1], nil
}

// Path names something in f for system calls that take no descriptor.
func (f *Folder) Path(name string) string {
	return "/proc/self/fd/" + strconv.Itoa(f.fd) + "/" + name
}

// Stat describes name, not what it links to.
func (f *Folder) Stat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(f.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return st, err
}

// OpenUp gives the caller, unless it may do everything anyway, the permissions need until close.
func (f *Folder) OpenUp(need uint32) error {
	var st unix.Stat_t
	err := unix.Fstat(f.fd, &st)
	if err != nil || os.Geteuid() == 0 || st.Mode&need == need {
		return err
	}
	f.mode = int64(st.Mode & 0o7777)
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(f.fd), uint32(f.mode)|need)
}

// FD is the descriptor, for the system calls that take one with a name.
func (f *Folder) FD() int { return f.fd }

// CloseUp takes back what OpenUp did.
func (f *Folder) CloseUp() error {
	if f.mode < 0 {
		return nil
	}
	mode := uint32(f.mode)
	f.mode = -1
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(f.fd), mode)
}

// Close closes f; if it was opened up it gets its mode back.
func (f *Folder) Close() error { return errors.Join(f.CloseUp(), unix.Close(f.fd)) }

// Again is another descriptor of the same directory.
func (f *Folder) Again() (*Folder, error) {
	fd, err := unix.FcntlInt(uintptr(f.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &Folder{fd: fd, mode: -1}, nil
}

// Names lists f, which must be readable.
func (f *Folder) Names() ([]string, error) {
	fd, err := openRetry(f.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC)
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), ".")
	names, err := dir.Readdirnames(-1)
	return names, errors.Join(err, dir.Close())
}

// Open opens a regular file; it follows no link and waits for no other end of a fifo.
func (f *Folder) Open(name string, flags int) (*os.File, error) {
	fd, err := openRetry(f.fd, name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Readlink gives the text of a symbolic link.
func (f *Folder) Readlink(name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(f.fd, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// SetMTime sets the time of change, in nanoseconds since 1970, of name itself.
func (f *Folder) SetMTime(name string, ns int64) error {
	return unix.UtimesNanoAt(f.fd, name, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, timespec(ns)}, unix.AT_SYMLINK_NOFOLLOW)
}

// timespec counts nanoseconds upwards from the second, before 1970 too.
func timespec(ns int64) unix.Timespec {
	sec, rest := ns/1e9, ns%1e9
	if rest < 0 {
		sec, rest = sec-1, rest+1e9
	}
	return unix.Timespec{Sec: sec, Nsec: rest}
}

// Xattrs reads the attributes of a tree that name has.
func (f *Folder) Xattrs(name string) (map[string]string, error) {
	path := f.Path(name)
	buf := make([]byte, 64<<10) // XATTR_LIST_MAX and XATTR_SIZE_MAX
	n, err := unix.Llistxattr(path, buf)
	if err != nil || n == 0 {
		return nil, err
	}
	var kept map[string]string
	for _, attr := range strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		if !strings.HasPrefix(attr, "user.") && !strings.HasPrefix(attr, "system.posix_acl_") && attr != "security.capability" {
			continue
		}
		n, err := unix.Lgetxattr(path, attr, buf)
		if err != nil {
			return nil, err
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[attr] = string(buf[:n])
	}
	return kept, nil
}
