package layer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/fault"
)

// normalise makes the unmounted upper directory of an overlay on chain a closed layer: directories that were
// renamed (redirects) are filled up and made opaque, every name of a file that was written through one of them
// is present, and what equals the layers below is gone. It tells whether anything is left that differs.
func (c *Cache) normalise(ctx context.Context, upper, work string, chain Chain) (Meta, bool, error) {
	root, err := openFolder(upper, needWrite)
	if err != nil {
		return Meta{}, false, err
	}
	n := &normaliser{c: c, ctx: ctx, root: root, tree: NewTree(chain), owners: map[Path][2]int{}, placed: map[inode]Path{}}
	err = n.run(work)
	if err := errors.Join(err, root.close()); err != nil {
		return Meta{}, false, err
	}
	return Meta{Owners: n.owners, Lost: n.lost, Links: n.links.groups()}, n.changed, nil
}

type normaliser struct {
	c       *Cache
	ctx     context.Context
	root    *folder
	tree    *Tree // the chain below
	moves   []move
	owners  map[Path][2]int
	lost    []Lost
	links   linkFinder
	placed  map[inode]Path // lower files that were copied into a moved directory, and where to
	groups  []aliasGroup   // lower hard-link groups whose other names are still to be linked
	linked  bool           // some file has several names
	changed bool
}

func (n *normaliser) run(work string) error {
	if err := n.findMoves(n.root, ".", "."); err != nil {
		return err
	}
	if err := n.linkIndexed(work); err != nil {
		return fmt.Errorf("complete hard links: %w", err)
	}
	err := n.tree.in(".", func(low *merged) error {
		if _, err := n.dir(n.root, ".", low, false); err != nil {
			return err
		}
		return n.judgeRoot(low)
	})
	if err != nil {
		return err
	}
	n.moves = nil // they are filled up now
	for _, g := range n.groups {
		if err := n.linkGroup(g); err != nil {
			return fmt.Errorf("complete hard links: %w", err)
		}
	}
	n.links = linkFinder{}
	if n.linked {
		return n.findLinks(n.root, ".")
	}
	return nil
}

// judgeRoot compares the root's own metadata with that below.
func (n *normaliser) judgeRoot(low *merged) error {
	it, err := n.read(n.root, ".", ".")
	if err != nil {
		return err
	}
	below, err := low.entry(".")
	if err != nil {
		return err
	}
	n.inherit(&it.Entry, below)
	n.changed = n.changed || !sameEntry(it.Entry, below.Entry)
	return nil
}

// dir normalises what f, the upper directory at path, holds. low is what the chain has for it, nil if nothing
// shows through; full says that nothing may be left to low, because the directory was moved. It returns how many
// entries remain. The directory keeps its times.
func (n *normaliser) dir(f *folder, path Path, low *merged, full bool) (int, error) {
	if err := n.ctx.Err(); err != nil {
		return 0, err
	}
	before, err := f.stat(".")
	if err != nil {
		return 0, err
	}
	names, err := f.names()
	if err != nil {
		return 0, err
	}
	left := 0
	for _, name := range names {
		stays, err := n.entry(f, join(path, name), name, low, full)
		if err != nil {
			return 0, fmt.Errorf("%q: %w", join(path, name), err)
		}
		if stays {
			left++
		}
	}
	if full && low != nil {
		more, err := n.fill(f, path, low, names)
		if err != nil {
			return 0, err
		}
		left += more
	}
	after, err := f.stat(".")
	if err == nil && after.Mtim != before.Mtim {
		err = f.setMTime(".", mtimeOf(before))
	}
	return left, err
}

// entry normalises one name and tells whether it remains.
func (n *normaliser) entry(f *folder, path Path, name string, low *merged, full bool) (bool, error) {
	st, err := f.stat(name)
	if err != nil {
		return false, err
	}
	below, err := lookBelow(low, name)
	if err != nil {
		return false, err
	}
	switch {
	case path == JournalDir:
		return false, f.remove(name)
	case isSocket(st):
		n.lost = append(n.lost, Lost{path, lostSocket})
		if err := f.remove(name); err != nil || below == nil || full {
			return false, err
		}
		n.changed = true
		return true, f.whiteout(name)
	case isWhiteout(st):
		if below == nil || full {
			return false, f.remove(name)
		}
		n.changed = true
		return true, nil
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return n.subdir(f, path, name, low, full)
	}
	it, err := n.read(f, path, name)
	if err != nil {
		return false, err
	}
	n.inherit(&it.Entry, below)
	if !full && st.Nlink == 1 {
		same, err := n.unchanged(f, name, it.Entry, below)
		if err != nil {
			return false, err
		}
		if same {
			return false, f.remove(name)
		}
	}
	n.keep(it.Entry)
	n.linked = n.linked || st.Nlink > 1
	return true, nil
}

func (n *normaliser) keep(e Entry) {
	n.changed = true
	n.own(e)
}

