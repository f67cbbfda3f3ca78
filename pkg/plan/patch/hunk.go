package patch

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/bluekeyes/go-gitdiff/gitdiff"
)

// rewrite applies the section's hunks or binary data to a content.
func (f file) rewrite(content []byte) ([]byte, error) {
	name := f.old
	if name == "" {
		name = f.new
	}
	if f.binary != nil {
		out, err := applyBinary(content, f.binary)
		if err != nil {
			return nil, &Error{Path: name, Reason: err.Error()}
		}
		return out, nil
	}
	if len(f.hunks) == 0 {
		return content, nil
	}
	img := &image{rest: splitLines(content)}
	for i, h := range f.hunks {
		if !img.apply(h) {
			return nil, &Error{Path: name, Hunk: i + 1, Header: header(h), Reason: "its lines are not in the file as the hunk has them"}
		}
	}
	return bytes.Join(append(img.done, img.rest...), nil), nil
}

func header(h *gitdiff.TextFragment) string {
	return fmt.Sprintf("@@ -%d,%d +%d,%d @@", h.OldPosition, h.OldLines, h.NewPosition, h.NewLines)
}

// image is a file as lines, each with its newline but perhaps the last: those that are done, and those that hunks may
// still be about.
type image struct{ done, rest [][]byte }

func splitLines(b []byte) [][]byte {
	lines := bytes.SplitAfter(b, []byte("\n"))
	if last := len(lines) - 1; len(lines[last]) == 0 {
		return lines[:last]
	}
	return lines
}

// apply makes one hunk, or says that it fits nowhere.
func (m *image) apply(h *gitdiff.TextFragment) bool {
	var old, new [][]byte
	for _, l := range h.Lines {
		if l.Old() {
			old = append(old, []byte(l.Line))
		}
		if l.New() {
			new = append(new, []byte(l.Line))
		}
	}
	at := m.find(old, h)
	if at < 0 {
		return false
	}
	m.done = append(append(m.done, m.rest[:at]...), new...)
	m.rest = m.rest[at+len(old):]
	return true
}

// find is the place in the rest closest to where the hunk says that holds its lines, -1 for none. As in git apply, a hunk
// that begins at the first line belongs there, and one without context after it belongs at the end.
func (m *image) find(old [][]byte, h *gitdiff.TextFragment) int {
	first, last := 0, len(m.rest)-len(old)
	if h.TrailingContext == 0 {
		first = max(last, 0)
	}
	if h.OldPosition <= 1 {
		last = min(last, -len(m.done))
	}
	start := min(max(int(h.NewPosition)-1-len(m.done), first), last)
	for away := 0; start-away >= first || start+away <= last; away++ {
		if at := start - away; at >= first && at <= last && m.holds(old, at) {
			return at
		}
		if at := start + away; at >= first && at <= last && m.holds(old, at) {
			return at
		}
	}
	return -1
}

func (m *image) holds(old [][]byte, at int) bool {
	for i, line := range old {
		if !bytes.Equal(m.rest[at+i], line) {
			return false
		}
	}
	return true
}

// applyBinary makes a file of binary data.
func applyBinary(content []byte, b *gitdiff.BinaryFragment) ([]byte, error) {
	var out bytes.Buffer
	a := gitdiff.NewBinaryApplier(&out, bytes.NewReader(content), gitdiff.WithMaxBinaryFragmentBytes(MaxBinary))
	if err := a.ApplyFragment(b); err != nil {
		var other *gitdiff.Conflict
		if errors.As(err, &other) {
			return nil, fmt.Errorf("the binary delta is for another file than the one of %d bytes that is there", len(content))
		}
		return nil, errors.New("the binary delta is damaged, or for another file")
	}
	return out.Bytes(), nil
}
