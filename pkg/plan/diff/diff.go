// Package diff renders the changes of a sandbox as text that people read before they approve a plan.
//
// The text is a unified diff in git's form: names are quoted as git quotes them, and `git apply` takes it where
// every file in it is text and whole. What git cannot say (directories, pipes, attributes, all twelve mode bits) is said in
// lines that it skips. The package reads bytes through Content. It must not know sandboxes, checkpoints or git itself.
package diff

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	textdiff "github.com/rogpeppe/go-internal/diff"

	"github.com/warmfleet/warmfleet/internal/layer"
)

const (
	// DefaultMax is the most text that Render returns, in bytes, unless the request says otherwise.
	DefaultMax = 512 << 10
	// maxFile is the largest side, in bytes, of a file whose lines are compared.
	maxFile = 1 << 20
	// sniff is how many bytes are searched for a NUL that makes a file binary, as git does (buffer_is_binary in xdiff-interface.c).
	sniff = 8000
)

// Content gives the bytes of regular files of one side.
type Content interface {
	Open(p layer.Path) (io.ReadCloser, error)
}

// Request is what to render.
type Request struct {
	// Changes has each path once, with digests of regular files on both sides.
	Changes []layer.Change
	// Base and Ours are the bytes before and after.
	Base, Ours Content
	// Max is the most bytes of text, 0 for DefaultMax.
	Max int
}

// Status says what happened to a file.
type Status string

// The statuses. A renamed file has the same bytes under another name.
const (
	Added    Status = "added"
	Deleted  Status = "deleted"
	Modified Status = "modified"
	Renamed  Status = "renamed"
)

// File is the summary of one changed path.
type File struct {
	Path   layer.Path `json:"path"`
	From   layer.Path `json:"from,omitempty"` // the old name of a renamed one
	Status Status     `json:"status"`
	// Insertions and Deletions count lines; they are 0 for what is binary, too large, or not in the text.
	Insertions int  `json:"insertions"`
	Deletions  int  `json:"deletions"`
	Binary     bool `json:"binary,omitempty"`
	// OldSize and NewSize are bytes of a regular file.
	OldSize int64 `json:"old_size"`
	NewSize int64 `json:"new_size"`
	// Omitted is true for what the limit on the text left out.
	Omitted bool `json:"omitted,omitempty"`
}

// Diff is a rendered difference.
type Diff struct {
	// Text ends with a line that says so when it was cut.
	Text      []byte
	Truncated bool
	// Files has every changed path, in byte order, also those that the text leaves out.
	Files []File
}

// Render compares the two sides of every change. It reads nothing more once the text is full.
func Render(ctx context.Context, req Request) (Diff, error) {
	r := renderer{req: req, max: cmp.Or(req.Max, DefaultMax), changes: slices.Clone(req.Changes)}
	slices.SortFunc(r.changes, func(a, b layer.Change) int { return cmp.Compare(a.Path, b.Path) })
	renames := pair(r.changes)
	gone := map[layer.Path]bool{}
	for _, from := range renames {
		gone[from.Path] = true
	}
	for _, ch := range r.changes {
		if err := ctx.Err(); err != nil {
			return Diff{}, fmt.Errorf("diff: render: %w", err)
		}
		if gone[ch.Path] {
			continue
		}
		from, renamed := renames[ch.Path]
		if renamed {
			ch.Before = &from
		}
		if err := r.change(ch); err != nil {
			return Diff{}, fmt.Errorf("diff: render %q: %w", ch.Path, err)
		}
	}
	return r.finish(), nil
}

// pair finds renames: a deleted and an added regular file of the same bytes, each used once, in byte order.
func pair(changes []layer.Change) map[layer.Path]layer.Entry {
	gone := map[string][]layer.Entry{}
	for _, ch := range changes {
		if ch.After == nil && ch.Before.Type == layer.File && ch.Before.Size > 0 && ch.Before.Digest != "" {
			e := *ch.Before
			e.Path = ch.Path
			gone[e.Digest] = append(gone[e.Digest], e)
		}
	}
	renames := map[layer.Path]layer.Entry{}
	for _, ch := range changes {
		if ch.Before != nil || ch.After.Type != layer.File {
			continue
		}
		if olds := gone[ch.After.Digest]; len(olds) > 0 {
			renames[ch.Path], gone[ch.After.Digest] = olds[0], olds[1:]
		}
	}
	return renames
}

