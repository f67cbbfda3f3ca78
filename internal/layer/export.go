package layer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// Source is a packed layer that can be opened for reading.
type Source struct {
	// Name is the stored name; the content must have its digest.
	Name string
	// Open is called once.
	Open func() (io.ReadCloser, error)
}

// ExportOptions say how an export is made.
type ExportOptions struct {
	// UID and GID own the files whose owner is Self.
	UID, GID int
	// TempDir holds the decoded content of all layers while the export lasts, in one nameless file. "" is os.TempDir().
	TempDir string
	Limits  Limits
}

// Export is ExportWith for the user of this process.
func Export(ctx context.Context, tars []Source, w io.Writer) error {
	return ExportWith(ctx, tars, w, ExportOptions{UID: os.Getuid(), GID: os.Getgid()})
}

// ExportWith writes the tree that a chain of packed layers, bottom first, makes up: a PAX tar with real names, no
// whiteouts, GNU sparse 1.0, SCHILY.xattr.* and nanosecond times, the root "./" first,
// names in byte order and each directory followed by what is in it: GNU tar gives a directory its mode and time as
// soon as another comes. `tar --xattrs -xpS` restores it; capabilities and ACLs, which are attributes outside of
// user.*, need --xattrs-include='*' as well. Names that are one file in a layer stay one file, as far
// as no layer above replaced them. It needs no cache and no privilege. Nothing is written to w before every
// layer was read and verified; ErrCorrupt or ErrLimit say what is wrong with one.
func ExportWith(ctx context.Context, tars []Source, w io.Writer, opt ExportOptions) error {
	spool, err := os.CreateTemp(opt.TempDir, "warmfleet-export-")
	if err != nil {
		return fmt.Errorf("layer: export: %w", err)
	}
	defer spool.Close()
	if err := os.Remove(spool.Name()); err != nil {
		return fmt.Errorf("layer: export: %w", err)
	}
	x := &export{opt: opt, spool: spool, root: &exportNode{}, buf: make([]byte, ioBuffer)}
	for _, s := range tars {
		if err := x.add(ctx, s); err != nil {
			return fmt.Errorf("layer: export %q: %w", s.Name, err)
		}
	}
	if err := x.write(ctx, w); err != nil {
		return fmt.Errorf("layer: export: %w", err)
	}
	return nil
}

// export is the merged tree of the layers read so far.
type export struct {
	opt   ExportOptions
	spool *os.File
	end   int64 // of the spool
	root  *exportNode
	buf   []byte
}

// exportNode is one path. Names of one file have the same body.
type exportNode struct {
	body *exportBody
	kids map[string]*exportNode
}

// exportBody is an entry and where its stored data lies in the spool.
type exportBody struct {
	tarEntry
	at      []int64 // of each segment
	written Path    // the name under which it is in the export, "" until then
}

func (x *export) add(ctx context.Context, s Source) error {
	r, err := s.Open()
	if err != nil {
		return err
	}
	_, err = readTar(ctx, tarInput{Name: s.Name, R: r, Limits: x.opt.Limits}, x.entry)
	return errors.Join(err, r.Close())
}

// entry merges an entry of the next layer. Its parents are directories of the same layer, so they are there.
func (x *export) entry(e *tarEntry, data io.Reader) error {
	if e.Opaque {
		x.find(e.Path).kids = nil
		return nil
	}
	dir, name := split(e.Path)
	parent := x.find(dir)
	if e.Whiteout {
		delete(parent.kids, name)
		return nil
	}
	if e.HardLink != "" {
		parent.set(name, &exportNode{body: x.find(e.HardLink).body})
		return nil
	}
	body := &exportBody{tarEntry: *e}
	if e.Path == "." {
		x.root.body = body
		return nil
	}
	if old := parent.kids[name]; e.Type == Dir && old != nil && old.body.Type == Dir {
		old.body = body
		return nil
	}
	old := parent.kids[name]
	parent.set(name, &exportNode{body: body})
	for _, s := range e.segs {
		body.at = append(body.at, x.end)
		if err := copyExactly(writerOnly{x.spool}, data, s.len, x.buf); err != nil {
			return err
		}
		x.end += s.len
	}
	if e.below == "" {
		return nil
	}
	return x.merge(body, old)
}

