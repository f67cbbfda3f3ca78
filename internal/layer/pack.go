package layer

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"github.com/warmfleet/warmfleet/internal/fault"
)

// Packed is the stored form that Pack made of a layer.
type Packed struct {
	// Name is the stored name, "sha256-<hex of the uncompressed tar>.tar.zst".
	Name string
	// DiffID and Digest are "sha256:<hex>" of the tar and of its compressed form.
	DiffID, Digest string
	// TarSize and Size are their bytes.
	TarSize, Size int64
}

// Pack writes the stored form of a layer to w and records its name in the cache. The same tree gives the same
// bytes on every worker that runs the same build, and the same name with any.
// What was written is decoded again while it is being written; on any error w holds nothing of use. Of a large file that was
// changed in place it stores what differs from below, the layers that l lies on; unpacking needs the same
// layers then, or others that show the same. Without below it stores files whole. A layer that already has a name and no longer packs to it is
// ErrCorrupt, one that no worker would unpack is ErrLimit.
func (c *Cache) Pack(ctx context.Context, below Chain, l Layer, w io.Writer) (Packed, error) {
	p, err := c.pack(ctx, NewTree(below), l, w)
	if err != nil {
		return Packed{}, fmt.Errorf("layer: pack %q: %w", l.ID, err)
	}
	return p, nil
}

func (c *Cache) pack(ctx context.Context, below *Tree, l Layer, w io.Writer) (Packed, error) {
	m, err := readMeta(filepath.Join(c.dir, l.ID))
	if err != nil {
		return Packed{}, err
	}
	sums, err := compress(ctx, w, encode, func(ctx context.Context, w io.Writer) error {
		return writeTar(ctx, packing{t: &tarWriter{w: w}, below: below, opt: c.opt}, m)
	})
	if err != nil {
		return Packed{}, err
	}
	fault.At("layer.packed")
	p := Packed{
		Name:   namePrefix + sums.tar + nameSuffix,
		DiffID: digestPrefix + sums.tar, Digest: digestPrefix + sums.packed,
		TarSize: sums.tarSize, Size: sums.packedSize,
	}
	if m.Name != "" && m.Name != p.Name {
		return Packed{}, corrupt("its name is %s, its content is that of %s", m.Name, p.Name)
	}
	l = m.Layer
	l.Name, l.Digest, l.TarSize, l.Size = p.Name, p.Digest, p.TarSize, p.Size
	return p, c.setName(l)
}

// encoder compresses all of r to w.
type encoder func(w io.Writer, r io.Reader) error

// compress writes the zstd form of what write produces to w, and reads it back at the same time. The three
// parts run side by side: making and digesting the tar, compressing, decoding.
func compress(ctx context.Context, w io.Writer, enc encoder, write func(context.Context, io.Writer) error) (tarSums, error) {
	plain, packed := newConveyor(), newConveyor()
	g, ctx := errgroup.WithContext(ctx)
	// What comes back is compared by a quick digest: it guards against a fault of the encoder, not against anybody.
	before, after := &maphash.Hash{}, &maphash.Hash{}
	after.SetSeed(before.Seed())
	sums := newTally()
	var read tarSums
	g.Go(func() error { return plain.finish(write(ctx, io.MultiWriter(&sums, before, plain))) })
	g.Go(func() error {
		err := enc(io.MultiWriter(w, packed), plain)
		plain.abandon(err)
		return packed.finish(err)
	})
	g.Go(func() error {
		var err error
		read, err = readTar(ctx, tarInput{R: packed, Plain: after}, func(*tarEntry, io.Reader) error { return nil })
		packed.abandon(err)
		return err
	})
	if err := g.Wait(); err != nil {
		return tarSums{}, err
	}
	if (before.Sum64() != after.Sum64() || read.tarSize != sums.n) && !fault.Off("layer.decode-compare") {
		return tarSums{}, corrupt("compressing gave other bytes: %d of them, want the %d of digest %s", read.tarSize, sums.n, sums.sum())
	}
	read.tar = sums.sum()
	return read, nil
}