type renderer struct {
	req     Request
	max     int
	changes []layer.Change
	out     bytes.Buffer
	files   []File
	full    bool
}

func (r *renderer) finish() Diff {
	d := Diff{Text: r.out.Bytes(), Files: r.files}
	if !r.full {
		return d
	}
	shown := 0
	for _, f := range d.Files {
		if !f.Omitted {
			shown++
		}
	}
	marker := fmt.Sprintf("[diff truncated at %d bytes: %d of %d changed paths shown]\n", r.max, shown, len(d.Files))
	room := max(0, r.max-len(marker))
	if len(d.Text) > room {
		d.Text = d.Text[:bytes.LastIndexByte(d.Text[:room], '\n')+1]
	}
	d.Text, d.Truncated = append(d.Text, marker...), true
	return d
}

// change renders one path.
func (r *renderer) change(ch layer.Change) error {
	f := File{Path: ch.Path, Status: Modified, Omitted: r.full, OldSize: size(ch.Before), NewSize: size(ch.After)}
	switch {
	case ch.Before == nil:
		f.Status = Added
	case ch.After == nil:
		f.Status = Deleted
	case ch.Before.Path != ch.Path && ch.Before.Digest != "" && ch.Before.Path != "":
		f.Status, f.From = Renamed, ch.Before.Path
	}
	if !r.full {
		if err := r.section(ch, &f); err != nil {
			return err
		}
	}
	r.files = append(r.files, f)
	r.full = r.full || r.out.Len() > r.max
	return nil
}

func (r *renderer) section(ch layer.Change, f *File) error {
	before, after := ch.Before, ch.After
	if before != nil && after != nil && before.Type != after.Type {
		// As git has it: what was goes, what is comes.
		if err := r.half(layer.Change{Path: ch.Path, Before: before}, f); err != nil {
			return err
		}
		return r.half(layer.Change{Path: ch.Path, After: after}, f)
	}
	return r.half(ch, f)
}

// half renders a change that keeps its type, or an addition or deletion.
func (r *renderer) half(ch layer.Change, f *File) error {
	e := cmp.Or(ch.After, ch.Before)
	if e.Type != layer.File && e.Type != layer.Symlink {
		r.plain(ch, e)
		return nil
	}
	r.header(ch, f)
	if ch.Before != nil && ch.After != nil && !maps.EqualFunc(ch.Before.Xattrs, ch.After.Xattrs, bytes.Equal) {
		fmt.Fprintf(&r.out, "extended attributes differ: %s\n", Quote(string(ch.Path)))
	}
	if ch.Before != nil && ch.After != nil && ch.Before.Digest == ch.After.Digest && ch.Before.Link == ch.After.Link {
		return nil
	}
	return r.body(ch, f)
}

// plain says in words what git has no form for.
func (r *renderer) plain(ch layer.Change, e *layer.Entry) {
	noun := map[layer.Type]string{
		layer.Dir: "directory", layer.Fifo: "named pipe", layer.Char: "character device", layer.Block: "block device",
	}[e.Type]
	name := Quote(string(ch.Path))
	switch {
	case ch.Before == nil:
		fmt.Fprintf(&r.out, "%s created: %s (mode %04o)\n", noun, name, e.Mode)
	case ch.After == nil:
		fmt.Fprintf(&r.out, "%s deleted: %s\n", noun, name)
	case ch.Before.Mode != ch.After.Mode:
		fmt.Fprintf(&r.out, "%s changed: %s (mode %04o -> %04o)\n", noun, name, ch.Before.Mode, ch.After.Mode)
	default:
		fmt.Fprintf(&r.out, "%s changed: %s\n", noun, name)
	}
}

func (r *renderer) header(ch layer.Change, f *File) {
	old := cmp.Or(f.From, ch.Path)
	fmt.Fprintf(&r.out, "diff --git %s %s\n", Quote("a/"+string(old)), Quote("b/"+string(ch.Path)))
	switch {
	case ch.Before == nil:
		fmt.Fprintf(&r.out, "new file mode %s\n", mode(ch.After))
	case ch.After == nil:
		fmt.Fprintf(&r.out, "deleted file mode %s\n", mode(ch.Before))
	case mode(ch.Before) != mode(ch.After):
		fmt.Fprintf(&r.out, "old mode %s\nnew mode %s\n", mode(ch.Before), mode(ch.After))
	}
	if f.From != "" {
		fmt.Fprintf(&r.out, "similarity index 100%%\nrename from %s\nrename to %s\n", Quote(string(f.From)), Quote(string(ch.Path)))
	}
}

