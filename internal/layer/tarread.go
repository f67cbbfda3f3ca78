package layer

import (
	"errors"
	"fmt"
	"io"

	"github.com/warmfleet/warmfleet/internal/fault"
)

// tarReader reads the stored form, and only that: whatever tarWriter.item would not have
// written is ErrCorrupt. Memory is one path and its type for each entry.
type tarReader struct {
	r      io.Reader
	limits Limits
	// left and pad are what is still to be read of the entry's data and behind it.
	left, pad int64
	entries   int64
	names     int64
	last      Path
	lastDir   bool
	seen      map[Path]tarSeen
}

// tarSeen is what later entries need to know of an earlier one.
type tarSeen struct {
	kind Type
	size int64
}

func newTarReader(r io.Reader, limits Limits) *tarReader {
	return &tarReader{r: r, limits: limits, seen: map[Path]tarSeen{".": {kind: Dir}}}
}

// corrupt is an error about the archive; other errors are about reading it.
func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

// next skips what is left of an entry and returns the one after it; io.EOF is the proper end of the archive.
func (t *tarReader) next() (*tarEntry, error) {
	if err := t.skip(t.left + t.pad); err != nil {
		return nil, err
	}
	t.left, t.pad = 0, 0
	h, err := t.header()
	if err != nil {
		return nil, err
	}
	if t.entries++; t.entries > t.limits.Entries {
		return nil, fmt.Errorf("%w: more than %d entries", ErrLimit, t.limits.Entries)
	}
	e, err := t.decode(h)
	if err != nil {
		return nil, err
	}
	if err := t.place(e); err != nil {
		return nil, err
	}
	return e, nil
}

// Read reads the stored data of the current entry.
func (t *tarReader) Read(p []byte) (int, error) {
	if t.left == 0 {
		return 0, io.EOF
	}
	n, err := t.r.Read(p[:min(int64(len(p)), t.left)])
	t.left -= int64(n)
	if errors.Is(err, io.EOF) && t.left > 0 {
		err = corrupt("truncated")
	}
	return n, err
}

func (t *tarReader) skip(n int64) error {
	got, err := io.CopyN(io.Discard, t.r, n)
	if errors.Is(err, io.EOF) && got < n {
		return corrupt("truncated")
	}
	return err
}

func (t *tarReader) full(b []byte) error {
	_, err := io.ReadFull(t.r, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return corrupt("truncated")
	}
	return err
}

// header reads one header with its records, or the end of the archive.
func (t *tarReader) header() (*rawHeader, error) {
	var b [blockSize]byte
	if err := t.full(b[:]); err != nil {
		return nil, err
	}
	if b == zeros {
		return nil, t.end()
	}
	h, err := parseBlock(&b)
	if err != nil || h.flag != flagPAX {
		return h, err
	}
	if h.size > t.limits.Header {
		return nil, fmt.Errorf("%w: a header of %d bytes", ErrLimit, h.size)
	}
	ext := make([]byte, h.size+padding(h.size))
	if err := t.full(ext); err != nil {
		return nil, err
	}
	records, err := parseRecords(ext[:h.size])
	if err != nil {
		return nil, err
	}
	if err := t.full(b[:]); err != nil {
		return nil, err
	}
	if h, err = parseBlock(&b); err != nil {
		return nil, err
	}
	h.records = records
	return h, nil
}

// end is io.EOF if nothing but the second block of zeros is left.
func (t *tarReader) end() error {
	var b [blockSize]byte
	if err := t.full(b[:]); err != nil {
		return err
	}
	if b != zeros {
		return corrupt("a lone block of zeros")
	}
	_, err := io.ReadFull(t.r, b[:1])
	if err == nil {
		return corrupt("data behind the end of the archive")
	}
	return err
}

// place checks an entry against those before it: order, which also excludes duplicates, and that its parent is a directory.
func (t *tarReader) place(e *tarEntry) error {
	if e.Opaque {
		if !t.lastDir || t.last != e.Path {
			return corrupt("an opaque marker that does not follow its directory: %.80q", string(e.Path))
		}
		t.lastDir = false
		return nil
	}
	if t.entries > 1 && comparePaths(t.last, e.Path) >= 0 {
		return corrupt("an entry twice or out of order: %.80q", string(e.Path))
	}
	dir, _ := split(e.Path)
	if e.Path == "." && e.Type != Dir {
		return corrupt("a root that is no directory")
	}
	if t.seen[dir].kind != Dir && !fault.Off("layer.unpack-parents") {
		return corrupt("an entry below no directory: %.80q", string(e.Path))
	}
	t.last, t.lastDir = e.Path, e.Type == Dir
	if !e.Whiteout {
		t.seen[e.Path] = tarSeen{e.Type, e.Size}
		t.names += int64(len(e.Path))
	}
	if t.names > t.limits.Names {
		return fmt.Errorf("%w: names of more than %d bytes", ErrLimit, t.limits.Names)
	}
	return nil
}
