package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"unicode/utf8"
)

// ANSI colours as git gives them to the parts of a difference.
const (
	colourHead = "\x1b[1m"
	colourHunk = "\x1b[36m"
	colourOld  = "\x1b[31m"
	colourNew  = "\x1b[32m"
	colourOff  = "\x1b[m"
)

// diffWriter is where a difference goes: to a terminal so that it is safe to look at, to all else as it is.
func diffWriter(w io.Writer) io.Writer {
	f, ok := w.(*os.File)
	if !ok || !terminal(f) {
		return w
	}
	return &screen{w: w, colour: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

// screen shows a difference to a person: what a terminal would act on is spelled out, and lines have colours.
// Every line that it is given has to end.
type screen struct {
	w        io.Writer
	colour   bool
	old, new int // lines of the hunk that are still to come: a deleted "-- x" looks like a header
	rest     []byte
}

func (s *screen) Write(p []byte) (int, error) {
	var out bytes.Buffer
	s.rest = append(s.rest, p...)
	for {
		i := bytes.IndexByte(s.rest, '\n')
		if i < 0 {
			break
		}
		s.line(&out, s.rest[:i])
		s.rest = s.rest[i+1:]
	}
	_, err := s.w.Write(out.Bytes())
	return len(p), err
}

func (s *screen) line(out *bytes.Buffer, line []byte) {
	colour := s.colourOf(line)
	if !s.colour {
		colour = ""
	}
	out.WriteString(colour)
	spell(out, line)
	if colour != "" {
		out.WriteString(colourOff)
	}
	out.WriteByte('\n')
}

// colourOf follows hunks by their counts.
func (s *screen) colourOf(line []byte) string {
	if s.old > 0 || s.new > 0 {
		switch {
		case bytes.HasPrefix(line, []byte("-")):
			s.old--
			return colourOld
		case bytes.HasPrefix(line, []byte("+")):
			s.new--
			return colourNew
		case bytes.HasPrefix(line, []byte(" ")):
			s.old--
			s.new--
			return ""
		case bytes.HasPrefix(line, []byte(`\`)):
			return ""
		}
	}
	var x, y int
	if n, _ := fmt.Sscanf(string(line[:min(len(line), 80)]), "@@ -%d,%d +%d,%d @@", &x, &s.old, &y, &s.new); n == 4 {
		return colourHunk
	}
	s.old, s.new = 0, 0
	if bytes.HasPrefix(line, []byte(`\`)) {
		return ""
	}
	return colourHead
}

// spell writes text with everything that a terminal would act on made visible: control characters in caret form,
// bytes that are not UTF-8 as <ff>, other controls and marks that change the order of what is shown as <U+202E>.
func spell(out *bytes.Buffer, text []byte) {
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(out, "<%02x>", text[0])
		case r == '\t':
			out.WriteByte('\t')
		case r < 0x20 || r == 0x7f:
			out.WriteByte('^')
			out.WriteByte(byte(r) ^ 0x40)
		case r < 0xa0 && r > 0x7f, r == 0x061c, r == 0x200e, r == 0x200f, r == 0xfeff,
			r >= 0x2028 && r <= 0x202e, r >= 0x2066 && r <= 0x2069:
			fmt.Fprintf(out, "<U+%04X>", r)
		default:
			out.Write(text[:n])
		}
		text = text[n:]
	}
}
