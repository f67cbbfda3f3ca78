package layer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/warmfleet/warmfleet/internal/fault"
)

// Unpack makes a layer of the cache from its stored form, within the default Limits. A layer of that name that the cache has already
// is returned and r is not read. The layer appears only when all of r was read and its tar has the digest in
// its name; until then everything lies in the staging area. What this host or user cannot keep is in
// Lost of the layer. Below are the layers that it was packed on, in this or another cache; without them one that holds a
// patch is ErrCorrupt. It returns ErrCorrupt or ErrLimit for what is wrong with the content, and errors of r as they are.
func (c *Cache) Unpack(ctx context.Context, below Chain, name string, r io.Reader) (Layer, error) {
	return c.unpackNew(ctx, below, tarInput{Name: name, R: r})
}

// unpackNew unpacks what the cache does not have yet.
func (c *Cache) unpackNew(ctx context.Context, below Chain, in tarInput) (Layer, error) {
	if l, ok := c.Find(in.Name); ok {
		return l, nil
	}
	l, err := c.unpack(ctx, in, NewTree(below))
	if err != nil {
		return Layer{}, fmt.Errorf("layer: unpack %q: %w", in.Name, err)
	}
	return l, nil
}

func (c *Cache) unpack(ctx context.Context, in tarInput, below *Tree) (Layer, error) {
	if _, err := digestOfName(in.Name); err != nil {
		return Layer{}, err
	}
	s, err := c.Stage()
	if err != nil {
		return Layer{}, err
	}
	w, err := newWriter(s.Dir(), c.opt)
	if err != nil {
		return Layer{}, errors.Join(err, s.Discard())
	}
	u := unpacking{w: w, below: below, buf: make([]byte, ioBuffer), links: map[Path][]Path{}, missing: map[Path]bool{}}
	sums, err := readTar(ctx, in, u.entry)
	if err := errors.Join(err, w.finish()); err != nil {
		return Layer{}, errors.Join(err, s.Discard())
	}
	fault.At("layer.unpacked")
	l := Layer{
		Name: in.Name, TarSize: sums.tarSize, Size: sums.packedSize, Digest: digestPrefix + sums.packed,
		Lost: u.losses(),
	}
	return s.commit(l, Meta{Owners: w.owners(), Links: u.groups(), Lost: l.Lost}, untilReboot)
}

// unpacking puts the entries of an archive into a layer being built.
type unpacking struct {
	w     *writer
	below *Tree
	buf   []byte
	links map[Path][]Path // first path of a hard-link group to all of it
	// missing are devices that could not be made here, whose aliases cannot be made either.
	missing map[Path]bool
	lost    []Lost
}

func (u *unpacking) entry(e *tarEntry, data io.Reader) error {
	switch {
	case e.Opaque:
		return u.w.opaque(e.Path)
	case e.Whiteout && fault.Off("layer.unpack-whiteout"):
		return nil
	case e.Whiteout:
		return u.w.whiteout(e.Path)
	case u.missing[e.HardLink]:
		u.lost = append(u.lost, Lost{Path: e.Path, What: lostDevice})
		return nil
	case e.HardLink != "" && u.links[e.HardLink] == nil:
		u.links[e.HardLink] = []Path{e.HardLink, e.Path}
	case e.HardLink != "":
		u.links[e.HardLink] = append(u.links[e.HardLink], e.Path)
	}
	before := len(u.w.losses())
	if err := u.put(e, segmentContent{data, e.segs, u.buf}); err != nil {
		return err
	}
	if (e.Type == Char || e.Type == Block) && len(u.w.losses()) > before {
		u.missing[e.Path] = true
	}
	return nil
}

// put writes an entry; of a patch, the file that it makes.
func (u *unpacking) put(e *tarEntry, content segmentContent) error {
	if e.below == "" {
		return u.w.put(e.Entry, content)
	}
	old, err := fileBelow(u.below, e.Path)
	if err != nil {
		return err
	}
	if old == nil {
		return corrupt("it changes a file that the layers below do not have: %.80q", string(e.Path))
	}
	defer old.Close()
	return u.w.put(e.Entry, patchedContent{content, old, e.below, e.Size})
}

// groups are the hard-link groups in the order of their first paths.
func (u *unpacking) groups() [][]Path {
	var all [][]Path
	for _, first := range slices.SortedFunc(maps.Keys(u.links), comparePaths) {
		all = append(all, u.links[first])
	}
	return all
}

// losses are what was not kept, in path order. Owners are remembered, but only root can ever give a file to them.
func (u *unpacking) losses() []Lost {
	lost := append(u.lost, u.w.losses()...)
	if os.Geteuid() != 0 {
		for p, o := range u.w.owners() {
			lost = append(lost, Lost{Path: p, What: fmt.Sprintf("owner %d:%d", o[0], o[1])})
		}
	}
	sortLost(lost)
	return lost
}

// sortLost puts losses in path order.
func sortLost(lost []Lost) {
	slices.SortStableFunc(lost, func(a, b Lost) int { return comparePaths(a.Path, b.Path) })
}
