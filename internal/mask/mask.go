// Package mask replaces known secrets by *** in what people and logs get to see: in
// streams, also where a secret is cut by the border of a chunk, and in texts.
//
// It must not know where secrets come from or what the texts are about. It is no boundary:
// who wants to print a secret in a form that is not known here can.
package mask

import (
	"io"
	"strings"
)

// Replacement is what stands for a secret, or for several that overlap.
const Replacement = "***"

// Set is what to mask. The zero value and nil mask nothing. It is safe for concurrent use.
type Set struct {
	nodes []node // of an Aho-Corasick automaton; 0 is its root
	first [256]int32
	wide  map[int32]*[256]int32 // children of nodes that have many, by byte
	skip  skipper
}

// node is one prefix of one or more patterns.
type node struct {
	child, sibling int32 // 0: none
	fail           int32 // the longest other prefix that this one ends with
	depth          int32 // bytes of the prefix
	match          int32 // bytes of the longest pattern that it ends with, 0: none
	shortest       int32 // bytes of the shortest pattern that begins with it
	b              byte
	many           bool // its children are in wide too
}

// fewChildren is how many children are looked for one after another.
const fewChildren = 24

// New makes a set of secrets. Values that are too short to be secret (see MinLength) mask nothing.
func New(secrets ...[]byte) *Set { return NewSearch(MinLength, secrets...) }

// Empty tells whether the set has no secret.
func (s *Set) Empty() bool { return s == nil || len(s.nodes) <= 1 }

func (s *Set) add(pattern string) {
	at := int32(0)
	size := int32(len(pattern))
	for i := range len(pattern) {
		next := s.child(at, pattern[i])
		if next == 0 {
			next = int32(len(s.nodes))
			s.nodes = append(s.nodes, node{b: pattern[i], depth: s.nodes[at].depth + 1, sibling: s.nodes[at].child, shortest: size})
			s.nodes[at].child = next
			s.index(at, next)
		}
		at = next
		s.nodes[at].shortest = min(s.nodes[at].shortest, size)
	}
	s.nodes[at].match = size
}

// index makes a new child be found at once where there are many.
func (s *Set) index(at, next int32) {
	b := s.nodes[next].b
	switch {
	case at == 0:
		s.first[b] = next
		return
	case s.nodes[at].many:
		s.wide[at][b] = next
		return
	}
	n := 0
	for c := next; c != 0; c = s.nodes[c].sibling {
		n++
	}
	if n <= fewChildren {
		return
	}
	if s.wide == nil {
		s.wide = map[int32]*[256]int32{}
	}
	s.wide[at], s.nodes[at].many = &[256]int32{}, true
	for c := next; c != 0; c = s.nodes[c].sibling {
		s.wide[at][s.nodes[c].b] = c
	}
}

func (s *Set) child(at int32, b byte) int32 {
	switch {
	case at == 0:
		return s.first[b]
	case s.nodes[at].many:
		return s.wide[at][b]
	}
	for c := s.nodes[at].child; c != 0; c = s.nodes[c].sibling {
		if s.nodes[c].b == b {
			return c
		}
	}
	return 0
}

// link finds where each prefix goes on when the next byte does not fit, breadth first.
func (s *Set) link() {
	for queue := []int32{0}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		for c := s.nodes[at].child; c != 0; c = s.nodes[c].sibling {
			if at != 0 {
				s.nodes[c].fail = s.step(s.nodes[at].fail, s.nodes[c].b)
			}
			s.nodes[c].match = max(s.nodes[c].match, s.nodes[s.nodes[c].fail].match)
			queue = append(queue, c)
		}
	}
}

// step is the longest prefix of a pattern that ends with b, when at was before it.
func (s *Set) step(at int32, b byte) int32 {
	for {
		if c := s.child(at, b); c != 0 || at == 0 {
			return c
		}
		at = s.nodes[at].fail
	}
}

