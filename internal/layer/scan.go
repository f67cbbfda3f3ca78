package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/fault"
)

// scanned is one path of a directory beside what the index knows of it.
type scanned struct {
	*indexed          // for a path that is as indexed, the index's own
	old      *indexed // nil for a path that is new
	changed  bool     // it must be written to a layer: set by judge
	vanished bool     // it went away before it could be read
}

// known tells whether the path is certainly as the index has it.
func (s *scanned) known() bool { return s.indexed == s.old }

// scan walks a live directory by stat and sorts its paths into known, suspect, new and deleted ones.
type scan struct {
	ctx     context.Context
	root    *folder
	index   *Index // owners of new files, and what was there before
	quiet   bool   // nothing writes meanwhile, or has what it writes to still open
	clock   clock  // when it began
	trusted int64  // change times from here on prove nothing, nanoseconds
	devices map[uint64]fsKind
	next    int // first entry of the index not met yet
	found   []*scanned
	deleted []*indexed
	lost    []Lost
	links   map[inode]Path
}

// scanDir walks dir, which is open as root. The journal directory is not part of it.
func scanDir(ctx context.Context, root *folder, index *Index) (*scan, error) {
	s := &scan{ctx: ctx, root: root, index: index, links: map[inode]Path{}, devices: map[uint64]fsKind{}, clock: readClock()}
	s.trusted = s.clock.trustedBefore(index.clock)
	s.found = make([]*scanned, 0, len(index.entries))
	st, err := root.stat(".")
	if err != nil {
		return nil, fmt.Errorf("layer: stat root: %w", err)
	}
	if _, err := s.enter(root, ".", ".", st); err != nil {
		return nil, err
	}
	if err := s.children(root, "."); err != nil {
		return nil, err
	}
	s.passed("")
	return s, nil
}

func (s *scan) children(f *folder, dir Path) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	names, err := f.names()
	if err != nil {
		return fmt.Errorf("layer: list %q: %w", dir, err)
	}
	return inPathOrder(names, func(name string) (bool, error) {
		p := join(dir, name)
		if p == JournalDir && !fault.Off("layer.journal-dir") {
			return false, nil
		}
		st, err := f.stat(name)
		if errors.Is(err, unix.ENOENT) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("layer: stat %q: %w", p, err)
		}
		return s.enter(f, p, name, st)
	}, func(name string) error { return s.descend(f, join(dir, name), name) })
}

func (s *scan) descend(f *folder, p Path, name string) error {
	sub, err := f.sub(name, needRead)
	if gone(err) {
		return nil // it went away since it was seen; the next scan says so
	}
	if errors.Is(err, unix.EACCES) {
		s.lost = append(s.lost, Lost{p, unreadable + " directory"})
		return nil
	}
	if err != nil {
		return fmt.Errorf("layer: open %q: %w", p, err)
	}
	return errors.Join(s.children(sub, p), sub.close())
}

// What a Lost says of things that no layer holds.
const (
	lostSocket   = "socket"
	lostDevice   = "device"
	lostWhiteout = "character device 0:0"
	unreadable   = "unreadable"
)

// enter classifies one path and tells whether to descend into it.
func (s *scan) enter(f *folder, p Path, name string, st unix.Stat_t) (bool, error) {
	switch {
	case isSocket(st):
		s.lost = append(s.lost, Lost{p, lostSocket})
		return false, nil
	case isWhiteout(st):
		s.lost = append(s.lost, Lost{p, lostWhiteout})
		return false, nil
	}
	old := s.passed(p)
	link := s.linkOf(p, st)
	now := stampOf(st)
	if old != nil && (s.trusts(old) || fault.Off("layer.racy")) && old.stamp == now && old.HardLink == link {
		s.found = append(s.found, &scanned{indexed: old, old: old})
		return old.Type == Dir, nil
	}
	if !f.canRead(name, st) {
		s.lost = append(s.lost, Lost{p, unreadable + " file"})
		s.forget(old)
		return false, nil
	}
	e, err := f.describe(p, name, st)
	if err != nil {
		return false, fmt.Errorf("layer: read %q: %w", p, err)
	}
	e.HardLink = link
	e.UID, e.GID = s.index.logical(st.Uid, st.Gid)
	if old != nil && old.stamp.uid == st.Uid && old.stamp.gid == st.Gid {
		e.UID, e.GID = old.UID, old.GID
	}
	kind, err := s.device(f, name, st)
	if err != nil {
		return false, fmt.Errorf("layer: file system of %q: %w", p, err)
	}
	x := &indexed{Entry: e, stamp: now, racy: !kind.stamps || s.racyAt(now)}
	s.found = append(s.found, &scanned{indexed: x, old: old})
	return e.Type == Dir, nil
}

