package layer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Type flags of POSIX.1-2001.
const (
	flagFile    = '0'
	flagLink    = '1'
	flagSymlink = '2'
	flagChar    = '3'
	flagBlock   = '4'
	flagDir     = '5'
	flagFifo    = '6'
	flagPAX     = 'x'
)

const (
	paxHeaderName = "././@PaxHeader"
	sparseName    = "GNUSparseFile.0/file"
)

var zeros [blockSize]byte

// tarWriter writes PAX entries. Whoever writes a header with a size writes that many bytes next.
type tarWriter struct {
	w    io.Writer
	left int64
	pad  int64
}

// tarHeader is an entry as it is written: the fields of ustar and what does not fit them.
type tarHeader struct {
	name, link string
	flag       byte
	mode       uint32
	uid, gid   int
	size       int64
	mtime      time.Time
	rdev       uint64
	records    map[string]string
	// sparseMap precedes the data of a file with holes, padded; it is part of size.
	sparseMap []byte
}

// item writes the header of an entry of the stored form.
func (t *tarWriter) item(e *tarEntry) error {
	h := tarHeader{name: tarName(&e.item), flag: flagFile, records: map[string]string{}, mtime: time.Unix(0, 0)}
	if name := plainName(&e.item); name != h.name {
		h.records[recRealPath] = string(e.Path)
	}
	if e.Whiteout || e.Opaque {
		return t.header(&h)
	}
	if err := h.fill(e); err != nil {
		return err
	}
	h.link = escapePath(e.HardLink)
	switch {
	case e.HardLink == "":
		h.link = string(e.Link)
	case h.link != string(e.HardLink):
		h.records[recRealLink] = string(e.HardLink)
	}
	if e.UID != Self {
		h.uid, h.records[recUID] = e.UID, strconv.Itoa(e.UID)
	}
	if e.GID != Self {
		h.gid, h.records[recGID] = e.GID, strconv.Itoa(e.GID)
	}
	return t.header(&h)
}

// plainName is what tarName would be if no component had to be escaped.
func plainName(it *item) string {
	switch {
	case it.Opaque:
		return string(join(it.Path, opaqueName))
	case it.Whiteout:
		dir, base := split(it.Path)
		return string(join(dir, whiteoutPrefix+base))
	case it.Type == Dir:
		return string(it.Path) + "/"
	}
	return string(it.Path)
}

// real writes the header of an entry under its own name: the form of an export.
func (t *tarWriter) real(e *tarEntry) error {
	h := tarHeader{name: plainName(&e.item), link: string(e.Link), uid: e.UID, gid: e.GID, records: map[string]string{}}
	if err := h.fill(e); err != nil {
		return err
	}
	if e.HardLink != "" {
		h.link = string(e.HardLink)
	}
	return t.header(&h)
}

// fill sets what both forms of an entry have in common.
func (h *tarHeader) fill(e *tarEntry) error {
	h.mode, h.mtime, h.rdev = e.Mode&0o7777, e.MTime, e.Rdev
	switch e.Type {
	case File:
		h.flag = flagFile
	case Dir:
		h.flag = flagDir
	case Symlink:
		h.flag = flagSymlink
	case Fifo:
		h.flag = flagFifo
	case Char:
		h.flag = flagChar
	case Block:
		h.flag = flagBlock
	default:
		return fmt.Errorf("type %q has no tar form", e.Type)
	}
	if e.HardLink != "" {
		h.flag = flagLink
		return nil
	}
	for k, v := range e.Xattrs {
		h.records[recXattr+xattrEscaper.Replace(k)] = string(v)
	}
	if e.Type != File {
		return nil
	}
	h.size = e.stored()
	if e.sparse() {
		h.sparseMap = encodeSegments(e.segs, e.Size)
		h.size += int64(len(h.sparseMap))
		h.records[recSparseMaj], h.records[recSparseMin] = "1", "0"
		h.records[recSparseNam] = h.name
		h.records[recSparseLen] = strconv.FormatInt(e.Size, 10)
		h.name = sparseName
	}
	if e.below != "" {
		h.records[recBelow] = e.below
	}
	return nil
}

// encodeSegments is the map of a sparse file, as GNU format 1.0 has it: the count, then offset and length
// of each segment, a number a line. An empty last segment says where a hole at the end ends.
func encodeSegments(segs []segment, size int64) []byte {
	if n := len(segs); n == 0 || segs[n-1].off+segs[n-1].len < size {
		segs = append(slices.Clone(segs), segment{size, 0})
	}
	b := strconv.AppendInt(nil, int64(len(segs)), 10)
	b = append(b, '\n')
	for _, s := range segs {
		b = append(strconv.AppendInt(b, s.off, 10), '\n')
		b = append(strconv.AppendInt(b, s.len, 10), '\n')
	}
	return append(b, zeros[:padding(int64(len(b)))]...)
}

