// Package termsafe makes text of unknown origin safe to show on a terminal: output of steps, names of files and branches,
// messages of programs. What a terminal would act on, or what would make a reader see other text than is there, is spelled
// out: control characters in caret form (^[), bytes that are not UTF-8 as <ff>, C1 controls, bidirectional overrides and
// other invisible marks as <U+202E>. Everything else is left as it is.
//
// What is not shown to a person is nobody's to change: callers decide who looks. The package knows nothing of terminals.
package termsafe

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Text is s with line breaks (LF) and tabs kept.
func Text(s string) string {
	return string(appendSafe(nil, []byte(s), true))
}

// Line is s in one line: line breaks and tabs are spelled out too.
func Line(s string) string {
	return string(appendSafe(nil, []byte(s), false))
}

// AppendLine appends one line without its end to dst; tabs are kept.
func AppendLine(dst, line []byte) []byte { return appendSafe(dst, line, true) }

// JSON is a JSON text with the same meaning, in which every character that Text would spell out is an escape sequence.
func JSON(text []byte) []byte {
	if utf8.Valid(text) && !bytes.ContainsFunc(text, func(r rune) bool { return r > ' ' && acts(r) }) {
		return text
	}
	out := make([]byte, 0, len(text)+16)
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && n == 1:
			out = append(out, `\ufffd`...) // as every reader of JSON takes it
		case r < ' ' || !acts(r): // unescaped controls are only white space between values
			out = append(out, text[:n]...)
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, hi, lo)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		text = text[n:]
	}
	return out
}

// appendSafe appends text; layout keeps LF and tabs.
func appendSafe(dst, text []byte, layout bool) []byte {
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && n == 1:
			dst = fmt.Appendf(dst, "<%02x>", text[0])
		case layout && (r == '\n' || r == '\t'), !acts(r):
			dst = append(dst, text[:n]...)
		case r < 0x80:
			dst = append(dst, '^', byte(r)^0x40)
		default:
			dst = fmt.Appendf(dst, "<U+%04X>", r)
		}
		text = text[n:]
	}
	return dst
}

// acts tells the characters that do more than to be seen: controls (C0, DEL, C1), line and paragraph separators, and marks
// of format. Left alone are the joiners that scripts and emoji need, and the marks that are seen before a number.
func acts(r rune) bool {
	switch {
	case r < ' ', r >= 0x7f && r < 0xa0:
		return true
	case r < 0xa0, r == 0x200c, r == 0x200d:
		return false
	case r == 0x2028, r == 0x2029:
		return true
	}
	return unicode.Is(unicode.Cf, r) && !unicode.Is(unicode.Prepended_Concatenation_Mark, r)
}

// Writer makes a stream safe, also where a character is split between two writes. CR LF is a line break, and a carriage
// return alone starts a new line, so that nothing that was shown is overwritten. It is not safe for concurrent use.
type Writer struct {
	w    io.Writer
	rest []byte // the begin of a character, or a carriage return that may belong to a line feed
}

// NewWriter writes what is safe to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write returns len(p) and nil unless w fails. Up to three bytes are kept back for the next Write or Flush.
func (s *Writer) Write(p []byte) (int, error) {
	text := p
	if len(s.rest) > 0 {
		text = append(s.rest, p...)
	}
	keep := incomplete(text)
	whole := text[:len(text)-keep]
	rest := append([]byte(nil), text[len(whole):]...)
	s.rest = rest
	return len(p), s.put(whole)
}

// Flush writes what was kept back.
func (s *Writer) Flush() error {
	rest := s.rest
	s.rest = nil
	return s.put(rest)
}

func (s *Writer) put(text []byte) error {
	if len(text) == 0 {
		return nil
	}
	if bytes.IndexByte(text, '\r') >= 0 {
		text = []byte(strings.ReplaceAll(strings.ReplaceAll(string(text), "\r\n", "\n"), "\r", "\n"))
	}
	_, err := s.w.Write(appendSafe(make([]byte, 0, len(text)+16), text, true))
	return err
}

// incomplete is how many bytes at the end can only be judged with what follows.
func incomplete(text []byte) int {
	if n := len(text); n > 0 && text[n-1] == '\r' {
		return 1
	}
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if tail := text[len(text)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}
