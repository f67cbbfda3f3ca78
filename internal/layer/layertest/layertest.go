// Package layertest compares directory trees in tests, in everything a layer keeps: kinds, modes, owners, times in
// nanoseconds, attributes, hard-link groups, holes and contents.
//
// It walks by itself and must not use the code it is there to test.
package layertest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// Options leave something out of a comparison.
type Options struct {
	NoOwners, NoTimes, NoDirTimes, NoHoles, NoLinks bool
	// Skip are paths that are left out with everything below.
	Skip []string
}

// Node is one path of a tree, described for comparison.
type Node struct {
	Kind     string
	Mode     uint32
	UID, GID uint32
	MTime    int64 // nanoseconds since 1970
	Size     int64
	Link     string
	Rdev     uint64
	Xattrs   map[string]string
	Group    string  // first path of the hard-link group
	Data     []int64 // offsets where data begins and ends, alternating
	Digest   string
}

// Snapshot is a tree by path; the root is ".".
type Snapshot map[string]Node

// Compare fails the test if the trees at got and want differ.
func Compare(t testing.TB, got, want string, o Options) {
	t.Helper()
	a, err := Take(got)
	if err != nil {
		t.Fatalf("take %q: %v", got, err)
	}
	b, err := Take(want)
	if err != nil {
		t.Fatalf("take %q: %v", want, err)
	}
	if d := Diff(a, b, o); d != "" {
		t.Fatalf("%q differs from %q (-got +want):\n%s", got, want, d)
	}
}

// Diff describes how got differs from want, "" if it does not.
func Diff(got, want Snapshot, o Options) string {
	return cmp.Diff(o.reduce(got), o.reduce(want))
}

func (o Options) reduce(s Snapshot) Snapshot {
	r := Snapshot{}
	for path, n := range s {
		if slices.ContainsFunc(o.Skip, func(p string) bool { return path == p || strings.HasPrefix(path, p+"/") }) {
			continue
		}
		if o.NoOwners {
			n.UID, n.GID = 0, 0
		}
		if o.NoTimes || o.NoDirTimes && n.Kind == "dir" {
			n.MTime = 0
		}
		if o.NoHoles {
			n.Data = nil
		}
		if o.NoLinks {
			n.Group = ""
		}
		r[path] = n
	}
	return r
}

// Take describes the tree at dir. The caller's own unreadable directories and files are opened up meanwhile.
func Take(dir string) (Snapshot, error) {
	t := taker{snap: Snapshot{}, groups: map[[2]uint64]string{}}
	if err := t.visit(dir, "."); err != nil {
		return nil, err
	}
	t.first()
	return t.snap, nil
}

type taker struct {
	snap   Snapshot
	groups map[[2]uint64]string
}

func (t *taker) visit(file, path string) error {
	var st unix.Stat_t
	if err := unix.Lstat(file, &st); err != nil {
		return err
	}
	n := Node{Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid, MTime: st.Mtim.Nano()}
	err := t.describe(file, path, st, &n)
	if err != nil {
		return &fs.PathError{Op: "describe", Path: path, Err: err}
	}
	t.snap[path] = n
	return nil
}

func (t *taker) describe(file, path string, st unix.Stat_t, n *Node) error {
	if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
		n.Group = t.group(st, path)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		n.Kind, n.Size = "file", st.Size
		return opened(file, st, 0o400, func() error { return n.read(file) })
	case unix.S_IFDIR:
		n.Kind = "dir"
		return opened(file, st, 0o500, func() error { return t.children(file, path, n) })
	case unix.S_IFLNK:
		n.Kind = "symlink"
		var err error
		n.Link, err = os.Readlink(file)
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

// group gives the smallest path met so far; first sets it for all members at the end.
func (t *taker) group(st unix.Stat_t, path string) string {
	key := [2]uint64{uint64(st.Dev), st.Ino}
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

func (t *taker) children(file, path string, n *Node) error {
	xattrs, err := attributes(file)
	if err != nil {
		return err
	}
	n.Xattrs = xattrs
	entries, err := os.ReadDir(file)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := t.visit(filepath.Join(file, e.Name()), filepath.Join(path, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) read(file string) error {
	xattrs, err := attributes(file)
	if err != nil {
		return err
	}
	n.Xattrs = xattrs
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return err
	}
	n.Digest = hex.EncodeToString(hash.Sum(nil))
	for at := int64(0); at < n.Size; {
		start, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return err
		}
		if at, err = f.Seek(start, unix.SEEK_HOLE); err != nil {
			return err
		}
		n.Data = append(n.Data, start, at)
	}
	return nil
}

// opened runs do with at least the permissions need on a file of the caller's own.
func opened(file string, st unix.Stat_t, need uint32, do func() error) error {
	if os.Geteuid() == 0 || st.Mode&need == need {
		return do()
	}
	if err := unix.Chmod(file, st.Mode&0o7777|need); err != nil {
		return err
	}
	return errors.Join(do(), unix.Chmod(file, st.Mode&0o7777))
}

func attributes(file string) (map[string]string, error) {
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(file, buf)
	if err != nil || n == 0 {
		return nil, err
	}
	var kept map[string]string
	for _, name := range strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		if !strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "system.posix_acl_") && name != "security.capability" {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(file, name, value)
		if err != nil {
			return nil, err
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[name] = string(value[:n])
	}
	return kept, nil
}
