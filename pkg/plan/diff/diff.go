// Package diff renders the changes of a sandbox as text that people read before they approve a plan, and as data.
//
// The text is a unified diff in git's form: names are quoted as git quotes them, and `git apply` takes it where
// every file in it is text and whole, as it would take git's own. What git cannot say (empty directories, pipes,
// owners, attributes, all twelve mode bits, sizes) is said in lines that it skips. The package reads bytes through
// Content. It must not know sandboxes, checkpoints or git itself.
package diff

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/warmfleet/warmfleet/internal/layer"
)

const (
	// DefaultMax is the most text that Render returns, in bytes, unless the request says otherwise.
	DefaultMax = 512 << 10
	// DefaultMaxFile is the largest side, in bytes, of a file whose lines are compared, unless the request says otherwise.
	DefaultMaxFile = 1 << 20
	// maxNamed is how many of the paths that a full text leaves out are named in it.
	maxNamed = 20
	// countRead is how many bytes are read to count the lines of what a full text leaves out.
	countRead = 32 << 20
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
	// Max is the most bytes of text, 0 for DefaultMax. It is for Render alone.
	Max int
	// MaxFile is the largest side of a file whose lines are compared, in bytes, 0 for DefaultMaxFile.
	MaxFile int64
	// More tells people how to see what the text leaves out, such as a command.
	More string
}

// Diff is a rendered difference.
type Diff struct {
	// Text has whole files only, and ends with lines that say what was left out when it was Truncated.
	Text      []byte
	Truncated bool
	// Files has every changed path, in byte order, also those that the text leaves out.
	Files []File
}

// Set is changes whose renames were found.
type Set struct {
	req     Request
	changes []layer.Change // in byte order of paths, without what was renamed away
	renames map[layer.Path]rename
	parents parents
}

// rename is where a file came from.
type rename struct {
	from       layer.Entry
	similarity int // percent
}

// New finds the renames among changes.
func New(ctx context.Context, req Request) (*Set, error) {
	req.Max, req.MaxFile = cmp.Or(req.Max, DefaultMax), cmp.Or(req.MaxFile, DefaultMaxFile)
	s := &Set{req: req, changes: slices.Clone(req.Changes)}
	slices.SortFunc(s.changes, func(a, b layer.Change) int { return cmp.Compare(a.Path, b.Path) })
	var err error
	if s.renames, err = s.pair(ctx); err != nil {
		return nil, fmt.Errorf("diff: find renames: %w", err)
	}
	gone := map[layer.Path]bool{}
	for _, r := range s.renames {
		gone[r.from.Path] = true
	}
	s.changes = slices.DeleteFunc(s.changes, func(ch layer.Change) bool { return ch.After == nil && gone[ch.Path] })
	files := make([]File, 0, len(s.changes))
	for _, ch := range s.changes {
		files = append(files, s.file(ch))
	}
	s.parents = parentsOf(files)
	return s, nil
}

// Render is New and its Render.
func Render(ctx context.Context, req Request) (Diff, error) {
	s, err := New(ctx, req)
	if err != nil {
		return Diff{}, err
	}
	return s.Render(ctx)
}

// Render makes a text within the limit. A file that does not fit is left out whole, so that what follows is still seen; of
// those the lines are counted as long as that is cheap.
func (s *Set) Render(ctx context.Context) (Diff, error) {
	var out bytes.Buffer
	d, full, budget := Diff{}, false, int64(countRead)
	room := s.req.Max - s.noteRoom()
	err := s.each(ctx, "", func(ch layer.Change) (bool, error) {
		if full && budget <= 0 {
			f := s.file(ch)
			f.Omitted = true
			d.Files = append(d.Files, f)
			return true, nil
		}
		f, text, err := s.section(ch)
		if err != nil {
			return false, err
		}
		if f.Omitted = out.Len()+len(text) > room; f.Omitted {
			full = true
			budget -= sizeOf(ch.Before) + sizeOf(ch.After)
		} else {
			out.Write(text)
		}
		d.Files = append(d.Files, f)
		return true, nil
	})
	if err != nil {
		return Diff{}, err
	}
	if d.Truncated = full; full {
		out.WriteString(s.note(d.Files))
	}
	d.Text = out.Bytes()
	return d, nil
}

// Files describes every change, with the lines of all files counted. Its cost is that of the whole text, its memory that of one file.
func (s *Set) Files(ctx context.Context) ([]File, error) {
	files := make([]File, 0, len(s.changes))
	err := s.each(ctx, "", func(ch layer.Change) (bool, error) {
		f, _, err := s.section(ch)
		files = append(files, f)
		return true, err
	})
	return files, err
}

// Page returns the text of the changes behind the path after, "" for the first, in whole files: as many as fit into
// limit bytes, at least one. Next is the after of the page that follows, "" if there is none.
func (s *Set) Page(ctx context.Context, after layer.Path, limit int) (text []byte, next layer.Path, err error) {
	var last layer.Path
	err = s.each(ctx, after, func(ch layer.Change) (bool, error) {
		_, part, err := s.section(ch)
		if err != nil {
			return false, err
		}
		if len(text) > 0 && len(text)+len(part) > limit {
			next = last
			return false, nil
		}
		text, last = append(text, part...), ch.Path
		return true, nil
	})
	return text, next, err
}

// each calls fn for the changes behind the path after, until it returns false.
func (s *Set) each(ctx context.Context, after layer.Path, fn func(layer.Change) (bool, error)) error {
	for _, ch := range s.changes {
		if after != "" && ch.Path <= after {
			continue
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("diff: render: %w", err)
		}
		more, err := fn(ch)
		if err != nil {
			return fmt.Errorf("diff: render %q: %w", ch.Path, err)
		}
		if !more {
			return nil
		}
	}
	return nil
}

// noteRoom is what the lines about left out files may take, in bytes; a note that needs more is cut.
func (s *Set) noteRoom() int { return min(s.req.Max/4, 8<<10) }

// note says what the text leaves out. None of its lines means anything to git.
func (s *Set) note(files []File) string {
	var left []File
	sums, counted := [2]int{}, true
	for _, f := range files {
		if !f.Omitted {
			continue
		}
		left = append(left, f)
		if f.Added != nil {
			sums[0] += *f.Added
			sums[1] += *f.Deleted
		} else {
			counted = counted && f.Binary
		}
	}
	about := ""
	if !counted {
		about = "at least "
	}
	head := fmt.Sprintf("[diff cut: %d of %d changed paths left out, %s%d insertions(+), %d deletions(-)]\n", len(left), len(files), about, sums[0], sums[1])
	tail := ""
	if s.req.More != "" {
		tail = fmt.Sprintf("[to see all: %s]\n", s.req.More)
	}
	var names strings.Builder
	for i, f := range left {
		line := fmt.Sprintf("[left out: %s, %s]\n", f.name(), f.what())
		if i == maxNamed || len(head)+names.Len()+len(line)+len(tail)+64 > s.noteRoom() {
			fmt.Fprintf(&names, "[left out: %d more]\n", len(left)-i)
			break
		}
		names.WriteString(line)
	}
	return head + names.String() + tail
}

// sameXattrs compares attributes.
func sameXattrs(a, b *layer.Entry) bool { return maps.EqualFunc(a.Xattrs, b.Xattrs, bytes.Equal) }

func sizeOf(e *layer.Entry) int64 {
	if e == nil {
		return 0
	}
	return e.Size
}
