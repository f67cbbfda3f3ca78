package layer

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/fault"
)

// item is one path of a single layer.
type item struct {
	Entry
	// Whiteout: the path is deleted; nothing else of the entry counts.
	Whiteout bool
	// Opaque: nothing of the layers below shows in this directory.
	Opaque bool
}

// fileContent is content that places its own data in the file, so that holes stay holes.
// The file is cut or grown to the entry's size afterwards.
type fileContent interface {
	writeTo(f *os.File) error
}

// walkLayer calls fn for every path of the layer directory dir, in the byte order of full paths, the root and
// parents first. Owners come from owners and are Self elsewhere. Aliases of a file have HardLink set.
func walkLayer(dir string, opt Options, owners map[Path][2]int, fn func(item) error) error {
	root, err := openFolder(dir, needRead)
	if err != nil {
		return fmt.Errorf("layer: open %q: %w", dir, err)
	}
	w := layerWalk{prefix: opt.prefix(), owners: owners, links: map[uint64]Path{}, fn: fn}
	err = w.visit(root, ".", ".")
	if err == nil {
		err = w.children(root, ".")
	}
	return errors.Join(err, root.close())
}

type layerWalk struct {
	prefix overlayPrefix
	owners map[Path][2]int
	links  map[uint64]Path
	fn     func(item) error
}

// children visits what is below dir. A directory's subtree is sorted as its name plus a slash, which makes the
// order that of full paths: "a", "a-b", "a/b".
func (w *layerWalk) children(f *folder, dir Path) error {
	names, err := f.names()
	if err != nil {
		return fmt.Errorf("layer: list %q: %w", dir, err)
	}
	return inPathOrder(names, func(name string) (bool, error) {
		st, err := f.stat(name)
		if err != nil {
			return false, fmt.Errorf("layer: stat %q: %w", join(dir, name), err)
		}
		return st.Mode&unix.S_IFMT == unix.S_IFDIR, w.visit(f, join(dir, name), name)
	}, func(name string) error {
		sub, err := f.sub(name, needRead)
		if err != nil {
			return fmt.Errorf("layer: open %q: %w", join(dir, name), err)
		}
		return errors.Join(w.children(sub, join(dir, name)), sub.close())
	})
}

// inPathOrder visits sorted names of one directory; visit says whether the name is a directory to descend into.
func inPathOrder(names []string, visit func(string) (bool, error), descend func(string) error) error {
	var open []string // directories whose subtree is not visited yet, in order
	flush := func(before string) error {
		for len(open) > 0 && (before == "" || open[0]+"/" < before) {
			next := open[0]
			open = open[1:]
			if err := descend(next); err != nil {
				return err
			}
		}
		return nil
	}
	for _, name := range names {
		if err := flush(name); err != nil {
			return err
		}
		isDir, err := visit(name)
		if err != nil {
			return err
		}
		if isDir {
			at, _ := slices.BinarySearchFunc(open, name, func(a, b string) int { return strings.Compare(a+"/", b+"/") })
			open = slices.Insert(open, at, name)
		}
	}
	return flush("")
}

func (w *layerWalk) visit(f *folder, p Path, name string) error {
	it, err := w.read(f, p, name)
	if err != nil {
		return fmt.Errorf("layer: read %q: %w", p, err)
	}
	return w.fn(it)
}

func (w *layerWalk) read(f *folder, p Path, name string) (item, error) {
	st, err := f.stat(name)
	if err != nil {
		return item{}, err
	}
	if isWhiteout(st) {
		return item{Entry: Entry{Path: p}, Whiteout: true}, nil
	}
	it, err := f.item(p, name, st, w.prefix)
	if err != nil {
		return item{}, err
	}
	it.UID, it.GID = Self, Self
	if own, ok := w.owners[p]; ok {
		it.UID, it.GID = own[0], own[1]
	}
	if it.Type != Dir && st.Nlink > 1 {
		if first, seen := w.links[st.Ino]; seen {
			it.HardLink = first
		} else {
			w.links[st.Ino] = p
		}
	}
	return it, nil
}

