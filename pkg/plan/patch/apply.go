package patch

import (
	"fmt"
	"maps"
	"slices"
)

// fileType is what a path is; its zero is unknown.
type fileType int

const (
	regular fileType = iota + 1
	link
)

// Modes as git writes them: the type of a file, and the one permission it keeps.
const (
	typeMask   = 0o170000
	modeFile   = 0o100000
	modeLink   = 0o120000
	modeModule = 0o160000
	ownerExec  = 0o100
	allExec    = 0o111
	allRead    = 0o444
	plainFile  = 0o644
	execFile   = 0o755
)

func typeOf(mode uint32) (t fileType, exec bool, why string) {
	switch mode & typeMask {
	case modeFile:
		return regular, mode&ownerExec != 0, ""
	case modeLink:
		return link, false, ""
	case modeModule:
		return 0, false, "changes a submodule, which a patch cannot: run git in a step"
	}
	if mode == 0 {
		return 0, false, ""
	}
	return 0, false, fmt.Sprintf("mode %o is none of a file or link: git writes 100644, 100755 or 120000", mode)
}

// File is a regular file or a symbolic link.
type File struct {
	// Link: Content is the text of a symbolic link, and Mode means nothing.
	Link bool
	// Mode is the permission bits.
	Mode    uint32
	Content []byte
}

// Change is one path as it is to be.
type Change struct {
	Path string
	// File is nil where the path goes.
	File *File
}

// Lookup returns what is at a path now, nil when nothing is. What is neither file nor link, and a path by way of a
// link, is an error.
type Lookup func(path string) (*File, error)

// Apply computes the changes, in the byte order of their paths. With an *Error, or an error of look, there are none.
func (s *Set) Apply(look Lookup) ([]Change, error) {
	t := &tree{look: look, before: map[string]*File{}, after: map[string]*File{}, leaving: map[string]bool{}}
	for _, f := range s.files {
		if f.kind == remove || f.kind == rename {
			t.leaving[f.old] = true
		}
	}
	for _, f := range s.files {
		if err := t.apply(f); err != nil {
			return nil, err
		}
	}
	return t.changes(), nil
}

// tree is the files before the diff and, as far as it is applied, after.
type tree struct {
	look          Lookup
	before, after map[string]*File
	leaving       map[string]bool // what some file of the diff deletes or renames
}

func (t *tree) original(p string) (*File, error) {
	f, known := t.before[p]
	if known {
		return f, nil
	}
	f, err := t.look(p)
	if err == nil {
		t.before[p] = f
	}
	return f, err
}

func (t *tree) apply(f file) error {
	from, err := t.preimage(f)
	if err != nil {
		return err
	}
	var content []byte
	if from != nil {
		content = from.Content
	}
	if content, err = f.rewrite(content); err != nil {
		return err
	}
	if f.kind == remove {
		if len(content) > 0 {
			return &Error{Path: f.old, Reason: "the diff deletes it, but not all that it holds now"}
		}
		t.after[f.old] = nil
		return nil
	}
	if f.kind != modify {
		if err := t.free(f.new); err != nil {
			return err
		}
	}
	if _, again := t.after[f.old]; f.kind == rename && !again {
		t.after[f.old] = nil
	}
	t.after[f.new] = f.result(from, content)
	return nil
}

// preimage is the file that a section changes, nil for a new one. Renames and copies start from what was there before
// the diff, whatever its order; other changes from what the sections before them made.
func (t *tree) preimage(f file) (*File, error) {
	if f.kind == create {
		return nil, nil
	}
	from, err := t.original(f.old)
	if err != nil {
		return nil, err
	}
	if made, touched := t.after[f.old]; touched && f.kind != rename && f.kind != duplicate {
		if made == nil {
			return nil, &Error{Path: f.old, Reason: "is changed after the diff itself took it away"}
		}
		from = made
	}
	switch {
	case from == nil:
		return nil, &Error{Path: f.old, Reason: "does not exist"}
	case f.oldType == link && !from.Link:
		return nil, &Error{Path: f.old, Reason: "is a regular file, the diff is for a symbolic link"}
	case from.Link && (f.oldType == regular || f.oldType == 0 && f.newType == regular):
		return nil, &Error{Path: f.old, Reason: "is a symbolic link, the diff is for a regular file"}
	}
	return from, nil
}

// free tells whether something new may come to a path.
func (t *tree) free(p string) error {
	made, touched := t.after[p]
	if touched && made == nil {
		return nil
	}
	before, err := t.original(p)
	if err != nil {
		return err
	}
	if touched || before != nil && !t.leaving[p] {
		return &Error{Path: p, Reason: "exists already"}
	}
	return nil
}

// result is the file with its new content. Of a mode the diff only says whether the owner may execute.
func (f file) result(from *File, content []byte) *File {
	out := &File{Content: content, Mode: plainFile}
	if from != nil {
		out.Link, out.Mode = from.Link, from.Mode
	}
	switch {
	case f.newType == link:
		out.Link = true
	case f.newType != regular:
	case from == nil && f.exec:
		out.Mode = execFile
	case f.exec && out.Mode&ownerExec == 0:
		out.Mode |= ownerExec | out.Mode&allRead>>2
	case !f.exec:
		out.Mode &^= allExec
	}
	return out
}

func (t *tree) changes() []Change {
	var out []Change
	for _, p := range slices.Sorted(maps.Keys(t.after)) {
		now := t.after[p]
		if now == nil && t.before[p] == nil {
			continue // came and went
		}
		out = append(out, Change{Path: p, File: now})
	}
	return out
}
