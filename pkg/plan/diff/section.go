package diff

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	textdiff "github.com/rogpeppe/go-internal/diff"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// sniff is how many bytes are searched for a NUL that makes a file binary, as git does (buffer_is_binary in xdiff-interface.c).
const sniff = 8000

// file describes a change without reading anything.
func (s *Set) file(ch layer.Change) File {
	n := Note{Path: ch.Path}
	if r, ok := s.renames[ch.Path]; ok {
		n.OldPath, n.Similarity = r.from.Path, r.similarity
		ch.Before = &r.from
	}
	return describe(ch, n)
}

// section renders one change.
func (s *Set) section(ch layer.Change) (File, []byte, error) {
	f := s.file(ch)
	w := &section{set: s, path: ch.Path, oldPath: cmp.Or(f.OldPath, ch.Path), f: &f}
	before, after := ch.Before, ch.After
	if r, ok := s.renames[ch.Path]; ok {
		before = &r.from
	}
	var err error
	if f.Kind == TypeChanged { // as git has it: what was goes, what is comes
		err = errors.Join(w.half(before, nil), w.half(nil, after))
	} else {
		err = w.half(before, after)
	}
	return f, w.out.Bytes(), err
}

// section is the text of one path.
type section struct {
	set           *Set
	path, oldPath layer.Path
	f             *File
	out           bytes.Buffer
}

// half renders a change that keeps its type, or an addition or deletion.
func (w *section) half(before, after *layer.Entry) error {
	e := cmp.Or(after, before)
	if e.Type != layer.File && e.Type != layer.Symlink {
		w.plain(before, after)
		w.extras(before, after)
		return nil
	}
	content := before == nil || after == nil || before.Digest != after.Digest || before.Link != after.Link
	// A header that changes nothing is an error to git.
	if content || w.f.OldPath != "" || mode(before) != mode(after) {
		w.header(before, after)
	}
	if content {
		if err := w.body(before, after); err != nil {
			return err
		}
	}
	w.extras(before, after)
	return nil
}

// plain says in words what git has no form for. A directory that came or went with what is in it goes without saying.
func (w *section) plain(before, after *layer.Entry) {
	e := cmp.Or(after, before)
	noun := map[layer.Type]string{
		layer.Dir: "directory", layer.Fifo: "named pipe", layer.Char: "character device", layer.Block: "block device",
	}[e.Type]
	name := Quote(string(w.path))
	switch {
	case w.set.parents.imply(*w.f):
	case before == nil:
		fmt.Fprintf(&w.out, "%s created: %s (mode %04o)\n", noun, name, e.Mode)
	case after == nil:
		fmt.Fprintf(&w.out, "%s deleted: %s\n", noun, name)
	case before.Mode != after.Mode:
		fmt.Fprintf(&w.out, "%s changed: %s (mode %04o -> %04o)\n", noun, name, before.Mode, after.Mode)
	case before.Rdev != after.Rdev:
		fmt.Fprintf(&w.out, "%s changed: %s (device %#x -> %#x)\n", noun, name, before.Rdev, after.Rdev)
	}
}

// extras names what no header has: owners and attributes.
func (w *section) extras(before, after *layer.Entry) {
	if after == nil {
		return
	}
	name, was := Quote(string(w.path)), &layer.Entry{UID: layer.Self, GID: layer.Self}
	if before != nil {
		was = before
	}
	if owner(was) != owner(after) {
		fmt.Fprintf(&w.out, "owner changed: %s (%s -> %s)\n", name, cmp.Or(owner(was), "sandbox"), cmp.Or(owner(after), "sandbox"))
	}
	if sameXattrs(was, after) {
		return
	}
	var what []string
	for _, attr := range slices.Sorted(maps.Keys(after.Xattrs)) {
		if old, had := was.Xattrs[attr]; !had {
			what = append(what, Quote(attr)+" added")
		} else if !bytes.Equal(old, after.Xattrs[attr]) {
			what = append(what, Quote(attr)+" changed")
		}
	}
	for _, attr := range slices.Sorted(maps.Keys(was.Xattrs)) {
		if _, has := after.Xattrs[attr]; !has {
			what = append(what, Quote(attr)+" removed")
		}
	}
	fmt.Fprintf(&w.out, "attributes changed: %s (%s)\n", name, strings.Join(what, ", "))
}

