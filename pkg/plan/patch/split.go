package patch

import (
	"strconv"
	"strings"
)

// section is the part of a diff that is about one file.
type section struct {
	line int // of the diff where it begins, from 1
	git  bool
	text string
}

// splitter walks the lines of a diff. It only tells headers from what merely looks like one inside a hunk;
// what they say is the parser's business.
type splitter struct {
	lines    []string
	sections []section
	starts   []int // of the sections, in bytes
	faults   []Fault
	named    bool // the present section has its --- and +++ lines
	// old and new are the lines of the present hunk, which begins at line hunk, that still have to come.
	old, new int
	hunk     int
}

// split cuts a diff into its files. What stands before the first and between two of them is no part of a diff, as
// the text of a mail is not.
func split(diff string) ([]section, []Fault) {
	if !strings.HasSuffix(diff, "\n") {
		diff += "\n" // what a file lacks at its end is said by a line of its own
	}
	s := &splitter{lines: strings.SplitAfter(diff, "\n")}
	s.lines = s.lines[:len(s.lines)-1]
	at := 0
	for i, line := range s.lines {
		if before := len(s.sections); !s.body(line) {
			s.header(i, line)
			if len(s.sections) > before {
				s.starts = append(s.starts, at)
			}
		}
		at += len(line)
	}
	for i, start := range s.starts {
		end := len(diff)
		if i+1 < len(s.starts) {
			end = s.starts[i+1]
		}
		s.sections[i].text = diff[start:end]
	}
	if s.old != 1 || s.new != 1 { // an empty context line may have been cut off at the end
		s.miscounted()
	}
	return s.sections, s.faults
}

// miscounted reports a hunk that ended before, or beyond, what its header says.
func (s *splitter) miscounted() {
	if s.old != 0 || s.new != 0 {
		s.fault(s.hunk, "hunk has other numbers of lines than its header says: correct the counts behind the commas")
	}
	s.old, s.new = 0, 0
}

// body tells whether a line belongs to the hunk before it.
func (s *splitter) body(line string) bool {
	if s.old <= 0 && s.new <= 0 {
		return false
	}
	switch line[0] {
	case ' ', '\n':
		s.old, s.new = s.old-1, s.new-1
	case '-':
		s.old--
	case '+':
		s.new--
	case '\\':
	default:
		s.miscounted()
		return false
	}
	if s.old < 0 || s.new < 0 {
		s.miscounted()
	}
	return true
}

func (s *splitter) header(i int, line string) {
	inside := len(s.sections) > 0
	switch {
	case strings.HasPrefix(line, "diff --git "):
		s.sections = append(s.sections, section{line: i + 1, git: true})
		s.named = false
	case strings.HasPrefix(line, "--- ") && strings.HasPrefix(s.at(i+1), "+++ "):
		if !strings.HasPrefix(s.at(i+2), "@@ -") {
			s.fault(i, "--- and +++ lines without a hunk after them: hunks begin with @@ -1,2 +1,3 @@")
		}
		if !inside || !s.sections[len(s.sections)-1].git || s.named {
			s.sections = append(s.sections, section{line: i + 1})
		}
		s.named = true
	case strings.HasPrefix(line, "@@"):
		if !inside {
			s.fault(i, "hunk without a file header before it: write --- and +++ lines")
			return
		}
		old, new, ok := hunkLengths(line)
		if !ok {
			s.fault(i, "hunk header cannot be read: write @@ -1,2 +1,3 @@ with the line numbers and counts of both sides")
		}
		s.old, s.new, s.hunk = old, new, i
	}
}

func (s *splitter) at(i int) string {
	if i < len(s.lines) {
		return s.lines[i]
	}
	return ""
}

func (s *splitter) fault(i int, message string) {
	s.faults = append(s.faults, Fault{i + 1, message})
}

// hunkLengths reads how many lines of either side follow a hunk's header.
func hunkLengths(line string) (old, new int, ok bool) {
	rest, isHunk := strings.CutPrefix(line, "@@ -")
	ranges, _, closed := strings.Cut(rest, " @@")
	before, after, both := strings.Cut(ranges, " +")
	if !isHunk || !closed || !both {
		return 0, 0, false
	}
	old, ok = length(before)
	new, also := length(after)
	return old, new, ok && also
}

func length(r string) (int, bool) {
	start, count, given := strings.Cut(r, ",")
	if !given {
		count = "1"
	}
	_, err := strconv.ParseUint(start, 10, 31)
	n, failed := strconv.ParseUint(count, 10, 31)
	return int(n), err == nil && failed == nil
}

// requoted writes a backslash of a quoted path as its octal code: the parser takes a quote after one for a part of the
// path, whatever stands before it.
func requoted(text string) string {
	lines := strings.SplitAfter(text, "\n")
	for i, line := range lines {
		if endsHeader(line) {
			break
		}
		if !strings.Contains(line, `"`) {
			continue
		}
		var b strings.Builder
		for rest := line; rest != ""; {
			n := 1
			if rest[0] == '\\' {
				n = min(2, len(rest))
			}
			if rest[:n] == `\\` {
				b.WriteString(`\134`)
			} else {
				b.WriteString(rest[:n])
			}
			rest = rest[n:]
		}
		lines[i] = b.String()
	}
	return strings.Join(lines, "")
}

// endsHeader tells whether a line of a section is the first behind its header.
func endsHeader(line string) bool {
	return strings.HasPrefix(line, "@@ -") || strings.HasPrefix(line, "GIT binary patch")
}

// prefixed gives the paths of a git header made with --no-prefix the element that the parser strips.
func prefixed(text string) string {
	lines := strings.SplitAfter(text, "\n")
	for i, line := range lines {
		switch {
		case i == 0:
			lines[i] = prefixedNames(line)
		case strings.HasPrefix(line, "--- "):
			lines[i] = "--- " + withPrefix(line[4:])
		case strings.HasPrefix(line, "+++ "):
			lines[i] = "+++ " + withPrefix(line[4:])
		case endsHeader(line):
			return strings.Join(lines, "")
		}
	}
	return strings.Join(lines, "")
}

func withPrefix(name string) string {
	switch {
	case strings.HasPrefix(name, "/dev/null"):
		return name
	case strings.HasPrefix(name, `"`):
		return `"p/` + name[1:]
	}
	return "p/" + name
}

// prefixedNames is the first line of a git header. Where both names are not the same, other lines tell them.
func prefixedNames(line string) string {
	const begin = "diff --git "
	names := strings.TrimSuffix(strings.TrimPrefix(line, begin), "\n")
	half := len(names) / 2
	if len(names)%2 == 1 && names[half] == ' ' && names[:half] == names[half+1:] {
		return begin + withPrefix(names[:half]) + " " + withPrefix(names[half+1:]) + "\n"
	}
	return begin + "p/old p/new\n"
}