// encode is the encoder of every layer. Fastest because upload waits for it; one block at a time because the output then does
// not depend on the number of processors.
func encode(w io.Writer, r io.Reader) error {
	enc, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	if _, err := io.CopyBuffer(writerOnly{enc}, r, make([]byte, ioBuffer)); err != nil {
		return err
	}
	return enc.Close()
}

// writerOnly hides ReadFrom, by which an encoder would read in small pieces.
type writerOnly struct{ io.Writer }

// writeTar writes the tar form of a layer.
func writeTar(ctx context.Context, p packing, m layerMeta) error {
	root, err := openFolder(m.Dir, needRead)
	if err != nil {
		return err
	}
	p.root, p.buf = root, make([]byte, ioBuffer)
	err = walkLayer(m.Dir, p.opt, m.owners(), func(it item) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		opaque := it.Opaque
		it.Opaque = false
		if opaque && !p.hidden(it.Path) {
			p.opaque = it.Path
		}
		if err := p.item(&tarEntry{item: it}); err != nil {
			return fmt.Errorf("%q: %w", it.Path, err)
		}
		if opaque {
			return p.t.item(&tarEntry{item: item{Entry: Entry{Path: it.Path}, Opaque: true}})
		}
		return nil
	})
	if err := errors.Join(err, p.leave(), root.close()); err != nil {
		return err
	}
	return p.t.close()
}

// packing writes the entries of a layer directory.
type packing struct {
	t     *tarWriter
	below *Tree
	opt   Options
	root  *folder
	// parent is the directory at, which the last file was read from.
	parent *folder
	at     Path
	buf    []byte
	// opaque is the opaque directory that the walk is in or was in last, "" if there was none.
	opaque Path
}

// hidden tells whether nothing of the layers below shows at p.
func (p *packing) hidden(path Path) bool {
	return p.opaque == "." || p.opaque != "" && strings.HasPrefix(string(path), string(p.opaque)+"/")
}

// item writes one entry and, of a file, the parts that are not holes.
func (p *packing) item(e *tarEntry) error {
	if e.Whiteout || e.Type != File || e.HardLink != "" || e.Size == 0 {
		return p.t.item(e)
	}
	f, err := p.open(e.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := p.parts(e, f); err != nil {
		return err
	}
	if err := p.t.item(e); err != nil {
		return err
	}
	for _, s := range e.segs {
		if err := copyExactly(p.t, io.NewSectionReader(f, s.off, s.len), s.len, p.buf); err != nil {
			return err
		}
	}
	return nil
}

// parts decides which parts of a file are stored.
func (p *packing) parts(e *tarEntry, f *os.File) (err error) {
	if e.Size >= patchMin && !p.hidden(e.Path) {
		old, err := fileBelow(p.below, e.Path)
		if err != nil {
			return err
		}
		if old != nil {
			defer old.Close()
			found, err := patchOf(f, e.Size, old)
			if err != nil {
				return err
			}
			if found != nil {
				e.segs, e.below = found.segs, found.below
				return nil
			}
		}
	}
	e.segs, err = segmentsOf(f, e.Size)
	return err
}

// open opens a file for reading, and keeps its directory for the next one.
func (p *packing) open(path Path) (*os.File, error) {
	dir, name := split(path)
	if p.parent == nil || p.at != dir {
		if err := p.leave(); err != nil {
			return nil, err
		}
		f, _, err := openIn(p.root, path, needRead)
		if err != nil {
			return nil, err
		}
		p.parent, p.at = f, dir
	}
	return p.parent.open(name)
}

func (p *packing) leave() error {
	if p.parent == nil {
		return nil
	}
	f := p.parent
	p.parent = nil
	return f.close()
}
