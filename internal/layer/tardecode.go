package layer

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// rawHeader is a header as it was read, with its records.
type rawHeader struct {
	name, link   string
	flag         byte
	mode         uint32
	size, mtime  int64
	major, minor int64
	records      map[string]string
}

func parseBlock(b *[blockSize]byte) (*rawHeader, error) {
	if string(b[257:265]) != "ustar\x0000" || b[345] != 0 {
		return nil, corrupt("not a PAX header")
	}
	var sum, want int64
	for i, c := range b {
		if i >= 148 && i < 156 {
			c = ' '
		}
		sum += int64(c)
	}
	h := &rawHeader{name: cstring(b[0:100]), link: cstring(b[157:257]), flag: b[156]}
	var mode, uid, gid int64
	for _, f := range []struct {
		field []byte
		to    *int64
	}{
		{b[100:108], &mode},
		{b[108:116], &uid},
		{b[116:124], &gid},
		{b[124:136], &h.size},
		{b[136:148], &h.mtime},
		{b[148:155], &want},
		{b[329:337], &h.major},
		{b[337:345], &h.minor},
	} {
		v, err := strconv.ParseUint(cstring(f.field), 8, 62)
		if err != nil {
			return nil, corrupt("a header field that is not octal")
		}
		*f.to = int64(v)
	}
	if sum != want || mode > 0o7777 {
		return nil, corrupt("wrong header checksum or mode")
	}
	h.mode = uint32(mode)
	return h, nil
}

