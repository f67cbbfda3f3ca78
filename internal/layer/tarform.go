package layer

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The tar form of a layer is PAX (POSIX.1-2001) with the OCI layer convention: a deleted
// path is an empty file .wh.NAME beside it, an opaque directory holds an empty file
// .wh..wh..opq. Entries are in byte order of their real paths, parents first, so a layer has one tar.
// What neither can say is in these records:
//
//	WARMFLEET.path, .linkpath  the real name, where a component begins with .wh. or .warmfleet.;
//	                           in the header that component has .warmfleet. before it
//	uid, gid                   the owner, always; without them it is Self, and the header says 0
//	SCHILY.xattr.NAME          an extended attribute, as star and GNU tar write it
//	GNU.sparse.*               a file with holes, GNU format 1.0: the map precedes the data
//	WARMFLEET.below            a patch: between the parts of the map is not a hole but what the file of the same
//	                           path in the layers below has there; the value is that file's sha256 in hex
//
// An ordinary layer has no record of our own, because GNU tar warns of each one that it does not know.
// The codec is not archive/tar, whose writer drops GNU.sparse.*, whose reader hides the
// map of holes, and whose output may change from one Go release to the next: names of
// layers are digests of these bytes.
const (
	recPath      = "path"
	recLink      = "linkpath"
	recSize      = "size"
	recUID       = "uid"
	recGID       = "gid"
	recMTime     = "mtime"
	recRealPath  = "WARMFLEET.path"
	recRealLink  = "WARMFLEET.linkpath"
	recBelow     = "WARMFLEET.below"
	recXattr     = "SCHILY.xattr."
	recSparseMaj = "GNU.sparse.major"
	recSparseMin = "GNU.sparse.minor"
	recSparseNam = "GNU.sparse.name"
	recSparseLen = "GNU.sparse.realsize"

	whiteoutPrefix = ".wh."
	opaqueName     = ".wh..wh..opq"
	escapePrefix   = ".warmfleet."
)

// Limits of the formats: ustar fields (POSIX.1-2001 "ustar Interchange Format") and Linux names.
const (
	blockSize   = 512
	ustarName   = 100
	ustarID     = 0o7777777
	ustarLong   = 0o77777777777
	maxID       = 1<<32 - 2
	maxName     = 255
	maxLinkText = 4095
	// XATTR_NAME_MAX and XATTR_SIZE_MAX of linux/limits.h.
	maxXattrName  = 255
	maxXattrValue = 64 << 10
	// maxSegments keeps the map of a sparse file below 1 MiB, which is what archive/tar reads.
	maxSegments = 16384
)

// segment is a part of a file that is stored; what lies between segments is a hole.
type segment struct{ off, len int64 }

// tarEntry is one entry of the tar form.
type tarEntry struct {
	item
	// segs are the stored parts of a regular file in ascending order.
	segs []segment
	// below is the digest of the file that a patch changes, in hex; "" if the entry is no patch.
	below string
}

// whole returns the segments of a file of that size without holes.
func whole(size int64) []segment {
	if size == 0 {
		return nil
	}
	return []segment{{0, size}}
}

// sparse says whether the file has a hole.
func (e *tarEntry) sparse() bool {
	if len(e.segs) == 1 {
		return e.segs[0] != segment{0, e.Size}
	}
	return len(e.segs) > 0 || e.Size > 0
}

// stored is the number of bytes in the segments.
func (e *tarEntry) stored() int64 {
	var n int64
	for _, s := range e.segs {
		n += s.len
	}
	return n
}

// escapePath makes every component that OCI would misread an ordinary one. It is injective.
func escapePath(p Path) string {
	s := string(p)
	if !strings.Contains(s, whiteoutPrefix) && !strings.Contains(s, escapePrefix) {
		return s
	}
	parts := strings.Split(s, "/")
	for i, c := range parts {
		if strings.HasPrefix(c, whiteoutPrefix) || strings.HasPrefix(c, escapePrefix) {
			parts[i] = escapePrefix + c
		}
	}
	return strings.Join(parts, "/")
}

// tarName is the name of an item in the stored form, where a directory ends in a slash.
func tarName(it *item) string {
	esc := escapePath(it.Path)
	switch {
	case it.Opaque && it.Path == ".":
		return opaqueName
	case it.Opaque:
		return esc + "/" + opaqueName
	case it.Whiteout:
		dir, base := split(Path(esc))
		return string(join(dir, whiteoutPrefix+base))
	case it.Type == Dir && it.HardLink == "":
		return esc + "/"
	}
	return esc
}

// checkPath refuses what is not the path of an entry.
func checkPath(p Path, depth int) error {
	if p == "." {
		return nil
	}
	n := 0
	for c := range strings.SplitSeq(string(p), "/") {
		n++
		if c == "" || c == "." || c == ".." || len(c) > maxName || strings.IndexByte(c, 0) >= 0 {
			return corrupt("the path %.80q has the component %.80q", string(p), c)
		}
	}
	if n > depth {
		return fmt.Errorf("%w: a path of %d components", ErrLimit, n)
	}
	return nil
}

// GNU tar escapes the two characters that a record's key cannot hold.
var (
	xattrEscaper   = strings.NewReplacer("%", "%25", "=", "%3D")
	xattrUnescaper = strings.NewReplacer("%25", "%", "%3D", "=")
)

// formatTime writes seconds since the epoch as PAX does: decimal, only the digits needed.
func formatTime(t time.Time) string {
	sec, ns := t.Unix(), int64(t.Nanosecond())
	if ns == 0 {
		return strconv.FormatInt(sec, 10)
	}
	sign := ""
	if sec < 0 {
		sign, sec, ns = "-", -(sec + 1), 1e9-ns
	}
	return strings.TrimRight(fmt.Sprintf("%s%d.%09d", sign, sec, ns), "0")
}

// parseTime reads what formatTime wrote.
func parseTime(s string) (time.Time, bool) {
	digits, neg := strings.CutPrefix(s, "-")
	whole, frac, dotted := strings.Cut(digits, ".")
	if len(frac) > 9 || dotted && frac == "" {
		return time.Time{}, false
	}
	sec, err1 := strconv.ParseUint(whole, 10, 62)
	ns, err2 := strconv.ParseUint(frac+strings.Repeat("0", 9-len(frac)), 10, 62)
	if err1 != nil || err2 != nil {
		return time.Time{}, false
	}
	if neg {
		return time.Unix(-int64(sec), -int64(ns)), true
	}
	return time.Unix(int64(sec), int64(ns)), true
}