// Text masks a whole text.
func (s *Set) Text(text string) string {
	if s.Empty() {
		return text
	}
	var out strings.Builder
	w := s.Writer(&out)
	io.WriteString(w, text)
	w.Close()
	return out.String()
}

// Writer masks what is written to it before it writes it on. What might be the beginning of
// a secret, so less than the longest one, is held back until more comes, or Close. It is not
// safe for concurrent use.
type Writer struct {
	set   *Set
	to    io.Writer
	state int32
	held  []byte // not written on yet: what state stands for
	spans []span // occurrences in held that are not written on yet
	skip  int    // so many bytes of held are covered by a Replacement that was written
	out   []byte
	err   error
}

// Writer returns a masking writer in front of another, which it does not close.
func (s *Set) Writer(to io.Writer) *Writer { return &Writer{set: s, to: to} }

// Write masks p. It reports all of p as written unless the writer behind failed; then nothing is written any more.
func (w *Writer) Write(p []byte) (int, error) {
	if w.set.Empty() {
		return w.to.Write(p)
	}
	if w.err != nil {
		return 0, w.err
	}
	w.scan(p)
	if w.err != nil {
		return 0, w.err
	}
	return len(p), nil
}

// span is an occurrence: offsets into held followed by the chunk.
type span struct{ from, to int }

// scan finds the secrets that end in p and writes on what is decided.
func (w *Writer) scan(p []byte) {
	before := len(w.held)
	for i := 0; i < len(p); i++ {
		if w.state == 0 {
			if i += w.set.quiet(p[i:]); i == len(p) {
				break
			}
		}
		w.state = w.set.step(w.state, p[i])
		if n := int(w.set.nodes[w.state].match); n > 0 {
			w.spans = merge(w.spans, span{before + i + 1 - n, before + i + 1})
		}
	}
	data := p
	if before > 0 {
		data = append(w.held, p...)
	}
	w.pass(data, len(data)-int(w.set.nodes[w.state].depth))
}

// merge adds an occurrence that ends last and swallows those that it overlaps.
func merge(spans []span, s span) []span {
	for n := len(spans); n > 0 && spans[n-1].to > s.from; n-- {
		s.from = min(s.from, spans[n-1].from)
		spans = spans[:n-1]
	}
	return append(spans, s)
}

// pass writes on data up to limit, where the next secret may begin, and holds the rest.
func (w *Writer) pass(data []byte, limit int) {
	w.out = w.out[:0]
	at, done := w.skip, 0
	for ; done < len(w.spans) && w.spans[done].from <= max(limit, at-1); done++ {
		s := w.spans[done]
		if s.from >= at {
			w.out = append(append(w.out, data[at:s.from]...), Replacement...)
		}
		at = max(at, s.to)
	}
	w.spans = append(w.spans[:0], w.spans[done:]...)
	for i := range w.spans {
		w.spans[i].from -= limit
		w.spans[i].to -= limit
	}
	switch {
	case at < limit && len(w.out) == 0:
		w.write(data[at:limit]) // the usual case: nothing to mask
	case at < limit:
		w.out = append(w.out, data[at:limit]...)
	}
	w.write(w.out)
	w.skip = max(at-limit, 0)
	w.held = append(w.held[:0], data[limit:]...)
}

func (w *Writer) write(p []byte) {
	if len(p) == 0 || w.err != nil {
		return
	}
	_, w.err = w.to.Write(p)
}

// Close writes on what was held back: the beginning of a secret that did not go on. When it
// is half of one or more it is masked, since a stream may be cut anywhere; so is a beginning
// within it. The writer must not be used again.
func (w *Writer) Close() error {
	if len(w.held) == 0 || w.err != nil {
		return w.err
	}
	size := len(w.held)
	for at := w.state; at != 0; at = w.set.nodes[at].fail {
		n := w.set.nodes[at]
		if depth := int(n.depth); depth >= MinLength && 2*n.depth >= n.shortest && size > w.skip {
			w.spans = merge(w.spans, span{size - depth, size})
			break
		}
	}
	w.state = 0
	w.pass(w.held, size)
	return w.err
}
