package inside

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

// stageName is where changes are made ready, in the root of the workspace, for as long as they take.
const stageName = ".warmfleet-patch"

// openStrict opens a path below root without following any link.
func openStrict(root int, name string, flags uint64) (int, error) {
	how := unix.OpenHow{
		Flags:   flags | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	for {
		fd, err := unix.Openat2(root, name, &how)
		if err != unix.EAGAIN && err != unix.EINTR {
			return fd, err
		}
	}
}

// lookAt reads what is at a path: a file's content, or a link's text. No link is followed.
func lookAt(root int, m wire.File) (wire.Content, error) {
	fd, err := openStrict(root, m.Path, unix.O_PATH)
	if err != nil {
		return wire.Content{}, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return wire.Content{}, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		text := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(fd, "", text)
		if err != nil {
			return wire.Content{}, err
		}
		return wire.Content{Mode: uint64(st.Mode), Data: text[:n]}, nil
	}
	return readStrict(root, m)
}

func readStrict(root int, m wire.File) (wire.Content, error) {
	fd, err := openStrict(root, m.Path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return wire.Content{}, err
	}
	file := os.NewFile(uintptr(fd), m.Path)
	defer file.Close()
	return contentOf(file, m.Max)
}

// contentOf reads a regular file of at most max bytes.
func contentOf(file *os.File, max int64) (wire.Content, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return wire.Content{}, err
	}
	if err := regular(st); err != nil {
		return wire.Content{}, err
	}
	if st.Size > max {
		return wire.Content{}, unix.EFBIG
	}
	data, err := io.ReadAll(io.LimitReader(file, max+1))
	if err != nil {
		return wire.Content{}, err
	}
	if int64(len(data)) > max {
		return wire.Content{}, unix.EFBIG
	}
	return wire.Content{Mode: uint64(st.Mode), Data: data}, nil
}

func (f *files) change(root int, frame wire.Frame) error {
	var m wire.Changes
	if err := frame.Decode(&m); err != nil {
		return err
	}
	for _, one := range m.List {
		if f.spec.NoSetuid && one.Mode&setidBits != 0 {
			return unix.EPERM
		}
	}
	if err := changeFiles(root, m.List); err != nil {
		return err
	}
	return f.conn.Send(frame.ID, wire.KindDone, nil)
}

// changer makes several changes, and can take back those it made.
type changer struct {
	root, stage int
	undo        []func() error
}

// changeFiles makes all changes, or none: what is new is ready before anything is touched, and what failed is taken back.
// Directories are made where they are missing, and go when the last thing in them went.
func changeFiles(root int, list []wire.File) (err error) {
	c := &changer{root: root, stage: -1}
	name, err := c.openStage()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.sweep(name)) }()
	for _, do := range []func([]wire.File) error{c.make, c.clear, c.place} {
		if err := do(list); err != nil {
			return errors.Join(err, c.back())
		}
	}
	for _, m := range list {
		if m.Mode == 0 {
			c.prune(m.Path)
		}
	}
	return nil
}

func (c *changer) openStage() (string, error) {
	for i := 0; ; i++ {
		name := fmt.Sprintf("%s.%d", stageName, i)
		err := unix.Mkdirat(c.root, name, 0o700)
		if err == unix.EEXIST {
			continue
		}
		if err != nil {
			return "", err
		}
		c.stage, err = openStrict(c.root, name, unix.O_RDONLY|unix.O_DIRECTORY)
		return name, err
	}
}

// sweep removes the stage with what was replaced, or never used.
func (c *changer) sweep(name string) error {
	dir := os.NewFile(uintptr(c.stage), name)
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	for _, n := range names {
		err = errors.Join(err, unix.Unlinkat(c.stage, n, 0))
	}
	return errors.Join(err, unix.Unlinkat(c.root, name, unix.AT_REMOVEDIR))
}

func (c *changer) back() error {
	var errs []error
	for i := len(c.undo) - 1; i >= 0; i-- {
		errs = append(errs, c.undo[i]())
	}
	return errors.Join(errs...)
}

func slot(what string, i int) string { return fmt.Sprintf("%s-%d", what, i) }

func at(m wire.File, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%q: %w", m.Path, err)
}

// make writes what is to be there into the stage.
func (c *changer) make(list []wire.File) error {
	for i, m := range list {
		var err error
		switch m.Mode & unix.S_IFMT {
		case 0:
		case unix.S_IFLNK:
			err = unix.Symlinkat(string(m.Content), c.stage, slot("new", i))
		case unix.S_IFREG:
			err = c.write(slot("new", i), m)
		default:
			err = unix.EINVAL
		}
		if err != nil {
			return at(m, err)
		}
	}
	return nil
}

