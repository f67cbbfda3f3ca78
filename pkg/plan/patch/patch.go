// Package patch reads unified and git diffs and computes what they make of files, byte for byte.
//
// It says what git apply would say: context has to match exactly (there is no fuzz), a hunk that moved is
// found at the closest place where its lines are, and a diff that does not fit anywhere changes
// nothing at all. The package is pure: it gets the files as they are from its caller and returns them as they are to
// be. It must not know sandboxes, plans or where files are kept.
//
// Headers, hunks and binary data are read by go-gitdiff; see docs/adr/0008-diff-parser.md.
package patch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/bluekeyes/go-gitdiff/gitdiff"
)

// MaxBinary is the most bytes that one binary hunk, or the file it makes, may have.
const MaxBinary = 64 << 20

// maxFaults bounds what is looked for in a diff that is hostile, or none at all.
const maxFaults = 100

// Fault is why a diff cannot be applied to any tree.
type Fault struct {
	// Line of the diff, from 1.
	Line    int
	Message string
}

// Options of a reading.
type Options struct {
	// Strip is how many leading elements each path loses, as in git apply -p.
	Strip int
	// Check says what is wrong with a path after stripping, "" for nothing. Nil is no check.
	Check func(path string) string
}

// Set is the changes of a diff, file by file, in its order.
type Set struct{ files []file }

// file is one section of a diff.
type file struct {
	line     int // of its header
	old, new string
	kind     kind
	// oldType and newType are a file's or a link's, 0 where the diff does not say; exec is of newType.
	oldType, newType fileType
	exec             bool
	hunks            []*gitdiff.TextFragment
	binary           *gitdiff.BinaryFragment
}

type kind int

const (
	modify kind = iota
	create
	remove
	rename
	duplicate
)

// Parse reads a diff. All its faults are returned, as far as people would read them: one for each file, and a hundred or
// so in all. Then the Set is nil.
func Parse(diff string, o Options) (*Set, []Fault) {
	sections, faults := split(diff)
	s := &Set{}
	for i, sec := range sections {
		if len(faults) >= maxFaults {
			break
		}
		if sec.has(faults, sections[i+1:]) {
			continue // what the parser says would follow from that
		}
		f, fault := sec.parse(o)
		if fault != nil {
			faults = append(faults, *fault)
			continue
		}
		s.files = append(s.files, f)
	}
	if len(sections) == 0 && len(faults) == 0 {
		faults = append(faults, Fault{1, "holds no diff: give file headers (diff --git, or --- and +++) and hunks (@@ -1,2 +1,3 @@)"})
	}
	if len(faults) > 0 {
		slices.SortStableFunc(faults, func(a, b Fault) int { return a.Line - b.Line })
		return nil, faults
	}
	return s, nil
}

// has tells whether a fault lies in a section; next are those behind it.
func (sec section) has(faults []Fault, next []section) bool {
	return slices.ContainsFunc(faults, func(f Fault) bool {
		return f.Line >= sec.line && (len(next) == 0 || f.Line < next[0].line)
	})
}

// Paths are all that the diff touches, before and after, each once, sorted.
func (s *Set) Paths() []string {
	var out []string
	for _, f := range s.files {
		out = append(out, f.old, f.new)
	}
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), func(p string) bool { return p == "" })
}

// parserLine is how go-gitdiff begins its errors.
var parserLine = regexp.MustCompile(`^gitdiff: line (\d+): `)

// parse reads one section.
func (sec section) parse(o Options) (file, *Fault) {
	f := file{line: sec.line}
	text := requoted(sec.text)
	// The rewritten header has one element to strip where the diff has none.
	extra := o.Strip
	if sec.git && o.Strip == 0 {
		text = prefixed(text)
	}
	if sec.git {
		extra = max(o.Strip-1, 0) // the parser strips the first
	}
	// An empty line more ends binary data, and stands for an empty context line that an editor cut off.
	parsed, _, err := gitdiff.Parse(strings.NewReader(text + "\n"))
	if err != nil {
		return f, sec.parserFault(err)
	}
	if len(parsed) != 1 {
		return f, &Fault{sec.line, "is no file header that can be read"}
	}
	g := parsed[0]
	f.hunks = g.TextFragments
	for _, why := range []string{f.classify(g), f.names(g, extra, o), f.modes(g), f.checkHunks(), f.readBinary(g), f.checkEffect()} {
		if why != "" {
			return f, &Fault{sec.line, why}
		}
	}
	return f, nil
}