func (n *normaliser) own(e Entry) {
	if e.UID != Self || e.GID != Self {
		n.owners[e.Path] = [2]int{e.UID, e.GID}
	}
}

// inherit gives an entry the owner that the chain has for it: on disk all files have one owner, and what a sandbox
// rewrites stays whose it was.
func (n *normaliser) inherit(e *Entry, below *located) {
	e.UID, e.GID = Self, Self
	if below != nil && below.Type == e.Type {
		e.UID, e.GID = below.UID, below.GID
	}
}

// unchanged tells whether a file was copied up and then left as it was.
func (n *normaliser) unchanged(f *folder, name string, e Entry, below *located) (bool, error) {
	if below == nil || !sameEntry(e, below.Entry) || n.inGroup(below) {
		return false, nil
	}
	if e.Type != File {
		return true, nil
	}
	now, err := f.open(name)
	if err != nil {
		return false, err
	}
	defer now.Close()
	_, last := split(below.Path)
	then, err := below.part.f.open(last)
	if err != nil {
		return false, err
	}
	defer then.Close()
	return sameContent(now, then)
}

func (n *normaliser) inGroup(below *located) bool { return len(below.part.links[below.Path]) > 0 }

// lookBelow gives what the chain has, nil for nothing.
func lookBelow(low *merged, name string) (*located, error) {
	if low == nil {
		return nil, nil
	}
	e, err := low.entry(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return e, err
}

// knownInternal are the attributes of overlayfs that a closed upper directory may carry (fs/overlayfs/overlayfs.h).
// opaque and redirect change what it shows, and are dealt with; the others only serve the mount they were made by.
var knownInternal = []string{"opaque", "redirect", "origin", "impure", "nlink", "upper", "uuid", "protattr"}

// read is the overlay form of name, after a check that it holds nothing unknown.
func (n *normaliser) read(f *folder, path Path, name string) (item, error) {
	st, err := f.stat(name)
	if err != nil {
		return item{}, err
	}
	it, err := f.item(path, name, st, n.c.opt.prefix())
	if err != nil || !it.Type.hasXattrs() {
		return it, err
	}
	_, internal, err := f.xattrs(name, n.c.opt.prefix())
	for a := range internal {
		if !slices.Contains(knownInternal, a) {
			return item{}, fmt.Errorf("overlay attribute %q is not known", a)
		}
	}
	return it, err
}

// subdir normalises a directory of the upper layer.
func (n *normaliser) subdir(f *folder, path Path, name string, low *merged, full bool) (bool, error) {
	it, err := n.read(f, path, name)
	if err != nil {
		return false, err
	}
	through, moved, err := n.below(f, name, low, it.Opaque)
	if err != nil {
		return false, err
	}
	var source *located
	if through != nil {
		defer through.close()
		if source, err = through.entry("."); err != nil {
			return false, err
		}
	}
	sub, err := f.sub(name, needWrite)
	if err != nil {
		return false, err
	}
	left, err := n.dir(sub, path, through, full || moved)
	if err := errors.Join(err, sub.close()); err != nil {
		return false, err
	}
	n.inherit(&it.Entry, source)
	if full || moved || through == nil {
		n.keep(it.Entry)
		return true, n.seal(f, name, moved)
	}
	if left == 0 && sameEntry(it.Entry, source.Entry) {
		return false, f.remove(name)
	}
	if !sameEntry(it.Entry, source.Entry) {
		n.changed = true
	}
	n.own(it.Entry)
	return true, nil
}

// below opens what the chain shows through the upper directory name: what its redirect names, or what has its name.
func (n *normaliser) below(f *folder, name string, low *merged, opaque bool) (*merged, bool, error) {
	target, err := n.redirect(f, name)
	if err != nil || opaque && target == "" {
		return nil, false, err
	}
	var d *merged
	switch {
	case strings.HasPrefix(target, "/"):
		d, err = n.tree.openDir(Path(target[1:]))
	case low == nil:
		return nil, target != "", nil
	case target != "":
		d, err = low.sub(target)
	default:
		d, err = low.sub(name)
	}
	if errors.Is(err, fs.ErrNotExist) && target == "" {
		err = nil
	}
	return d, target != "", err
}

// redirect is where a renamed directory was: a name in the same directory, or a path from the root.
func (n *normaliser) redirect(f *folder, name string) (string, error) {
	_, internal, err := f.xattrs(name, n.c.opt.prefix())
	if fault.Off("layer.redirect") {
		return "", err
	}
	return string(internal["redirect"]), err
}

// seal makes a directory depend on nothing below.
func (n *normaliser) seal(f *folder, name string, moved bool) error {
	if !moved {
		return nil
	}
	if err := f.opaque(name, n.c.opt.prefix()); err != nil {
		return fmt.Errorf("make opaque: %w", err)
	}
	err := unix.Lremovexattr(f.attrPath(name), string(n.c.opt.prefix())+"redirect")
	if errors.Is(err, unix.ENODATA) {
		return nil
	}
	return err
}