func cstring(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

func parseRecords(b []byte) (map[string]string, error) {
	records := map[string]string{}
	for len(b) > 0 {
		digits, _, ok := bytes.Cut(b[:min(len(b), 20)], []byte(" "))
		n, err := strconv.ParseUint(string(digits), 10, 31)
		if !ok || err != nil || int(n) > len(b) || int(n) < len(digits)+len(" =\n") || b[n-1] != '\n' {
			return nil, corrupt("a malformed record")
		}
		key, value, ok := strings.Cut(string(b[len(digits)+1:n-1]), "=")
		if _, dup := records[key]; !ok || key == "" || dup {
			return nil, corrupt("a malformed or repeated record %.40q", key)
		}
		records[key] = value
		b = b[n:]
	}
	return records, nil
}

// take removes a record and returns its value.
func (h *rawHeader) take(key string) (string, bool) {
	v, ok := h.records[key]
	delete(h.records, key)
	return v, ok
}

// takeNumber replaces *v by a record that holds a number from 0 up.
func (h *rawHeader) takeNumber(key string, v *int64) error {
	s, ok := h.take(key)
	if !ok {
		return nil
	}
	n, err := strconv.ParseUint(s, 10, 62)
	if err != nil {
		return corrupt("record %s=%.40q is not a number", key, s)
	}
	*v = int64(n)
	return nil
}

// decode turns a header into an entry, and reads the map of a sparse file.
func (t *tarReader) decode(h *rawHeader) (*tarEntry, error) {
	uid, gid := int64(Self), int64(Self)
	for key, v := range map[string]*int64{recUID: &uid, recGID: &gid, recSize: &h.size} {
		if err := h.takeNumber(key, v); err != nil {
			return nil, err
		}
	}
	if s, ok := h.take(recPath); ok {
		h.name = s
	}
	if s, ok := h.take(recLink); ok {
		h.link = s
	}
	t.left, t.pad = h.size, padding(h.size)
	if max(uid, gid) > maxID {
		return nil, corrupt("an owner that is no id: %.40q", h.name)
	}
	e := &tarEntry{}
	e.Mode, e.UID, e.GID, e.MTime = h.mode, int(uid), int(gid), time.Unix(h.mtime, 0)
	if s, ok := h.take(recMTime); ok {
		if e.MTime, ok = parseTime(s); !ok {
			return nil, corrupt("record mtime=%.40q is not a time", s)
		}
	}
	var err error
	if maj, ok := h.take(recSparseMaj); ok {
		err = t.decodeSparse(h, maj, e)
	} else if e.segs = whole(h.size); h.flag == flagFile {
		e.Size = h.size
	}
	if err == nil {
		err = decodeKind(h, e)
	}
	if err == nil {
		err = t.decodeName(h, e)
	}
	if err == nil {
		err = decodeRest(h, e)
	}
	return e, err
}

// decodeKind sets the type, and refuses what an entry of that type cannot have.
func decodeKind(h *rawHeader, e *tarEntry) error {
	switch h.flag {
	case flagFile:
		e.Type = File
	case flagDir:
		e.Type = Dir
	case flagSymlink:
		e.Type, e.Link = Symlink, LinkText(h.link)
		if h.link == "" || len(h.link) > maxLinkText || strings.IndexByte(h.link, 0) >= 0 {
			return corrupt("a symbolic link %.40q without a proper text", h.name)
		}
	case flagFifo:
		e.Type = Fifo
	case flagChar, flagBlock:
		e.Type, e.Rdev = Char, unix.Mkdev(uint32(h.major), uint32(h.minor))
		if h.flag == flagBlock {
			e.Type = Block
		}
		if e.Type == Char && e.Rdev == 0 {
			return corrupt("a device 0:0, which on disk is a whiteout: %.40q", h.name)
		}
	case flagLink:
	default:
		return corrupt("an entry of type %q", h.flag)
	}
	if h.flag != flagFile && (h.size != 0 || len(e.segs) > 0) {
		return corrupt("data in an entry that is no file: %.40q", h.name)
	}
	if h.link != "" && h.flag != flagSymlink && h.flag != flagLink {
		return corrupt("a link in an entry that is none: %.40q", h.name)
	}
	return nil
}

// decodeName finds the real path and what the name says about the entry.
func (t *tarReader) decodeName(h *rawHeader, e *tarEntry) error {
	p := strings.TrimSuffix(h.name, "/")
	dir, base := split(Path(p))
	switch {
	case base == opaqueName:
		e.item = item{Entry: Entry{Path: dir}, Opaque: true}
	case strings.HasPrefix(base, whiteoutPrefix):
		e.item = item{Entry: Entry{Path: join(dir, base[len(whiteoutPrefix):])}, Whiteout: true}
	default:
		e.Path = Path(p)
	}
	marker := e.Opaque || e.Whiteout
	if s, ok := h.take(recRealPath); ok {
		e.Path = Path(s)
	}
	if err := checkPath(e.Path, t.limits.Depth); err != nil {
		return err
	}
	if e.Whiteout && e.Path == "." {
		return corrupt("a whiteout of the root")
	}
	if h.flag == flagLink {
		return t.decodeLink(h, e)
	}
	if tarName(&e.item) != h.name {
		return corrupt("a name that does not fit its path: %.80q", h.name)
	}
	if marker && (h.flag != flagFile || h.size != 0 || len(e.segs) > 0 || len(h.records) > 0) {
		return corrupt("a whiteout that is more than a name: %.80q", h.name)
	}
	return nil
}

// decodeLink resolves a hard link to an earlier entry, whose type it has.
func (t *tarReader) decodeLink(h *rawHeader, e *tarEntry) error {
	e.HardLink = Path(h.link)
	if s, ok := h.take(recRealLink); ok {
		e.HardLink = Path(s)
	}
	target, ok := t.seen[e.HardLink]
	if !ok || target.kind == Dir || escapePath(e.HardLink) != h.link || escapePath(e.Path) != h.name {
		return corrupt("a hard link %.80q to no earlier file: %.80q", h.name, h.link)
	}
	e.Type, e.Size = target.kind, target.size
	return nil
}

// decodeRest takes the records that are left; one that is not known is refused, since ignoring it would lose something.
func decodeRest(h *rawHeader, e *tarEntry) error {
	for key, value := range h.records {
		name, ok := strings.CutPrefix(key, recXattr)
		name = xattrUnescaper.Replace(name)
		if !ok || !kept(name) || strings.IndexByte(name, 0) >= 0 || recXattr+xattrEscaper.Replace(name) != key {
			return corrupt("record %.80q", key)
		}
		if !e.Type.hasXattrs() || e.HardLink != "" {
			return corrupt("an attribute of an entry that has none: %.80q", h.name)
		}
		if len(name) > maxXattrName || len(value) > maxXattrValue {
			return corrupt("an attribute that Linux cannot hold: %.80q of %d bytes", name, len(value))
		}
		e.Xattrs = set(e.Xattrs, name, []byte(value))
	}
	return nil
}

// decodeSparse reads the map in front of a sparse file's data.
func (t *tarReader) decodeSparse(h *rawHeader, major string, e *tarEntry) error {
	minor, _ := h.take(recSparseMin)
	name, ok := h.take(recSparseNam)
	if major != "1" || minor != "0" || !ok || h.flag != flagFile || h.name != sparseName {
		return corrupt("a sparse file that is not of format 1.0: %.80q", name)
	}
	h.name, e.Size = name, -1
	if err := h.takeNumber(recSparseLen, &e.Size); err != nil {
		return err
	}
	count, err := t.mapNumber()
	if err != nil {
		return err
	}
	if count < 1 || count > maxSegments+1 {
		return corrupt("a sparse file with %d segments: %.80q", count, name)
	}
	var end int64
	for i := range count {
		off, err := t.mapNumber()
		if err != nil {
			return err
		}
		n, err := t.mapNumber()
		if err != nil {
			return err
		}
		if off < end || n > e.Size-off || n == 0 && (i < count-1 || off != e.Size) {
			return corrupt("a sparse file whose segments are out of order: %.80q", name)
		}
		if end = off + n; n > 0 {
			e.segs = append(e.segs, segment{off, n})
		}
	}
	used := h.size - t.left
	if err := t.skip(min(padding(used), t.left)); err != nil {
		return err
	}
	if below, ok := h.take(recBelow); ok {
		if b, err := hex.DecodeString(below); err != nil || len(b) != sha256.Size || strings.ToLower(below) != below {
			return corrupt("record %s=%.80q is no digest", recBelow, below)
		}
		e.below = below
	}
	if t.left -= padding(used); t.left != e.stored() || !e.sparse() {
		return corrupt("a sparse file whose map does not fit its data: %.80q", name)
	}
	return nil
}

// mapNumber reads one line of the map of a sparse file.
func (t *tarReader) mapNumber() (int64, error) {
	var line []byte
	for len(line) < 20 {
		var b [1]byte
		if _, err := io.ReadFull(t, b[:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = corrupt("a sparse file without its map")
			}
			return 0, err
		}
		if b[0] == '\n' {
			break
		}
		line = append(line, b[0])
	}
	n, err := strconv.ParseUint(string(line), 10, 63)
	if err != nil {
		return 0, corrupt("a sparse file with the map entry %q", line)
	}
	return int64(n), nil
}