func (sec section) parserFault(err error) *Fault {
	text, line := err.Error(), sec.line
	if m := parserLine.FindStringSubmatch(text); m != nil {
		n, _ := strconv.Atoi(m[1])
		line, text = sec.line+n-1, strings.TrimPrefix(text, m[0])
	}
	return &Fault{min(line, sec.line+strings.Count(sec.text, "\n")), strings.TrimPrefix(text, "gitdiff: ")}
}

func (f *file) classify(g *gitdiff.File) string {
	for is, k := range map[kind]bool{create: g.IsNew, remove: g.IsDelete, rename: g.IsRename, duplicate: g.IsCopy} {
		if !k {
			continue
		}
		if f.kind != modify {
			return "says more than one of new, deleted, renamed and copied"
		}
		f.kind = is
	}
	return ""
}

// names strips and checks the paths. Old is "" for a new file, new is "" for a deleted one.
func (f *file) names(g *gitdiff.File, strip int, o Options) string {
	var why string
	if f.kind != create {
		if f.old, why = stripped(g.OldName, strip, o); why != "" {
			return why
		}
	}
	if f.kind != remove {
		if f.new, why = stripped(g.NewName, strip, o); why != "" {
			return why
		}
	}
	if f.kind == modify && f.old != f.new {
		return fmt.Sprintf("names %q before and %q after without rename or copy lines", f.old, f.new)
	}
	return ""
}

func stripped(name string, n int, o Options) (string, string) {
	rest := name
	for range n {
		_, after, ok := strings.Cut(rest, "/")
		if !ok {
			return "", fmt.Sprintf("strip %d leaves nothing of %q: give another strip", o.Strip, name)
		}
		rest = strings.TrimLeft(after, "/")
	}
	why := ""
	switch {
	case rest == "" || rest == os.DevNull:
		why = "names no file"
	case strings.ContainsRune(rest, 0):
		why = "holds a path with a NUL byte, which no path can"
	case o.Check != nil:
		why = o.Check(rest)
	}
	return path.Clean(rest), why
}

func (f *file) modes(g *gitdiff.File) string {
	var why string
	if f.oldType, _, why = typeOf(uint32(g.OldMode)); why != "" {
		return why
	}
	if f.newType, f.exec, why = typeOf(uint32(g.NewMode)); why != "" {
		return why
	}
	if f.kind == create && f.newType == 0 {
		f.newType = regular
	}
	if f.kind != create && f.oldType != 0 && f.newType != 0 && f.oldType != f.newType {
		return "changes a file into a link or back: write it as a deletion and a creation, as git does"
	}
	return ""
}

// checkHunks refuses what the parser takes but no file can hold.
func (f *file) checkHunks() string {
	for i, h := range f.hunks {
		if h.OldPosition < 0 || h.NewPosition < 0 || h.OldLines < 0 || h.NewLines < 0 {
			return fmt.Sprintf("hunk %d: has a negative line number", i+1)
		}
		for _, side := range []func(gitdiff.Line) bool{gitdiff.Line.Old, gitdiff.Line.New} {
			ended := false
			for _, l := range h.Lines {
				if ended && side(l) {
					return fmt.Sprintf("hunk %d: a line follows the one that ends its file without a newline", i+1)
				}
				ended = ended || side(l) && l.NoEOL()
			}
		}
	}
	return ""
}

func (f *file) readBinary(g *gitdiff.File) string {
	switch b := g.BinaryFragment; {
	case !g.IsBinary:
		return ""
	case b == nil:
		return "says that binary files differ, but not how: make it with git diff --binary"
	case b.Size > MaxBinary:
		return fmt.Sprintf("binary data of %d bytes, at most %d are read", b.Size, MaxBinary)
	default:
		if _, err := io.Copy(io.Discard, b.Data()); err != nil {
			return fmt.Sprintf("binary data is damaged: %v", err)
		}
		f.binary = b
		return ""
	}
}

func (f *file) checkEffect() string {
	switch {
	case len(f.hunks) > 0 || f.binary != nil || f.kind != modify || f.newType != 0:
		return ""
	default:
		return "changes nothing: it has no hunk, no binary data and no new mode"
	}
}

// ErrConflict is matched by every Error: the files are not such that the diff could be applied.
var ErrConflict = errors.New("patch: does not apply")

// Error says why a diff cannot be applied to the files as they are.
type Error struct {
	Path string
	// Hunk is counted from 1, 0 when it is not about one; Header is its first line.
	Hunk   int
	Header string
	Reason string
}

func (e *Error) Error() string {
	if e.Hunk > 0 {
		return fmt.Sprintf("%q: hunk %d (%s): %s", e.Path, e.Hunk, e.Header, e.Reason)
	}
	return fmt.Sprintf("%q: %s", e.Path, e.Reason)
}

// Is makes every Error an ErrConflict.
func (e *Error) Is(target error) bool { return target == ErrConflict }
