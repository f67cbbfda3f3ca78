package applier

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/fault"
	"github.com/warmfleet/warmfleet/internal/layer"
)

// stay keeps a lookup below its directory, on its mount, and off every link.
const stay = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// maxLookup is how many bytes of a path one system call gets: less than PATH_MAX, which is 4096.
const maxLookup = 3072

var (
	errParentReplaced = errors.New("a directory on the way is a link or a file")
	errParentMissing  = errors.New("parent directory is gone")
)

// tree is a directory whose paths are reached without following a link or leaving it.
type tree struct {
	dir *os.File
	dev uint64
}

func newTree(dir *os.File) (*tree, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return nil, fmt.Errorf("applier: stat %q: %w", dir.Name(), err)
	}
	return &tree{dir: dir, dev: st.Dev}, nil
}

// open opens a path of the tree. The error is fs.ErrNotExist, errParentReplaced, ErrOtherMount or another.
func (t *tree) open(p layer.Path, flags uint64) (*os.File, error) {
	fd, rest, owned := int(t.dir.Fd()), string(p), false
	for {
		part, more, f := rest, "", flags
		if len(rest) > maxLookup {
			cut := strings.LastIndexByte(rest[:maxLookup], '/')
			part, more, f = rest[:cut], rest[cut+1:], unix.O_PATH|unix.O_DIRECTORY
		}
		next, err := openat2(fd, part, f|unix.O_NOFOLLOW|unix.O_CLOEXEC)
		if owned {
			_ = unix.Close(fd)
		}
		if err != nil {
			return nil, fmt.Errorf("applier: open %q: %w", p, err)
		}
		if more == "" {
			return os.NewFile(uintptr(next), string(p)), nil
		}
		fd, rest, owned = next, more, true
	}
}

func openat2(dir int, p string, flags uint64) (int, error) {
	for {
		how := unix.OpenHow{Flags: flags, Resolve: stay}
		if fault.Off("applier.no-symlinks") {
			how = unix.OpenHow{Flags: flags &^ unix.O_NOFOLLOW}
		}
		fd, err := unix.Openat2(dir, p, &how)
		switch err {
		case unix.EINTR, unix.EAGAIN: // a concurrent rename made the kernel unsure
			continue
		case unix.ELOOP, unix.ENOTDIR:
			return -1, fmt.Errorf("%w: %w", errParentReplaced, err)
		case unix.EXDEV:
			return -1, fmt.Errorf("%w: %w", ErrOtherMount, err)
		case nil:
			return fd, nil
		}
		return -1, err
	}
}

// parent opens the directory that holds a path, and returns the last name of it.
func (t *tree) parent(p layer.Path) (*os.File, string, error) {
	dir, name := path.Split(string(p))
	dir = strings.TrimSuffix(dir, "/")
	if dir == "" {
		dir = "."
	}
	d, err := t.open(layer.Path(dir), unix.O_PATH|unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", fmt.Errorf("%w: %w", errParentMissing, err)
	}
	if err != nil {
		return nil, "", err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(d.Fd()), &st); err != nil {
		d.Close()
		return nil, "", fmt.Errorf("applier: stat %q: %w", dir, err)
	}
	// A btrfs subvolume is another device without another mount, and no rename crosses it.
	if st.Dev != t.dev {
		d.Close()
		return nil, "", fmt.Errorf("applier: open %q: %w", dir, ErrOtherMount)
	}
	return d, name, nil
}

// state reads what a path is, digest and extended attributes included.
func (t *tree) state(p layer.Path) (*state, error) {
	f, err := t.open(p, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s, err := statOf(f)
	if err != nil {
		return nil, fmt.Errorf("applier: stat %q: %w", p, err)
	}
	switch s.Type {
	case layer.Symlink:
		s.Link, err = readlink(f)
	case layer.File, layer.Dir:
		err = readXattrs(f, s)
	}
	if err == nil && s.Type == layer.File {
		s.Digest, err = digestOf(f)
	}
	if err != nil {
		return nil, fmt.Errorf("applier: read %q: %w", p, err)
	}
	return s, nil
}

// reader opens a regular file for reading.
func (t *tree) reader(p layer.Path) (io.ReadCloser, error) {
	f, err := t.open(p, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s, err := statOf(f)
	if err == nil && s.Type != layer.File {
		err = fmt.Errorf("is a %s, not a regular file", s.Type)
	}
	if err != nil {
		return nil, fmt.Errorf("applier: open %q: %w", p, err)
	}
	return os.Open(reopen(f))
}

// inode is the inode number at a path, 0 when nothing is there, not even by way of a replaced parent.
func (t *tree) inode(p layer.Path) (uint64, error) {
	f, err := t.open(p, unix.O_PATH)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errParentReplaced) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	s, err := statOf(f)
	if err != nil {
		return 0, fmt.Errorf("applier: stat %q: %w", p, err)
	}
	return s.Ino, nil
}

// names lists a directory of the tree.
func (t *tree) names(p layer.Path) ([]string, error) {
	f, err := t.open(p, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("applier: list %q: %w", p, err)
	}
	return names, nil
}

// reopen is the path by which an O_PATH descriptor can be opened, changed and asked for attributes.
func reopen(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

func statOf(f *os.File) (*state, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	s := &state{
		Mode: st.Mode & 0o7777, UID: int(st.Uid), GID: int(st.Gid), Size: st.Size,
		MTime: time.Unix(st.Mtim.Unix()).UTC(), Ino: st.Ino,
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		s.Type = layer.File
	case unix.S_IFDIR:
		s.Type = layer.Dir
	case unix.S_IFLNK:
		s.Type = layer.Symlink
	case unix.S_IFIFO:
		s.Type = layer.Fifo
	case unix.S_IFCHR:
		s.Type, s.Rdev = layer.Char, st.Rdev
	case unix.S_IFBLK:
		s.Type, s.Rdev = layer.Block, st.Rdev
	default:
		s.Type = socket
	}
	if s.Type != layer.File {
		s.Size = 0
	}
	return s, nil
}

func readlink(f *os.File) (layer.Path, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(f.Fd()), "", buf)
	if err != nil {
		return "", err
	}
	return layer.Path(buf[:n]), nil
}

func digestOf(f *os.File) (string, error) {
	r, err := os.Open(reopen(f))
	if err != nil {
		return "", err
	}
	defer r.Close()
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}