func (c *changer) write(name string, m wire.File) error {
	fd, err := unix.Openat(c.stage, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), name)
	_, err = file.Write(m.Content)
	if err == nil {
		err = unix.Fchmod(fd, uint32(m.Mode&0o7777))
	}
	return errors.Join(err, file.Close())
}

// clear moves what is at the paths now into the stage, and empty directories out of the way of what comes there.
func (c *changer) clear(list []wire.File) error {
	for i, m := range list {
		if err := c.moveAway(m, slot("old", i)); err != nil {
			return at(m, err)
		}
	}
	written := map[string]bool{}
	for _, m := range list {
		written[m.Path] = m.Mode != 0
	}
	for _, gone := range list {
		for p := path.Dir(gone.Path); p != "."; p = path.Dir(p) {
			if !written[p] {
				continue
			}
			if err := c.removeDirs(path.Dir(gone.Path), p); err != nil {
				return at(wire.File{Path: p}, err)
			}
		}
	}
	return nil
}

func (c *changer) moveAway(m wire.File, to string) error {
	dir, base, err := c.parent(m.Path, false)
	if m.Mode != 0 && (err == unix.ENOENT || err == unix.ENOTDIR) {
		return nil // it is new; what is in its way may go yet
	}
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	err = unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case m.Mode != 0 && (err == unix.ENOENT || err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR):
		return nil
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return unix.EISDIR
	}
	if err := unix.Renameat(dir, base, c.stage, to); err != nil {
		return err
	}
	c.undo = append(c.undo, func() error {
		dir, base, err := c.parent(m.Path, false)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		return unix.Renameat(c.stage, to, dir, base)
	})
	return nil
}

// removeDirs removes empty directories from one up to another.
func (c *changer) removeDirs(from, to string) error {
	for p := from; p == to || strings.HasPrefix(p, to+"/"); p = path.Dir(p) {
		var st unix.Stat_t
		dir, base, err := c.parent(p, false)
		if err == unix.ENOENT {
			continue // went already
		}
		if err != nil {
			return err
		}
		err = unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil {
			err = unix.Unlinkat(dir, base, unix.AT_REMOVEDIR)
		}
		unix.Close(dir)
		if err == unix.ENOENT {
			continue
		}
		if err != nil {
			return err
		}
		c.undo = append(c.undo, func() error { return c.remake(p, st) })
	}
	return nil
}

// remake makes a directory again that removeDirs took away.
func (c *changer) remake(name string, was unix.Stat_t) error {
	dir, base, err := c.parent(name, false)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := unix.Mkdirat(dir, base, 0o700); err != nil {
		return err
	}
	return unix.Fchmodat(dir, base, was.Mode&0o7777, 0)
}

// place moves what is new to where it belongs.
func (c *changer) place(list []wire.File) error {
	for i, m := range list {
		if m.Mode == 0 {
			continue
		}
		dir, base, err := c.parent(m.Path, true)
		if err != nil {
			return at(m, err)
		}
		err = unix.Renameat2(c.stage, slot("new", i), dir, base, unix.RENAME_NOREPLACE)
		unix.Close(dir)
		if err != nil {
			return at(m, err)
		}
		c.undo = append(c.undo, func() error {
			dir, base, err := c.parent(m.Path, false)
			if err != nil {
				return err
			}
			defer unix.Close(dir)
			return unix.Unlinkat(dir, base, 0)
		})
	}
	return nil
}

// parent opens the directory of a path, never by way of a link, and names the rest. Missing ones are made when asked to.
func (c *changer) parent(name string, make bool) (int, string, error) {
	dir, base := path.Dir(name), path.Base(name)
	const flags = unix.O_RDONLY | unix.O_DIRECTORY
	fd, err := openStrict(c.root, dir, flags)
	if err != unix.ENOENT || !make {
		return fd, base, err
	}
	above, last, err := c.parent(dir, true)
	if err != nil {
		return -1, "", err
	}
	defer unix.Close(above)
	if err := unix.Mkdirat(above, last, 0o755); err != nil {
		return -1, "", err
	}
	c.undo = append(c.undo, func() error {
		above, last, err := c.parent(dir, false)
		if err != nil {
			return err
		}
		defer unix.Close(above)
		return unix.Unlinkat(above, last, unix.AT_REMOVEDIR)
	})
	fd, err = openStrict(c.root, dir, flags)
	return fd, base, err
}

// prune removes the directories that a path left empty. What is not empty, or must stay, stays.
func (c *changer) prune(name string) {
	for p := path.Dir(name); p != "."; p = path.Dir(p) {
		dir, base, err := c.parent(p, false)
		if err != nil {
			return
		}
		err = unix.Unlinkat(dir, base, unix.AT_REMOVEDIR)
		unix.Close(dir)
		if err != nil && err != unix.ENOENT {
			return
		}
	}
}
