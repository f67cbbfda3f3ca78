package layer

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/fault"
)

// What a walk needs of a directory it owns: to list and pass it, or to change it as well.
const (
	needRead  = 0o500
	needWrite = 0o700
)

// folder is an open directory, reached component by component and never through a link.
//
// An ordinary user's own directories that lack a permission the walk needs are opened up
// while the folder is open; close puts their mode back.
type folder struct {
	fd      int
	restore int64 // mode to put back, -1 if it was not touched
}

// openFolder opens the directory at a path of the host. Only its last component must not be a link.
func openFolder(path string, need uint32) (*folder, error) {
	return folderAt(unix.AT_FDCWD, path, need)
}

// sub opens the directory name inside f.
func (f *folder) sub(name string, need uint32) (*folder, error) {
	return folderAt(f.fd, name, need)
}

func folderAt(at int, name string, need uint32) (*folder, error) {
	flags := unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	if fault.Off("layer.no-follow") {
		flags &^= unix.O_NOFOLLOW
	}
	fd, err := openRetry(at, name, flags, 0)
	if err == nil && os.Geteuid() == 0 {
		return &folder{fd: fd, restore: -1}, nil
	}
	if err != nil && !errors.Is(err, unix.EACCES) {
		return nil, err
	}
	if err == nil {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			unix.Close(fd)
			return nil, err
		}
		if st.Mode&need == need || int(st.Uid) != os.Geteuid() {
			return &folder{fd: fd, restore: -1}, nil
		}
		unix.Close(fd)
	}
	return folderOpenedUp(at, name, need)
}

func folderOpenedUp(at int, name string, need uint32) (*folder, error) {
	path, st, err := openPath(at, name)
	if err != nil {
		return nil, err
	}
	defer unix.Close(path)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, unix.ENOTDIR
	}
	if int(st.Uid) != os.Geteuid() {
		return nil, unix.EACCES
	}
	mode := st.Mode & 0o7777
	if err := chmodPath(path, mode|need); err != nil {
		return nil, err
	}
	fd, err := openRetry(unix.AT_FDCWD, procPath(path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(err, chmodPath(path, mode))
	}
	return &folder{fd: fd, restore: int64(mode)}, nil
}

// openPath opens whatever name is, without following and without needing its permissions.
func openPath(at int, name string) (int, unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := openRetry(at, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, st, err
	}
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// chmodPath changes the mode of what an O_PATH descriptor stands for; fchmod refuses those.
func chmodPath(fd int, mode uint32) error {
	return unix.Chmod(procPath(fd), mode)
}

func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func openRetry(at int, name string, flags int, mode uint32) (int, error) {
	for {
		fd, err := unix.Openat(at, name, flags, mode)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// close gives the directory its mode back and closes it.
func (f *folder) close() error {
	var err error
	if f.restore >= 0 {
		err = unix.Fchmod(f.fd, uint32(f.restore))
	}
	return errors.Join(err, unix.Close(f.fd))
}

// names lists the directory in byte order.
func (f *folder) names() ([]string, error) {
	if _, err := unix.Seek(f.fd, 0, io.SeekStart); err != nil {
		return nil, err
	}
	var names []string
	buf := make([]byte, 32<<10)
	for {
		n, err := unix.ReadDirent(f.fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n <= 0 {
			slices.Sort(names)
			return names, nil
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

// stat describes name itself, never what a link points to. "." has the mode that it has while nobody opened it up.
func (f *folder) stat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	if name != "." {
		err := unix.Fstatat(f.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		return st, err
	}
	err := unix.Fstat(f.fd, &st)
	if f.restore >= 0 {
		st.Mode = st.Mode&unix.S_IFMT | uint32(f.restore)
	}
	return st, err
}

func (f *folder) readlink(name string) (string, error) {
	for size := 256; ; size *= 4 {
		buf := make([]byte, size)
		n, err := unix.Readlinkat(f.fd, name, buf)
		if err != nil {
			return "", err
		}
		if n < size {
			return string(buf[:n]), nil
		}
	}
}

// open opens a regular file for reading. The ordinary user's own unreadable file is made
// readable for the moment of opening.
func (f *folder) open(name string) (*os.File, error) {
	const flags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := openRetry(f.fd, name, flags, 0)
	if errors.Is(err, unix.EACCES) {
		err = f.readable(name, func() (err error) {
			fd, err = openRetry(f.fd, name, flags, 0)
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return nil, unix.EINVAL
	}
	return os.NewFile(uintptr(fd), name), nil
}

// readable runs do while name, if it is the caller's own, has the owner's read permission.
func (f *folder) readable(name string, do func() error) error {
	path, st, err := openPath(f.fd, name)
	if err != nil {
		return err
	}
	defer unix.Close(path)
	if int(st.Uid) != os.Geteuid() || st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return unix.EACCES
	}
	mode := st.Mode & 0o7777
	if err := chmodPath(path, mode|0o400); err != nil {
		return err
	}
	return errors.Join(do(), chmodPath(path, mode))
}

// openIn opens the directory that holds p, and gives p's last component.
func openIn(root *folder, p Path, need uint32) (*folder, string, error) {
	if p == "." {
		f, err := root.sub(".", need)
		return f, ".", err
	}
	dir, name := split(p)
	f, err := root.sub(".", need)
	if err != nil {
		return nil, "", err
	}
	for _, part := range components(dir) {
		next, err := f.sub(part, need)
		err = errors.Join(err, f.close())
		if err != nil {
			if next != nil {
				next.close()
			}
			return nil, "", err
		}
		f = next
	}
	return f, name, nil
}

// openFile opens the regular file p of the tree at dir for reading.
func openFile(dir string, p Path) (*os.File, error) {
	root, err := openFolder(dir, needRead)
	if err != nil {
		return nil, err
	}
	defer root.close()
	f, name, err := openIn(root, p, needRead)
	if err != nil {
		return nil, err
	}
	defer f.close()
	return f.open(name)
}

// components are the names on the way from the root to p.
func components(p Path) []string {
	if p == "." {
		return nil
	}
	return strings.Split(string(p), "/")
}

// split cuts a path into its directory and its last component.
func split(p Path) (Path, string) {
	i := strings.LastIndexByte(string(p), '/')
	if i < 0 {
		return ".", string(p)
	}
	return p[:i], string(p[i+1:])
}

// join is the path of name in the directory dir of a tree.
func join(dir Path, name string) Path {
	if dir == "." {
		return Path(name)
	}
	return dir + "/" + Path(name)
}

// gone tells whether err says that a path, or a directory on the way to it, is not there.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}
