package layer

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// ErrIndexForm is returned for an index written by another version. The remedy is a capture without one.
var ErrIndexForm = errors.New("index has another form")

// Index remembers what a directory looked like when it was last captured or restored, so that the next
// capture reads only what may have changed. It is not changed once it was returned.
type Index struct {
	// SelfUID and SelfGID are the numbers Self stands for in that directory.
	SelfUID, SelfGID int
	clock            clock      // when the scan began that it was made by
	entries          []*indexed // in the byte order of full paths
	lost             []Lost
}

// indexed is one path: its entry, whose content is the same path of the named layer, and the stat it had on disk.
type indexed struct {
	Entry
	layer string
	stamp
	// racy: the stat proves nothing, and the path is read again at the next capture; see settled.go.
	racy bool
}

// stamp is the part of a stat that changes whenever anything about a file does.
type stamp struct {
	dev, ino     uint64
	ctime, mtime int64 // nanoseconds
	size         int64
	mode         uint32
	uid, gid     uint32
}

func stampOf(st unix.Stat_t) stamp {
	return stamp{st.Dev, st.Ino, st.Ctim.Nano(), st.Mtim.Nano(), st.Size, st.Mode, st.Uid, st.Gid}
}

// Lost lists what of the directory the index does not cover: what could not be kept at a capture, or not given
// back at a restore.
func (x *Index) Lost() []Lost { return x.lost }

// Len is the number of paths, the root included.
func (x *Index) Len() int { return len(x.entries) }

// Moved is the index after the content of the layers from went into the layer to.
func (x *Index) Moved(from []string, to string) *Index {
	moved := &Index{SelfUID: x.SelfUID, SelfGID: x.SelfGID, clock: x.clock, lost: x.lost, entries: slices.Clone(x.entries)}
	for i, e := range moved.entries {
		if slices.Contains(from, e.layer) {
			again := *e
			again.layer = to
			moved.entries[i] = &again
		}
	}
	return moved
}

// logical is the owner in a layer of a file that has these numbers on disk.
func (x *Index) logical(uid, gid uint32) (int, int) {
	u, g := int(uid), int(gid)
	if u == x.SelfUID {
		u = Self
	}
	if g == x.SelfGID {
		g = Self
	}
	return u, g
}

// indexMagic names the stored form: a count and, for each path, the fields of indexed in the order of encodeEntry.
// Any change to that order is another magic.
const indexMagic = "warmfleet-index-2\n"

// Encode writes the index. It is bound to the directory and to the cache it was made with.
func (x *Index) Encode(w io.Writer) error {
	e := indexEncoder{w: bufio.NewWriter(w)}
	e.w.WriteString(indexMagic)
	e.ints(int64(x.SelfUID), int64(x.SelfGID), x.clock.wall, x.clock.uptime, int64(len(x.entries)))
	for _, entry := range x.entries {
		e.entry(entry)
	}
	e.ints(int64(len(x.lost)))
	for _, l := range x.lost {
		e.bytes(string(l.Path))
		e.bytes(l.What)
	}
	if err := e.w.Flush(); err != nil {
		return fmt.Errorf("layer: write index: %w", err)
	}
	return nil
}

// indexEncoder leaves errors to the writer, which keeps the first for Flush.
type indexEncoder struct {
	w   *bufio.Writer
	buf []byte
}

func (e *indexEncoder) ints(values ...int64) {
	for _, v := range values {
		e.buf = binary.AppendVarint(e.buf[:0], v)
		e.w.Write(e.buf)
	}
}

func (e *indexEncoder) bytes(s string) {
	e.ints(int64(len(s)))
	e.w.WriteString(s)
}

func (e *indexEncoder) entry(x *indexed) {
	for _, s := range []string{string(x.Path), string(x.Type), string(x.Link), string(x.HardLink), x.layer} {
		e.bytes(s)
	}
	racy := int64(0)
	if x.racy {
		racy = 1
	}
	e.ints(int64(x.Mode), int64(x.UID), int64(x.GID), x.Size, int64(x.Rdev), racy)
	e.ints(int64(x.dev), int64(x.ino), x.ctime, x.stamp.mtime, x.stamp.size, int64(x.stamp.mode), int64(x.stamp.uid), int64(x.stamp.gid))
	e.ints(x.MTime.Unix(), int64(x.MTime.Nanosecond()), int64(len(x.Xattrs)))
	for name, value := range x.Xattrs {
		e.bytes(name)
		e.bytes(string(value))
	}
}

// DecodeIndex reads what Encode wrote. It returns ErrIndexForm for anything else.
func DecodeIndex(r io.Reader) (*Index, error) {
	d := indexDecoder{r: bufio.NewReader(r)}
	magic := make([]byte, len(indexMagic))
	if _, err := io.ReadFull(d.r, magic); err != nil || string(magic) != indexMagic {
		return nil, fmt.Errorf("layer: read index: %w", errors.Join(ErrIndexForm, err))
	}
	x := &Index{SelfUID: int(d.int()), SelfGID: int(d.int()), clock: clock{d.int(), d.int()}}
	for n := d.int(); n > 0 && d.err == nil; n-- {
		x.entries = append(x.entries, d.entry())
	}
	for n := d.int(); n > 0 && d.err == nil; n-- {
		x.lost = append(x.lost, Lost{Path: Path(d.bytes()), What: d.bytes()})
	}
	if d.err != nil {
		return nil, fmt.Errorf("layer: read index: %w", errors.Join(ErrIndexForm, d.err))
	}
	return x, nil
}

type indexDecoder struct {
	r     *bufio.Reader
	buf   []byte
	layer string // of the entry before: most come from the same one
	err   error
}

func (d *indexDecoder) int() int64 {
	if d.err != nil {
		return 0
	}
	var v int64
	v, d.err = binary.ReadVarint(d.r)
	return v
}

// maxIndexString bounds what a damaged length can make the decoder allocate: a value of an extended attribute
// has at most 64 KiB, a path has no limit but PATH_MAX times a few.
const maxIndexString = 1 << 20

func (d *indexDecoder) bytes() string {
	n := d.int()
	if d.err != nil {
		return ""
	}
	if n < 0 || n > maxIndexString {
		d.err = fmt.Errorf("string of %d bytes", n)
		return ""
	}
	if int64(cap(d.buf)) < n {
		d.buf = make([]byte, n)
	}
	_, d.err = io.ReadFull(d.r, d.buf[:n])
	return string(d.buf[:n])
}

func (d *indexDecoder) entry() *indexed {
	x := &indexed{}
	x.Path, x.Type, x.Link, x.HardLink = Path(d.bytes()), Type(d.bytes()), LinkText(d.bytes()), Path(d.bytes())
	if layer := d.bytes(); layer != d.layer {
		d.layer = layer
	}
	x.layer = d.layer
	x.Mode, x.UID, x.GID, x.Size, x.Rdev = uint32(d.int()), int(d.int()), int(d.int()), d.int(), uint64(d.int())
	x.racy = d.int() == 1
	x.stamp = stamp{uint64(d.int()), uint64(d.int()), d.int(), d.int(), d.int(), uint32(d.int()), uint32(d.int()), uint32(d.int())}
	x.MTime = time.Unix(d.int(), d.int())
	for n := d.int(); n > 0 && d.err == nil; n-- {
		name := d.bytes()
		x.Xattrs = set(x.Xattrs, name, []byte(d.bytes()))
	}
	return x
}
