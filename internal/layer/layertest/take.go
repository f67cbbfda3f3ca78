package layertest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Take describes the tree at dir. The caller's own unreadable directories and files are opened up meanwhile.
func Take(dir string) (Snapshot, error) { return takeTree(dir, true) }

// TakeClosed is Take, but leaves unreadable files as they are and calls them Hidden: opening one up would change what
// an overlay is made of.
func TakeClosed(dir string) (Snapshot, error) { return takeTree(dir, false) }

func takeTree(dir string, openFiles bool) (Snapshot, error) {
	root, err := OpenFolder(dir)
	if err != nil {
		return nil, err
	}
	t := taker{snap: Snapshot{}, groups: map[[2]uint64]string{}, openFiles: openFiles}
	if err := errors.Join(t.visit(root, ".", "."), root.Close()); err != nil {
		return nil, err
	}
	t.first()
	return t.snap, nil
}

type taker struct {
	snap      Snapshot
	groups    map[[2]uint64]string
	openFiles bool
}

func (t *taker) visit(f *Folder, name, path string) error {
	var st unix.Stat_t
	err := unix.Fstat(f.fd, &st)
	if path != "." {
		st, err = f.Stat(name)
	}
	n := Node{Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid, MTime: st.Mtim.Nano()}
	if err == nil {
		err = t.describe(f, name, path, st, &n)
	}
	if err != nil {
		return &fs.PathError{Op: "describe", Path: path, Err: err}
	}
	t.snap[path] = n
	return nil
}

func (t *taker) describe(f *Folder, name, path string, st unix.Stat_t, n *Node) error {
	if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
		n.Group = t.group(st, path)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		n.Kind, n.Size = "file", st.Size
		return t.file(f, name, st, n)
	case unix.S_IFDIR:
		n.Kind = "dir"
		return t.children(f, name, path, n)
	case unix.S_IFLNK:
		n.Kind = "symlink"
		var err error
		n.Link, err = f.Readlink(name)
		return err
	case unix.S_IFIFO:
		n.Kind = "fifo"
	case unix.S_IFSOCK:
		n.Kind = "socket"
	case unix.S_IFCHR:
		n.Kind, n.Rdev = "char", st.Rdev
	case unix.S_IFBLK:
		n.Kind, n.Rdev = "block", st.Rdev
	}
	return nil
}

// group gives the first path met; first sets the smallest for all members at the end.
func (t *taker) group(st unix.Stat_t, path string) string {
	key := [2]uint64{st.Dev, st.Ino}
	if first, ok := t.groups[key]; ok {
		return first
	}
	t.groups[key] = path
	return path
}

// first names each group by its first path in byte order, and drops those with one member in the tree.
func (t *taker) first() {
	members := map[string][]string{}
	for path, n := range t.snap {
		if n.Group != "" {
			members[n.Group] = append(members[n.Group], path)
		}
	}
	for _, paths := range members {
		name := slices.Min(paths)
		if len(paths) == 1 {
			name = ""
		}
		for _, p := range paths {
			n := t.snap[p]
			n.Group = name
			t.snap[p] = n
		}
	}
}

func (t *taker) children(f *Folder, name, path string, n *Node) error {
	sub, err := f.Sub(name)
	if err != nil {
		return err
	}
	return errors.Join(sub.OpenUp(0o500), t.inside(sub, path, n), sub.Close())
}

func (t *taker) inside(f *Folder, path string, n *Node) error {
	var err error
	if n.Xattrs, err = f.Xattrs("."); err != nil {
		return err
	}
	names, err := f.Names()
	if err != nil {
		return err
	}
	for _, name := range names {
		below := path + "/" + name
		if path == "." {
			below = name
		}
		if err := t.visit(f, name, below); err != nil {
			return err
		}
	}
	return nil
}

func (t *taker) file(f *Folder, name string, st unix.Stat_t, n *Node) error {
	if os.Geteuid() == 0 || st.Mode&0o400 != 0 {
		return n.read(f, name)
	}
	if !t.openFiles {
		n.Hidden = true
		return nil
	}
	mode := st.Mode & 0o7777
	if err := unix.Fchmodat(f.fd, name, mode|0o400, 0); err != nil {
		return err
	}
	return errors.Join(n.read(f, name), unix.Fchmodat(f.fd, name, mode, 0))
}

func (n *Node) read(f *Folder, name string) error {
	var err error
	if n.Xattrs, err = f.Xattrs(name); err != nil {
		return err
	}
	file, err := f.Open(name, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer file.Close()
	if n.Data, err = Segments(file, n.Size); err != nil {
		return err
	}
	n.Digest, err = Digest(io.NewSectionReader(file, 0, n.Size+1))
	return err
}

// Digest is the Digest of a Node with the content that r gives.
func Digest(r io.Reader) (string, error) {
	hash := sha256.New()
	if _, err := io.Copy(hash, r); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// segments are where data begins and ends, alternating.
func Segments(file *os.File, size int64) ([]int64, error) {
	var data []int64
	for at := int64(0); at < size; {
		start, err := file.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return nil, err
		}
		if at, err = file.Seek(start, unix.SEEK_HOLE); err != nil {
			return nil, err
		}
		data = append(data, start, at)
	}
	return data, nil
}
