package layer

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
)

// A large file that was changed in place is stored as a patch: the parts that differ from the file of the same
// path in the layers below, and that file's digest. Database files, logs and disk images cost what changed.
const (
	// patchMin is the size in bytes from which a patch is tried: below it, reading the old file saves little.
	patchMin = 1 << 20
	// patchBlock is the unit of comparison in bytes, that of a page and of most file systems.
	patchBlock = 4 << 10
	// patchShare: a patch is stored if it has at most one in patchShare of the file's bytes.
	patchShare = 2
)

// patch is a file as a change of another one.
type patch struct {
	// below is the sha256 of the other one in hex.
	below string
	segs  []segment
}

// patchOf compares the file f of that size with old. It returns nil where storing all of f is better, and where
// a hole was made, which a patch cannot say.
func patchOf(f *os.File, size int64, old *os.File) (*patch, error) {
	info, err := old.Stat()
	if err != nil {
		return nil, err
	}
	data, err := dataOf(f, size)
	if err != nil {
		return nil, err
	}
	oldData, err := dataOf(old, info.Size())
	if err != nil {
		return nil, err
	}
	holes := gaps(data, size)
	mostlyHoles := length(oldData) < info.Size()/patchShare // digesting it would cost more than it has bytes
	if mostlyHoles || len(data)+len(oldData) > maxSegments || len(overlap(holes, oldData)) > 0 {
		return nil, nil
	}
	differ, digest, err := compareBlocks(f, size, old)
	if err != nil {
		return nil, err
	}
	// Data where the old file has a hole, or ended, is stored even if it is zeros.
	fresh := gaps(oldData, max(size, info.Size()))
	segs := overlap(union(differ, fresh), data)
	for gap := int64(1); len(segs) > maxSegments; gap *= 2 {
		segs = joinSegments(segs, gap)
	}
	if length(segs) > length(data)/patchShare {
		return nil, nil
	}
	return &patch{below: digest, segs: segs}, nil
}

// compareBlocks finds the blocks of f that differ from those of old, as far as old reaches, and digests old.
func compareBlocks(f *os.File, size int64, old *os.File) ([]segment, string, error) {
	var differ []segment
	sum := sha256.New()
	a, b := make([]byte, ioBuffer), make([]byte, ioBuffer)
	for at := int64(0); ; at += ioBuffer {
		n, err := old.ReadAt(a, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, "", err
		}
		sum.Write(a[:n])
		if both := min(int64(n), size-at); both > 0 {
			if _, err := f.ReadAt(b[:both], at); err != nil && !errors.Is(err, io.EOF) {
				return nil, "", err
			}
			differ = appendDiffering(differ, a[:both], b[:both], at)
		}
		if n < len(a) {
			return differ, hex.EncodeToString(sum.Sum(nil)), nil
		}
	}
}

// appendDiffering adds the blocks at off in which a and b, of one length, differ.
func appendDiffering(segs []segment, a, b []byte, off int64) []segment {
	for i := 0; i < len(a); i += patchBlock {
		end := min(i+patchBlock, len(a))
		if bytes.Equal(a[i:end], b[i:end]) {
			continue
		}
		start, n := off+int64(i), int64(end-i)
		if last := len(segs) - 1; last >= 0 && segs[last].off+segs[last].len == start {
			segs[last].len += n
			continue
		}
		segs = append(segs, segment{start, n})
	}
	return segs
}

// patchedContent is a patch and the file it is made on; as a fileContent it gives the result.
type patchedContent struct {
	segmentContent
	old   *os.File
	below string
	size  int64 // of the result
}

func (c patchedContent) writeTo(f *os.File) error {
	info, err := c.old.Stat()
	if err != nil {
		return err
	}
	sum := sha256.New()
	if _, err := io.CopyBuffer(sum, io.NewSectionReader(c.old, 0, info.Size()), c.buf); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != c.below {
		return corrupt("it changes a file of digest %s, the layers below have %s", c.below, got)
	}
	if err := copyContent(f, c.old, min(info.Size(), c.size)); err != nil {
		return err
	}
	return c.segmentContent.writeTo(f)
}

// fileBelow opens the regular file p of a tree; nil if p is none.
func fileBelow(t *Tree, p Path) (*os.File, error) {
	e, err := t.Lookup(p)
	if errors.Is(err, fs.ErrNotExist) || err == nil && e.Type != File {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return t.openFile(p)
}

// length is the number of bytes in segments.
func length(segs []segment) int64 {
	var n int64
	for _, s := range segs {
		n += s.len
	}
	return n
}

// gaps are what lies between segments, up to size.
func gaps(segs []segment, size int64) []segment {
	var out []segment
	var at int64
	for _, s := range append(slices.Clone(segs), segment{size, 0}) {
		if s.off > at {
			out = append(out, segment{at, s.off - at})
		}
		at = max(at, s.off+s.len)
	}
	return out
}

// overlap is what is in both a and b, each in ascending order.
func overlap(a, b []segment) []segment {
	var out []segment
	for len(a) > 0 && len(b) > 0 {
		start, endA, endB := max(a[0].off, b[0].off), a[0].off+a[0].len, b[0].off+b[0].len
		if end := min(endA, endB); end > start {
			out = append(out, segment{start, end - start})
		}
		if endA < endB {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return out
}

// union is what is in a or b, each in ascending order.
func union(a, b []segment) []segment {
	all := append(slices.Clone(a), b...)
	slices.SortFunc(all, func(x, y segment) int { return int(min(max(x.off-y.off, -1), 1)) })
	var out []segment
	for _, s := range all {
		if last := len(out) - 1; last >= 0 && s.off <= out[last].off+out[last].len {
			out[last].len = max(out[last].len, s.off+s.len-out[last].off)
			continue
		}
		out = append(out, s)
	}
	return out
}