// item is the overlay form of name in f, with its attributes, without owner and hard link.
func (f *folder) item(p Path, name string, st unix.Stat_t, o overlayPrefix) (item, error) {
	e, err := f.describe(p, name, st)
	if err != nil || !e.Type.hasXattrs() {
		return item{Entry: e}, err
	}
	tree, internal, err := f.xattrs(name, o)
	if err != nil {
		return item{}, err
	}
	e.Xattrs = tree
	return item{Entry: e, Opaque: e.Type == Dir && string(internal["opaque"]) == "y"}, nil
}

// writer builds the overlay form of a layer in an empty directory. Parents come before what is in them.
type writer struct {
	root    *folder
	opt     Options
	prefix  overlayPrefix
	parent  *folder // the directory written to last
	at      Path
	dirs    []Entry
	foreign map[Path][2]int
	links   map[Path][]Path // aliases by the first path of their group
	lost    []Lost
}

func newWriter(dir string, opt Options) (*writer, error) {
	root, err := openFolder(dir, needWrite)
	if err != nil {
		return nil, fmt.Errorf("layer: open %q: %w", dir, err)
	}
	return &writer{root: root, opt: opt, prefix: opt.prefix(), foreign: map[Path][2]int{}, links: map[Path][]Path{}}, nil
}

// put creates e. content is read for a regular file that is not an alias, to its end, and must give e.Size
// bytes; an *os.File is copied with its holes, and a fileContent places itself. A directory gets its
// metadata from finish. The root "." exists already. What this host or user cannot keep is listed in losses.
func (w *writer) put(e Entry, content io.Reader) error {
	if err := w.tryPut(e, content); err != nil {
		return fmt.Errorf("layer: write %q: %w", e.Path, err)
	}
	return nil
}

func (w *writer) tryPut(e Entry, content io.Reader) error {
	if e.Path == "." {
		w.remember(e)
		w.dirs = append(w.dirs, e)
		return nil
	}
	f, name, err := w.in(e.Path)
	if err != nil {
		return err
	}
	if e.HardLink != "" {
		w.remember(e)
		w.links[e.HardLink] = append(w.links[e.HardLink], e.Path)
		return w.link(f, name, e.HardLink)
	}
	file, err := f.create(name, e)
	if errors.Is(err, unix.EPERM) && (e.Type == Char || e.Type == Block) {
		w.lost = append(w.lost, Lost{Path: e.Path, What: lostDevice})
		return nil
	}
	if err != nil {
		return err
	}
	w.remember(e)
	if file != nil {
		if err := errors.Join(fault.Err("layer.write"), fill(file, content, e.Size), file.Close()); err != nil {
			return err
		}
	}
	if e.Type == Dir {
		w.dirs = append(w.dirs, e)
		return nil
	}
	return w.shape(f, name, e)
}

// fill writes exactly size bytes of content.
func fill(file *os.File, content io.Reader, size int64) error {
	switch c := content.(type) {
	case nil:
		return file.Truncate(size)
	case *os.File:
		return copyContent(file, c, size)
	case fileContent:
		if err := c.writeTo(file); err != nil {
			return err
		}
		return file.Truncate(size)
	}
	n, err := io.Copy(file, content)
	if err == nil && n != size {
		err = fmt.Errorf("got %d bytes, want %d", n, size)
	}
	return err
}

func (w *writer) link(f *folder, name string, first Path) error {
	from, fromName, err := openIn(w.root, first, needRead)
	if err != nil {
		return err
	}
	defer from.close()
	return unix.Linkat(from.fd, fromName, f.fd, name, 0)
}

func (w *writer) shape(f *folder, name string, e Entry) error {
	lost, err := f.shape(name, e, w.prefix, w.opt.diskOwner())
	w.lost = append(w.lost, lost...)
	return err
}