// device is the file system of an entry, asked once.
func (s *scan) device(f *folder, name string, st unix.Stat_t) (fsKind, error) {
	kind, known := s.devices[st.Dev]
	if known {
		return kind, nil
	}
	kind, err := fsAt(f.fd, name)
	if errors.Is(err, unix.ENOENT) {
		return fsKind{}, nil // it went away, which reading it will tell
	}
	s.devices[st.Dev] = kind
	return kind, err
}

// passed moves on in the index to p, noting what lies before it as deleted, and gives p's entry if it has one.
// The empty path is the end.
func (s *scan) passed(p Path) *indexed {
	for s.next < len(s.index.entries) {
		old := s.index.entries[s.next]
		order := -1
		if p != "" {
			order = comparePaths(old.Path, p)
		}
		if order > 0 {
			return nil
		}
		s.next++
		if order == 0 {
			return old
		}
		s.deleted = append(s.deleted, old)
	}
	return nil
}

// forget notes that a path of the index is no longer covered.
func (s *scan) forget(old *indexed) {
	if old != nil {
		s.deleted = append(s.deleted, old)
	}
}

// canRead tells whether the caller can read a regular file, which it always can if the file is its own.
func (f *folder) canRead(name string, st unix.Stat_t) bool {
	if st.Mode&unix.S_IFMT != unix.S_IFREG || os.Geteuid() == 0 || int(st.Uid) == os.Geteuid() {
		return true
	}
	return unix.Faccessat(f.fd, name, unix.R_OK, 0) == nil
}

func (s *scan) linkOf(p Path, st unix.Stat_t) Path {
	if st.Nlink < 2 || st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return ""
	}
	key := inode{st.Dev, st.Ino}
	first, seen := s.links[key]
	if !seen {
		s.links[key] = p
	}
	return first
}

// newIndex is what the scan found.
func (s *scan) newIndex() *Index {
	x := &Index{SelfUID: s.index.SelfUID, SelfGID: s.index.SelfGID, clock: s.clock, lost: s.lost}
	x.entries = make([]*indexed, 0, len(s.found))
	for _, f := range s.found {
		if !f.vanished {
			x.entries = append(x.entries, f.indexed)
		}
	}
	return x
}

// loadXattrs completes the entry of a path that is not known.
func (s *scan) loadXattrs(f *scanned) error {
	if f.known() || !f.Type.hasXattrs() {
		return nil
	}
	dir, name, err := openIn(s.root, f.Path, needRead)
	if err != nil {
		return err
	}
	defer dir.close()
	f.Xattrs, _, err = dir.xattrs(name, noOverlay)
	return err
}

// sameEntry compares everything of two entries but their content.
func sameEntry(a, b Entry) bool {
	return a.Type == b.Type && a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID &&
		a.MTime.Equal(b.MTime) && sameBody(a, b) && a.HardLink == b.HardLink
}

// sameBody compares what entries of one type are apart from permissions, owner, times and content.
func sameBody(a, b Entry) bool {
	return a.Type == b.Type && a.Size == b.Size && a.Link == b.Link && a.Rdev == b.Rdev && equalXattrs(a.Xattrs, b.Xattrs)
}

// sameContent compares two files of the same size from their current positions on.
func sameContent(a, b io.Reader) (bool, error) {
	x, y := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, errA := io.ReadFull(a, x)
		m, errB := io.ReadFull(b, y)
		if !bytes.Equal(x[:n], y[:m]) {
			return false, nil
		}
		if endA, endB := ended(errA), ended(errB); endA || endB {
			return endA && endB, nil
		}
		if err := errors.Join(errA, errB); err != nil {
			return false, err
		}
	}
}

func ended(err error) bool { return err == io.EOF || err == io.ErrUnexpectedEOF }

// openBelow opens a regular file of an open tree.
func openBelow(root *folder, p Path) (*os.File, error) {
	f, name, err := openIn(root, p, needRead)
	if err != nil {
		return nil, err
	}
	defer f.close()
	return f.open(name)
}
