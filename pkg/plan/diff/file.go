package diff

import (
	"fmt"
	"strings"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// Kind says what happened to a path.
type Kind string

// The kinds. A renamed file has the same or similar bytes under another name.
const (
	Added       Kind = "added"
	Deleted     Kind = "deleted"
	Modified    Kind = "modified"
	Renamed     Kind = "renamed"
	TypeChanged Kind = "type_changed"
)

// File describes one changed path. Its JSON form is published: fields may be added, none renamed.
type File struct {
	Note
	Kind Kind `json:"kind"`
	// Changed names what differs where there are two sides: type, content, target, device, mode, owner, attributes.
	Changed []string `json:"changed,omitempty"`
	// Old and New are nil where the path does not exist.
	Old *Side `json:"old"`
	New *Side `json:"new"`
}

// Note is what only reading both sides tells of a changed path. Its JSON form is stored: fields may be added, none renamed.
type Note struct {
	Path    layer.Path `json:"path"`
	OldPath layer.Path `json:"old_path,omitempty"` // of a renamed one
	// Similarity is percent of the larger side, of a renamed one.
	Similarity int `json:"similarity,omitempty"`
	// Added and Deleted count lines, those of the text of a symbolic link among them; nil where they were not counted: what is
	// binary, too large, has no lines, or was left out for its cost.
	Added   *int `json:"added"`
	Deleted *int `json:"deleted"`
	Binary  bool `json:"binary"`
	// Omitted is true for what the limit on the text left out.
	Omitted bool `json:"omitted,omitempty"`
}

// Side is a path before or after.
type Side struct {
	Type layer.Type `json:"type"`
	// Mode is the twelve permission bits as four octal digits.
	Mode string `json:"mode"`
	// Size is bytes of a regular file, 0 otherwise.
	Size int64 `json:"size"`
	// SHA256 is the digest of a regular file's content in hex.
	SHA256 string `json:"sha256,omitempty"`
	// Target is the text of a symbolic link.
	Target layer.Path `json:"target,omitempty"`
	// Owner is "uid:gid" where the file is not of whoever runs the sandbox.
	Owner string `json:"owner,omitempty"`
}

// Join makes the whole description of changes from what was noted of them. A change without a note is described
// without; one that another's note says was renamed away is not.
func Join(changes []layer.Change, notes []Note) []File {
	byPath, before, gone := map[layer.Path]Note{}, map[layer.Path]*layer.Entry{}, map[layer.Path]bool{}
	for _, n := range notes {
		byPath[n.Path] = n
		if n.OldPath != "" {
			gone[n.OldPath] = true
		}
	}
	for _, ch := range changes {
		before[ch.Path] = ch.Before
	}
	files := []File{}
	for _, ch := range changes {
		n, noted := byPath[ch.Path]
		if !noted {
			n.Path = ch.Path
		}
		if gone[ch.Path] && ch.After == nil {
			continue
		}
		if n.OldPath != "" {
			ch.Before = before[n.OldPath]
		}
		files = append(files, describe(ch, n))
	}
	return files
}

// describe is a change with what is known of it; of a renamed one Before is what was under the old name.
func describe(ch layer.Change, n Note) File {
	f := File{Note: n, Kind: Modified, Old: side(ch.Before), New: side(ch.After)}
	switch {
	case ch.Before == nil:
		f.Kind = Added
	case ch.After == nil:
		f.Kind = Deleted
	case n.OldPath != "":
		f.Kind = Renamed
	case ch.Before.Type != ch.After.Type:
		f.Kind = TypeChanged
	}
	if ch.Before == nil || ch.After == nil {
		return f
	}
	b, a := ch.Before, ch.After
	for _, d := range []struct {
		name string
		yes  bool
	}{
		{"type", b.Type != a.Type},
		{"content", b.Type == layer.File && a.Type == layer.File && b.Digest != a.Digest},
		{"target", b.Type == a.Type && b.Link != a.Link},
		{"device", b.Type == a.Type && b.Rdev != a.Rdev},
		{"mode", b.Type == a.Type && b.Mode != a.Mode},
		{"owner", owner(b) != owner(a)},
		{"attributes", !sameXattrs(b, a)},
	} {
		if d.yes {
			f.Changed = append(f.Changed, d.name)
		}
	}
	return f
}

func side(e *layer.Entry) *Side {
	if e == nil {
		return nil
	}
	return &Side{
		Type: e.Type, Mode: fmt.Sprintf("%04o", e.Mode), Size: e.Size, SHA256: strings.TrimPrefix(e.Digest, "sha256:"),
		Target: layer.Path(e.Link), Owner: owner(e),
	}
}

// owner is "uid:gid", or "" for whoever runs the sandbox.
func owner(e *layer.Entry) string {
	if e.UID == layer.Self && e.GID == layer.Self {
		return ""
	}
	name := func(id int) string {
		if id == layer.Self {
			return "self"
		}
		return fmt.Sprint(id)
	}
	return name(e.UID) + ":" + name(e.GID)
}

// Text is text of any bytes. In JSON it is a string, or where that can't be, as a layer.Path is written that isn't UTF-8.
type Text string

// MarshalText writes what UnmarshalText reads.
func (t Text) MarshalText() ([]byte, error) { return layer.Path(t).MarshalText() }

// UnmarshalText reads what MarshalText wrote, and any string that does not begin with NUL.
func (t *Text) UnmarshalText(b []byte) error { return (*layer.Path)(t).UnmarshalText(b) }