func (r *renderer) body(ch layer.Change, f *File) error {
	old, oldWhole, err := bytesOf(r.req.Base, ch.Path, ch.Before)
	if err != nil {
		return err
	}
	now, nowWhole, err := bytesOf(r.req.Ours, ch.Path, ch.After)
	if err != nil {
		return err
	}
	a, b := "/dev/null", "/dev/null"
	if ch.Before != nil {
		a = Quote("a/" + string(ch.Path))
	}
	if ch.After != nil {
		b = Quote("b/" + string(ch.Path))
	}
	switch {
	case binary(old) || binary(now):
		f.Binary = true
		fmt.Fprintf(&r.out, "Binary files %s and %s differ (%d -> %d bytes)\n", a, b, size(ch.Before), size(ch.After))
		return nil
	case !oldWhole || !nowWhole:
		fmt.Fprintf(&r.out, "Files %s and %s differ, too large to show (%d -> %d bytes)\n", a, b, size(ch.Before), size(ch.After))
		return nil
	}
	hunks := textdiff.Diff("", old, "", now)
	for range 3 { // its own header
		_, hunks, _ = bytes.Cut(hunks, []byte("\n"))
	}
	if len(hunks) == 0 {
		return nil
	}
	fmt.Fprintf(&r.out, "--- %s\n+++ %s\n", spaced(a), spaced(b))
	r.out.Write(hunks)
	added, removed := count(hunks)
	f.Insertions += added
	f.Deletions += removed
	return nil
}

// count counts the added and removed lines of hunks, which have no other lines that begin so.
func count(hunks []byte) (added, removed int) {
	for line := range bytes.Lines(hunks) {
		switch line[0] {
		case '+':
			added++
		case '-':
			removed++
		}
	}
	return added, removed
}

// bytesOf reads one side; it is not whole when it is larger than maxFile.
func bytesOf(c Content, p layer.Path, e *layer.Entry) (b []byte, whole bool, err error) {
	if e == nil {
		return nil, true, nil
	}
	if e.Type == layer.Symlink {
		return []byte(e.Link), true, nil
	}
	rd, err := c.Open(p)
	if err != nil {
		return nil, false, err
	}
	limit := int64(maxFile + 1)
	if e.Size > maxFile {
		limit = sniff
	}
	b, err = io.ReadAll(io.LimitReader(rd, limit))
	return b, len(b) <= maxFile && e.Size <= maxFile, errors.Join(err, rd.Close())
}

func binary(b []byte) bool { return bytes.IndexByte(b[:min(len(b), sniff)], 0) >= 0 }

func size(e *layer.Entry) int64 {
	if e == nil {
		return 0
	}
	return e.Size
}

// mode is git's form of type and permissions, with all twelve bits where git itself keeps one.
func mode(e *layer.Entry) string {
	if e.Type == layer.Symlink {
		return "120000"
	}
	return fmt.Sprintf("10%04o", e.Mode)
}

// Quote writes a name as git does by default (core.quotePath): in double quotes with octal escapes if it holds
// a control character, a quote, a backslash or a byte that is not ASCII.
func Quote(name string) string {
	plain := func(c byte) bool { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\' }
	clean := true
	for i := range len(name) {
		clean = clean && plain(name[i])
	}
	if clean {
		return name
	}
	short := map[byte]string{
		'\a': `\a`, '\b': `\b`, '\t': `\t`, '\n': `\n`, '\v': `\v`, '\f': `\f`, '\r': `\r`, '"': `\"`, '\\': `\\`,
	}
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(name) {
		c := name[i]
		switch s, has := short[c]; {
		case has:
			b.WriteString(s)
		case plain(c):
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, `\%03o`, c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// spaced ends a name that holds a space with a tab, as git does, so that readers see where it ends.
func spaced(name string) string {
	if strings.Contains(name, " ") && name[0] != '"' {
		return name + "\t"
	}
	return name
}
