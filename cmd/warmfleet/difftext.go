package main

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/warmfleet/warmfleet/internal/termsafe"
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
	t, ok := w.(*tty)
	if !ok {
		return w
	}
	return &screen{w: t.file, colour: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
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
	out.Write(termsafe.AppendLine(nil, line))
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
