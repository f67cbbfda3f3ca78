package diff

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// statBar is how wide the bars of Stat are at most, in characters.
const statBar = 40

// Stat is a summary for people: a line for each changed path with its added and removed lines, and one with the sums.
func Stat(files []File) string {
	files = worthALine(files)
	most, width := 1, 0
	insertions, deletions := 0, 0
	for _, f := range files {
		width = max(width, len(f.name()))
		if f.Added != nil {
			insertions += *f.Added
			deletions += *f.Deleted
			most = max(most, *f.Added+*f.Deleted)
		}
	}
	width = min(width, 50)
	var b strings.Builder
	for _, f := range files {
		what := f.what()
		if f.lines() > 0 {
			what = fmt.Sprintf("%4d %s%s", f.lines(), bar('+', *f.Added, most), bar('-', *f.Deleted, most))
		}
		fmt.Fprintf(&b, " %-*s | %s\n", width, f.name(), what)
	}
	fmt.Fprintf(&b, " %s, %s, %s\n", number(len(files), "path changed", "paths changed"),
		number(insertions, "insertion(+)", "insertions(+)"), number(deletions, "deletion(-)", "deletions(-)"))
	return b.String()
}

// NameStatus is a line for each changed path as `git diff --name-status` has it: letter, tab, name; of a renamed one both names.
func NameStatus(files []File) string {
	var b strings.Builder
	for _, f := range worthALine(files) {
		switch letter := map[Kind]string{Added: "A", Deleted: "D", Modified: "M", TypeChanged: "T"}[f.Kind]; letter {
		case "":
			fmt.Fprintf(&b, "R%03d\t%s\t%s\n", f.Similarity, Quote(string(f.OldPath)), Quote(string(f.Path)))
		default:
			fmt.Fprintf(&b, "%s\t%s\n", letter, Quote(string(f.Path)))
		}
	}
	return b.String()
}

// worthALine leaves out directories that came or went with what is in them.
func worthALine(files []File) []File {
	return slices.DeleteFunc(slices.Clone(files), parentsOf(files).imply)
}

// parents are the directories that hold something changed: on the new side, and on the old.
type parents [2]map[layer.Path]bool

func parentsOf(files []File) parents {
	p := parents{{}, {}}
	for _, f := range files {
		if f.New != nil && f.Path != "." {
			p[0][dirOf(f.Path)] = true
		}
		if f.Old != nil && f.Path != "." {
			p[1][dirOf(cmp.Or(f.OldPath, f.Path))] = true
		}
	}
	return p
}

func dirOf(p layer.Path) layer.Path { return layer.Path(path.Dir(string(p))) }

// imply tells whether a directory came or went with what is in it, so that it goes without saying.
func (p parents) imply(f File) bool {
	switch f.Kind {
	case Added:
		return f.New.Type == layer.Dir && f.New.Mode == "0755" && p[0][f.Path]
	case Deleted:
		return f.Old.Type == layer.Dir && p[1][f.Path]
	}
	return false
}

func (f File) name() string {
	if f.OldPath != "" {
		return Quote(string(f.OldPath)) + " => " + Quote(string(f.Path))
	}
	return Quote(string(f.Path))
}

func (f File) lines() int {
	if f.Added == nil {
		return 0
	}
	return *f.Added + *f.Deleted
}

// what says in words what changed.
func (f File) what() string {
	e := f.New
	if e == nil {
		e = f.Old
	}
	switch {
	case f.Binary && f.Old != nil && f.New != nil:
		return fmt.Sprintf("Bin %d -> %d bytes", f.Old.Size, f.New.Size)
	case f.Binary:
		return fmt.Sprintf("Bin %s, %d bytes", f.Kind, e.Size)
	case f.lines() > 0:
		return fmt.Sprintf("+%d -%d", *f.Added, *f.Deleted)
	case f.Kind == Added || f.Kind == Deleted:
		return fmt.Sprintf("%s %s", noun(e), f.Kind)
	case f.Kind == TypeChanged:
		return fmt.Sprintf("%s -> %s", f.Old.Type, f.New.Type)
	}
	var parts []string
	if f.Kind == Renamed {
		parts = append(parts, "renamed")
	}
	for _, c := range f.Changed {
		switch c {
		case "mode":
			c = fmt.Sprintf("mode %s -> %s", f.Old.Mode, f.New.Mode)
		case "content":
			c = fmt.Sprintf("%d -> %d bytes", f.Old.Size, f.New.Size)
		}
		parts = append(parts, c)
	}
	return strings.Join(parts, ", ")
}

// noun is a kind of thing as people call it.
func noun(s *Side) string {
	switch {
	case s.Type == layer.File && s.Size == 0:
		return "empty file"
	case s.Type == layer.File:
		return fmt.Sprintf("file of %d bytes", s.Size)
	case s.Type == layer.Dir:
		return "directory"
	case s.Type == layer.Symlink:
		return "link"
	}
	return string(s.Type)
}

// bar is n of most in characters, at least one of what is there at all.
func bar(c byte, n, most int) string {
	if most > statBar && n > 0 {
		n = max(1, n*statBar/most)
	}
	return strings.Repeat(string(c), n)
}

func number(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