func (w *section) header(before, after *layer.Entry) {
	fmt.Fprintf(&w.out, "diff --git %s %s\n", Quote("a/"+string(w.oldPath)), Quote("b/"+string(w.path)))
	switch {
	case before == nil:
		fmt.Fprintf(&w.out, "new file mode %s\n", mode(after))
	case after == nil:
		fmt.Fprintf(&w.out, "deleted file mode %s\n", mode(before))
	case mode(before) != mode(after):
		fmt.Fprintf(&w.out, "old mode %s\nnew mode %s\n", mode(before), mode(after))
	}
	if f := w.f; f.OldPath != "" {
		fmt.Fprintf(&w.out, "similarity index %d%%\nrename from %s\nrename to %s\n", f.Similarity, Quote(string(f.OldPath)), Quote(string(f.Path)))
	}
}

func (w *section) body(before, after *layer.Entry) error {
	old, err := w.set.read(w.set.req.Base, w.oldPath, before)
	if err != nil {
		return err
	}
	now, err := w.set.read(w.set.req.Ours, w.path, after)
	if err != nil {
		return err
	}
	a, b := "/dev/null", "/dev/null"
	if before != nil {
		a = Quote("a/" + string(w.oldPath))
	}
	if after != nil {
		b = Quote("b/" + string(w.path))
	}
	if old.binary || now.binary || !old.whole || !now.whole {
		// Exactly git's line: its readers then know that they lack the content, and refuse to apply.
		fmt.Fprintf(&w.out, "Binary files %s and %s differ\n", a, b)
		w.f.Binary = old.binary || now.binary
		what := "binary"
		if !w.f.Binary {
			what = "too large to show"
		}
		fmt.Fprintf(&w.out, "%s: %s\n", what, sizes(before, after))
		return nil
	}
	hunks := textdiff.Diff("", old.bytes, "", now.bytes)
	for range 3 { // its own header
		_, hunks, _ = bytes.Cut(hunks, []byte("\n"))
	}
	w.count(hunks)
	if len(hunks) > 0 {
		fmt.Fprintf(&w.out, "--- %s\n+++ %s\n", spaced(a), spaced(b))
		w.out.Write(hunks)
	}
	return nil
}

// count counts the added and removed lines of hunks, which have no other lines that begin so.
func (w *section) count(hunks []byte) {
	added, removed := 0, 0
	for line := range bytes.Lines(hunks) {
		switch line[0] {
		case '+':
			added++
		case '-':
			removed++
		}
	}
	if w.f.Added != nil { // the other half of a change of type
		added += *w.f.Added
		removed += *w.f.Deleted
	}
	w.f.Added, w.f.Deleted = &added, &removed
}

// side is the content of one side as far as it is shown.
type content struct {
	bytes  []byte
	whole  bool // else it is larger than is compared
	binary bool
}

// read reads one side, no more of it than it takes to see that it is not shown.
func (s *Set) read(c Content, p layer.Path, e *layer.Entry) (content, error) {
	switch {
	case e == nil:
		return content{whole: true}, nil
	case e.Type == layer.Symlink:
		return content{bytes: []byte(e.Link), whole: true}, nil
	}
	r, err := c.Open(p)
	if err != nil {
		return content{}, err
	}
	defer r.Close()
	head, err := io.ReadAll(io.LimitReader(r, sniff))
	if err != nil {
		return content{}, err
	}
	if bytes.IndexByte(head, 0) >= 0 {
		return content{binary: true}, nil
	}
	if e.Size > s.req.MaxFile {
		return content{}, nil
	}
	rest, err := io.ReadAll(io.LimitReader(r, s.req.MaxFile+1-int64(len(head))))
	b := append(head, rest...)
	return content{bytes: b, whole: int64(len(b)) <= s.req.MaxFile}, err
}

// sizes says how large a file is, or was and is.
func sizes(before, after *layer.Entry) string {
	switch {
	case before == nil:
		return bytesOf(after.Size)
	case after == nil:
		return bytesOf(before.Size)
	}
	return bytesOf(before.Size) + " -> " + bytesOf(after.Size)
}

// bytesOf is a number of bytes, for people beside it in a unit they can grasp.
func bytesOf(n int64) string {
	if n < 10<<10 {
		return fmt.Sprintf("%d bytes", n)
	}
	v, unit := float64(n)/1024, "KiB"
	for _, next := range []string{"MiB", "GiB", "TiB"} {
		if v < 1024 {
			break
		}
		v, unit = v/1024, next
	}
	return fmt.Sprintf("%d bytes (%.1f %s)", n, v, unit)
}

// mode is git's form of type and permissions, with all twelve bits where git itself keeps one; "" for nothing.
func mode(e *layer.Entry) string {
	switch {
	case e == nil:
		return ""
	case e.Type == layer.Symlink:
		return "120000"
	}
	return fmt.Sprintf("10%04o", e.Mode)
}