func padding(n int64) int64 { return -n & (blockSize - 1) }

// header ends the entry before and writes the next one's header.
func (t *tarWriter) header(h *tarHeader) error {
	if err := t.finish(); err != nil {
		return err
	}
	ext, err := h.extended()
	if err != nil {
		return err
	}
	var out []byte
	if len(ext) > 0 {
		x := tarHeader{name: paxHeaderName, flag: flagPAX, size: int64(len(ext)), mtime: time.Unix(0, 0)}
		out = append(x.block(), ext...)
		out = append(out, zeros[:padding(int64(len(ext)))]...)
	}
	out = append(out, h.block()...)
	out = append(out, h.sparseMap...)
	t.left, t.pad = h.size-int64(len(h.sparseMap)), padding(h.size)
	_, err = t.w.Write(out)
	return err
}

// extended adds the records for what the ustar fields cannot say and encodes all of them in the order of their keys.
func (h *tarHeader) extended() ([]byte, error) {
	if h.records == nil {
		h.records = map[string]string{}
	}
	if h.uid < 0 || h.gid < 0 || h.size < 0 {
		return nil, fmt.Errorf("negative owner or size of %q", h.name)
	}
	add := func(key, value string, needed bool) {
		if needed {
			h.records[key] = value
		}
	}
	add(recPath, h.name, !fitsUstar(h.name))
	add(recLink, h.link, !fitsUstar(h.link))
	add(recSize, strconv.FormatInt(h.size, 10), h.size > ustarLong)
	add(recUID, strconv.Itoa(h.uid), h.uid > ustarID)
	add(recGID, strconv.Itoa(h.gid), h.gid > ustarID)
	sec := h.mtime.Unix()
	add(recMTime, formatTime(h.mtime), h.mtime.Nanosecond() != 0 || sec < 0 || sec > ustarLong)
	var b []byte
	for _, k := range slices.Sorted(maps.Keys(h.records)) {
		b = append(b, record(k, h.records[k])...)
	}
	return b, nil
}

// record is one PAX record, "LENGTH KEY=VALUE\n", whose length counts its own digits.
func record(key, value string) string {
	rest := len(" ") + len(key) + len("=") + len(value) + len("\n")
	n := rest + len(strconv.Itoa(rest))
	if total := rest + len(strconv.Itoa(n)); total != n {
		n = total
	}
	return strconv.Itoa(n) + " " + key + "=" + value + "\n"
}

func fitsUstar(s string) bool {
	return len(s) <= ustarName && strings.IndexFunc(s, func(r rune) bool { return r >= 0x80 }) < 0
}

// block is the 512 bytes of a ustar header. What does not fit is cut: a record says it.
func (h *tarHeader) block() []byte {
	b := make([]byte, blockSize)
	copy(b[0:100], ascii(h.name))
	octal(b[100:108], int64(h.mode))
	octal(b[108:116], min(int64(h.uid), ustarID))
	octal(b[116:124], min(int64(h.gid), ustarID))
	octal(b[124:136], min(h.size, ustarLong))
	octal(b[136:148], min(max(h.mtime.Unix(), 0), ustarLong))
	copy(b[148:156], "        ")
	b[156] = h.flag
	copy(b[157:257], ascii(h.link))
	copy(b[257:265], "ustar\x0000")
	octal(b[329:337], int64(unix.Major(h.rdev)))
	octal(b[337:345], int64(unix.Minor(h.rdev)))
	var sum int64
	for _, c := range b {
		sum += int64(c)
	}
	octal(b[148:155], sum)
	b[154] = 0
	return b
}

// octal fills a field with digits and ends it with a NUL.
func octal(field []byte, v int64) {
	for i := len(field) - 2; i >= 0; i-- {
		field[i] = byte('0' + v&7)
		v >>= 3
	}
}

// ascii is a printable stand-in for a name that is in a record.
func ascii(s string) string {
	return string(bytes.Map(func(r rune) rune {
		if r >= 0x80 {
			return '_'
		}
		return r
	}, []byte(s)))
}

// Write writes data of the entry whose header was written last.
func (t *tarWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > t.left {
		return 0, errors.New("more data than the header says")
	}
	n, err := t.w.Write(p)
	t.left -= int64(n)
	return n, err
}

func (t *tarWriter) finish() error {
	if t.left > 0 {
		return errors.New("less data than the header says")
	}
	_, err := t.w.Write(zeros[:t.pad])
	t.pad = 0
	return err
}

// close ends the archive.
func (t *tarWriter) close() error {
	if err := t.finish(); err != nil {
		return err
	}
	_, err := t.w.Write(make([]byte, 2*blockSize))
	return err
}