func (w *writer) remember(e Entry) {
	if e.UID != Self || e.GID != Self {
		w.foreign[e.Path] = [2]int{e.UID, e.GID}
	}
}

// whiteout marks p as deleted.
func (w *writer) whiteout(p Path) error {
	f, name, err := w.in(p)
	if err == nil {
		err = f.whiteout(name)
	}
	if err != nil {
		return fmt.Errorf("layer: mark %q deleted: %w", p, err)
	}
	return nil
}

// whiteout needs no privilege for 0:0 since Linux 5.8; OpenCache probes it.
func (f *folder) whiteout(name string) error {
	return unix.Mknodat(f.fd, name, unix.S_IFCHR, whiteoutDev)
}

// opaque hides what the layers below have in the directory p, which was put before.
func (w *writer) opaque(p Path) error {
	f, name, err := openIn(w.root, p, needRead)
	if err != nil {
		return fmt.Errorf("layer: mark %q opaque: %w", p, err)
	}
	defer f.close()
	if err := f.opaque(name, w.prefix); err != nil {
		return fmt.Errorf("layer: mark %q opaque: %w", p, err)
	}
	return nil
}

func (f *folder) opaque(name string, o overlayPrefix) error {
	if fault.Off("layer.opaque") {
		return nil
	}
	return unix.Lsetxattr(f.attrPath(name), string(o)+"opaque", []byte("y"), 0)
}

// in gives the open directory that holds p.
func (w *writer) in(p Path) (*folder, string, error) {
	dir, name := split(p)
	if w.parent != nil && w.at == dir {
		return w.parent, name, nil
	}
	if err := w.leave(); err != nil {
		return nil, "", err
	}
	f, name, err := openIn(w.root, p, needWrite)
	if err != nil {
		return nil, "", err
	}
	w.parent, w.at = f, dir
	return f, name, nil
}

func (w *writer) leave() error {
	if w.parent == nil {
		return nil
	}
	f := w.parent
	w.parent = nil
	return f.close()
}

// finish gives directories their metadata, children before parents, and ends the writer.
func (w *writer) finish() error {
	fault.At("layer.filled")
	err := w.leave()
	slices.SortStableFunc(w.dirs, func(a, b Entry) int { return comparePaths(b.Path, a.Path) })
	for _, e := range w.dirs {
		if err != nil {
			break
		}
		err = w.finishDir(e)
	}
	return errors.Join(err, w.root.close())
}

func (w *writer) finishDir(e Entry) error {
	f, name, err := openIn(w.root, e.Path, needRead)
	if err != nil {
		return fmt.Errorf("layer: finish %q: %w", e.Path, err)
	}
	err = w.shape(f, name, e)
	if err := errors.Join(err, f.close()); err != nil {
		return fmt.Errorf("layer: finish %q: %w", e.Path, err)
	}
	return nil
}

// abort ends a writer whose directory is given up.
func (w *writer) abort() error { return errors.Join(w.leave(), w.root.close()) }

// meta is what Staged.Commit has to know about what was put.
func (w *writer) meta() Meta {
	m := Meta{Owners: w.foreign, Lost: w.lost}
	for _, first := range slices.SortedFunc(maps.Keys(w.links), comparePaths) {
		m.Links = append(m.Links, append([]Path{first}, w.links[first]...))
	}
	return m
}

// owners are the owners of the entries put so far that are not Self.
func (w *writer) owners() map[Path][2]int { return w.foreign }

// losses are what could not be written as it was.
func (w *writer) losses() []Lost { return w.lost }

// comparePaths is the byte order of full paths with the root first.
func comparePaths(a, b Path) int {
	switch {
	case a == b:
		return 0
	case a == ".":
		return -1
	case b == ".":
		return 1
	}
	return strings.Compare(string(a), string(b))
}
