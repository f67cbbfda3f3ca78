package plan

import (
	"bytes"
	"unicode/utf8"
)

// maxDepth bounds nesting; the format itself needs six levels.
const maxDepth = 64

// maxValues bounds the scalars, lists and mappings of a plan; BodyLimit leaves room for fewer.
const maxValues = 100_000

const emptyPlan = `the plan is empty: begin with "version: 1" and "steps:"`

// shape is what a value in the text is.
type shape string

const (
	null   shape = "nothing"
	truth  shape = "true or false"
	number shape = "a number"
	text   shape = "text"
	list   shape = "a list"
	object shape = "a mapping"
)

// node is a value with its place in the text: the common form of YAML and JSON.
type node struct {
	shape shape
	at    position
	// text is a scalar's value; of a number its decimal digits.
	text    string
	items   []*node
	members []member
}

type member struct {
	key   string
	at    position
	value *node
}

// cursor turns byte offsets into lines and columns. It only moves forward, so that all the
// positions of a text cost one pass, however long its lines are.
type cursor struct {
	src    []byte
	offset int
	at     position
}

func newCursor(src []byte) *cursor { return &cursor{src: src, at: position{1, 1}} }

// position counts columns in characters, as editors do.
func (c *cursor) position(offset int) position {
	for c.offset < min(offset, len(c.src)) {
		b := c.src[c.offset]
		switch {
		case b == '\n':
			c.at = position{c.at.line + 1, 1}
		case utf8.RuneStart(b):
			c.at.column++
		}
		c.offset++
	}
	return c.at
}

// checkText reports sources that are no text of a sane size before a parser sees them.
func checkText(r *report, src []byte) bool {
	switch {
	case len(src) > SourceLimit:
		r.errs.tooLarge = true
		r.addf("", "the %s has %d bytes, at most %d are read: put large files into the repository instead", r.noun, len(src), SourceLimit)
	case len(bytes.TrimSpace(src)) == 0:
		r.addf("", "%s", r.empty)
	case !utf8.Valid(src):
		at := newCursor(src).position(invalidOffset(src))
		r.addAt(at, "", "the %s is not UTF-8 text: save it as UTF-8", r.noun)
	default:
		return true
	}
	return false
}

func invalidOffset(src []byte) int {
	for i := 0; i < len(src); {
		c, size := utf8.DecodeRune(src[i:])
		if c == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return len(src)
}