// merge makes a patch the file that it stands for.
func (x *export) merge(b *exportBody, old *exportNode) error {
	if old == nil || old.body.Type != File {
		return corrupt("it changes a file that the layers below do not have: %.80q", string(b.Path))
	}
	sum := sha256.New()
	if err := x.content(old.body, sum); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != b.below {
		return corrupt("it changes a file of digest %s, the layers below have %s: %.80q", b.below, got, string(b.Path))
	}
	segs, at := b.segs, b.at
	b.segs, b.at, b.below = nil, nil, ""
	kept := overlap(gaps(segs, b.Size), old.body.segs)
	for len(segs) > 0 || len(kept) > 0 {
		if len(kept) == 0 || len(segs) > 0 && segs[0].off < kept[0].off {
			b.segs, b.at = append(b.segs, segs[0]), append(b.at, at[0])
			segs, at = segs[1:], at[1:]
			continue
		}
		b.segs, b.at = append(b.segs, kept[0]), append(b.at, old.body.where(kept[0].off))
		kept = kept[1:]
	}
	return nil
}

// where gives the place in the spool of a byte that is in a segment.
func (b *exportBody) where(off int64) int64 {
	i, _ := slices.BinarySearchFunc(b.segs, off, func(s segment, off int64) int { return cmp.Compare(s.off+s.len-1, off) })
	return b.at[i] + off - b.segs[i].off
}

// content writes the whole content of a file, its holes as zeros.
func (x *export) content(b *exportBody, w io.Writer) error {
	var at int64
	for i, s := range append(slices.Clone(b.segs), segment{b.Size, 0}) {
		if err := copyExactly(w, zeroReader{}, s.off-at, x.buf); err != nil {
			return err
		}
		at = s.off + s.len
		if s.len == 0 {
			continue
		}
		if err := copyExactly(w, io.NewSectionReader(x.spool, b.at[i], s.len), s.len, x.buf); err != nil {
			return err
		}
	}
	return nil
}

// zeroReader is endless zeros.
type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func (n *exportNode) set(name string, kid *exportNode) {
	if n.kids == nil {
		n.kids = map[string]*exportNode{}
	}
	n.kids[name] = kid
}

// find gives the node of a path that exists.
func (x *export) find(p Path) *exportNode {
	n := x.root
	if p == "." {
		return n
	}
	for c := range strings.SplitSeq(string(p), "/") {
		n = n.kids[c]
	}
	return n
}

func (x *export) write(ctx context.Context, w io.Writer) error {
	t := &tarWriter{w: w}
	if x.root.body != nil {
		if err := x.writeNode(ctx, t, ".", x.root.body); err != nil {
			return err
		}
	}
	if err := x.writeKids(ctx, t, ".", x.root); err != nil {
		return err
	}
	return t.close()
}

func (x *export) writeKids(ctx context.Context, t *tarWriter, dir Path, n *exportNode) error {
	for _, name := range slices.Sorted(maps.Keys(n.kids)) {
		kid, p := n.kids[name], join(dir, name)
		if err := x.writeNode(ctx, t, p, kid.body); err != nil {
			return err
		}
		if err := x.writeKids(ctx, t, p, kid); err != nil {
			return err
		}
	}
	return nil
}

func (x *export) writeNode(ctx context.Context, t *tarWriter, p Path, b *exportBody) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	e := b.tarEntry
	e.Path, e.HardLink = p, b.written
	if e.UID == Self {
		e.UID = x.opt.UID
	}
	if e.GID == Self {
		e.GID = x.opt.GID
	}
	if err := t.real(&e); err != nil {
		return err
	}
	if b.written != "" {
		return nil
	}
	b.written = p
	for i, s := range b.segs {
		if err := copyExactly(t, io.NewSectionReader(x.spool, b.at[i], s.len), s.len, x.buf); err != nil {
			return err
		}
	}
	return nil
}
