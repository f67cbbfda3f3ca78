package layer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Copier is a view whose open layer can be copied while it is shown. All views of a Cache are.
type Copier interface {
	// Copy closes a copy of the open layer and returns it; false: nothing changed, so there is none. It belongs on
	// Chain, which like the open layer stays as it is. The view may be mounted and its files be open, but nothing may
	// write. The cost follows what was written since the last Freeze.
	Copy(ctx context.Context) (Layer, bool, error)
}

// Copy compares the directory as Freeze does, and keeps comparing with its last state.
func (v *dirView) Copy(ctx context.Context) (Layer, bool, error) {
	l, _, changed, err := v.c.capture(ctx, captureJob{dir: v.dir, old: v.idx, keep: untilReboot})
	return l, changed, err
}

// Copy copies the upper directory as it lies, and normalises the copy.
func (v *overlayView) Copy(ctx context.Context) (Layer, bool, error) {
	s, err := v.c.Stage()
	if err != nil {
		return Layer{}, false, err
	}
	l, changed, err := v.copyTo(ctx, s)
	if err != nil || !changed {
		err = errors.Join(err, s.Discard())
	}
	if err != nil {
		return Layer{}, false, fmt.Errorf("layer: copy the open layer: %w", err)
	}
	return l, changed, nil
}

func (v *overlayView) copyTo(ctx context.Context, s *Staged) (Layer, bool, error) {
	if v.disk != nil {
		if err := v.disk.Sound(); err != nil {
			return Layer{}, false, err
		}
	}
	if err := errors.Join(v.c.makeWork(s), v.c.copyUpper(ctx, v.open, s)); err != nil {
		return Layer{}, false, err
	}
	meta, changed, err := v.c.normalise(ctx, s.Dir(), workOf(s), v.below)
	if err != nil || !changed {
		return Layer{}, false, err
	}
	if err := RemoveTree(workOf(s)); err != nil {
		return Layer{}, false, err
	}
	l, err := s.commit(Layer{Lost: meta.Lost}, meta, untilReboot)
	return l, err == nil, err
}

const indexDir = "index"

// copyUpper copies an upper directory and its index, with what overlayfs noted in them and normalise reads.
func (c *Cache) copyUpper(ctx context.Context, from, to *Staged) error {
	cp := upperCopier{ctx: ctx, opt: c.opt, links: map[inode]string{}}
	if err := cp.tree(from.Dir(), to.Dir()); err != nil {
		return err
	}
	index := filepath.Join(workOf(from), indexDir)
	if _, err := os.Lstat(index); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return cp.index(index, filepath.Join(workOf(to), indexDir))
}

type upperCopier struct {
	ctx   context.Context
	opt   Options
	links map[inode]string // where files with several names were copied to
}

func (c *upperCopier) tree(from, to string) error {
	src, err := openFolder(from, needRead)
	if err != nil {
		return err
	}
	defer src.close()
	dst, err := openFolder(to, needWrite)
	if err != nil {
		return err
	}
	defer dst.close()
	if err := c.children(src, dst, to); err != nil {
		return err
	}
	st, err := src.stat(".")
	if err != nil {
		return err
	}
	return c.shape(src, dst, ".", st)
}

func (c *upperCopier) children(src, dst *folder, to string) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	names, err := src.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := c.entry(src, dst, name, filepath.Join(to, name)); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	return nil
}

func (c *upperCopier) entry(src, dst *folder, name, to string) error {
	st, err := src.stat(name)
	switch {
	case err != nil:
		return err
	case isWhiteout(st):
		return dst.whiteout(name)
	case isSocket(st):
		return unix.Mknodat(dst.fd, name, unix.S_IFSOCK|0o600, 0) // normalise lists it as lost
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
		key := inode{st.Dev, st.Ino}
		if first, done := c.links[key]; done {
			return unix.Linkat(unix.AT_FDCWD, first, dst.fd, name, 0)
		}
		c.links[key] = to
	}
	e, err := src.describe(Path(name), name, st)
	if err != nil {
		return err
	}
	file, err := dst.create(name, e)
	if err != nil {
		return err
	}
	switch e.Type {
	case File:
		err = copyOf(src, name, file, e.Size)
	case Dir:
		err = c.subdir(src, dst, name, to)
	}
	if err != nil {
		return err
	}
	return c.shape(src, dst, name, st)
}

func (c *upperCopier) subdir(src, dst *folder, name, to string) error {
	from, err := src.sub(name, needRead)
	if err != nil {
		return err
	}
	defer from.close()
	into, err := dst.sub(name, needWrite)
	if err != nil {
		return err
	}
	return errors.Join(c.children(from, into, to), into.close())
}

// shape gives a copy the attributes of what it was made of, overlayfs' own that say what shows included.
func (c *upperCopier) shape(src, dst *folder, name string, st unix.Stat_t) error {
	e, err := src.describe(Path(name), name, st)
	if err != nil {
		return err
	}
	var internal map[string][]byte
	if e.Type.hasXattrs() {
		if e.Xattrs, internal, err = src.xattrs(name, c.opt.prefix()); err != nil {
			return err
		}
	}
	lost, err := dst.shape(name, e, c.opt.prefix(), c.opt.diskOwner())
	if err == nil && len(lost) > 0 {
		err = fmt.Errorf("cannot be copied: %s", lost[0].What) // it was set on this very file system
	}
	for key, value := range internal {
		switch {
		case err != nil:
			return err
		case !slices.Contains(knownInternal, key):
			return fmt.Errorf("overlay attribute %q is not known", key)
		case key == "opaque" || key == "redirect":
			err = unix.Lsetxattr(dst.attrPath(name), string(c.opt.prefix())+key, value, 0)
		}
	}
	return err
}

// index copies the entries that stand for files of the chain which were written through one of several names.
func (c *upperCopier) index(from, to string) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	src, err := openFolder(from, needRead)
	if err != nil {
		return err
	}
	defer src.close()
	dst, err := openFolder(to, needWrite)
	if err != nil {
		return err
	}
	defer dst.close()
	names, err := src.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		st, err := src.stat(name)
		if err != nil {
			return err
		}
		if isWhiteout(st) || st.Mode&unix.S_IFMT == unix.S_IFDIR {
			continue
		}
		if err := c.entry(src, dst, name, filepath.Join(to, name)); err != nil {
			return fmt.Errorf("index entry: %w", err)
		}
	}
	return nil
}
