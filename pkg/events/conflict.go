package events

import "slices"

// Conflict is a path that apply could not change. A path that is not UTF-8 is given in an escaped form: a NUL, "b64:" and
// its bytes in base64.
type Conflict struct {
	Path string `json:"path"`
	// Kind is why, as content, deleted_by_original, added_both, special; for programs.
	Kind string `json:"kind"`
	// Detail is for people.
	Detail string `json:"detail,omitempty"`
	// Base is what the plan started from (of an undo: what it had made), Ours what it wants, Theirs the original as it was found.
	Base   *FileState `json:"base" jsonschema:"nullable,description=null: it did not exist; or was not looked at"`
	Ours   *FileState `json:"ours" jsonschema:"nullable"`
	Theirs *FileState `json:"theirs" jsonschema:"nullable"`
}

// FileState is what a path is on one side of a conflict.
type FileState struct {
	Type string `json:"type" jsonschema:"description=file or dir or symlink or fifo or char or block or socket"`
	// Mode is the permission bits in octal, as 0644.
	Mode string `json:"mode"`
	// Size is of a file, in bytes.
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256,omitempty" jsonschema:"description=of a file's content in hex"`
	// Link is the text of a symbolic link, escaped as paths are.
	Link string `json:"link,omitempty"`
}

const (
	// conflictRoom is how many bytes of conflicts are put into one event, well below the limit on a message.
	conflictRoom = 256 << 10
	// MaxConflicts is how many conflicts of one apply are kept; more are counted.
	MaxConflicts = 20_000
)

// SplitConflicts cuts a list into pieces that have room in an event each; there is at least one, and the last is for the
// event that says how the apply ended. Those beyond MaxConflicts are left out.
func SplitConflicts(all []Conflict) [][]Conflict {
	all = all[:min(len(all), MaxConflicts)]
	pieces, size := [][]Conflict{nil}, 0
	for _, c := range all {
		if n := c.size(); size+n > conflictRoom {
			pieces, size = append(pieces, nil), n
		} else {
			size += n
		}
		last := len(pieces) - 1
		pieces[last] = append(pieces[last], c)
	}
	return pieces
}

// size is an upper bound of what a conflict takes in an event, in bytes.
func (c Conflict) size() int {
	const fixed, most = 700, 6 // field names, digests and numbers; bytes of an escaped character
	n := len(c.Path) + len(c.Detail)
	for _, s := range []*FileState{c.Base, c.Ours, c.Theirs} {
		if s != nil {
			n += len(s.Link)
		}
	}
	return fixed + most*n
}

// shrunk returns the conflict with texts of at most limit bytes.
func (c Conflict) shrunk(limit int) Conflict {
	c.Path, c.Detail = truncate(c.Path, limit), truncate(c.Detail, limit)
	for _, side := range []**FileState{&c.Base, &c.Ours, &c.Theirs} {
		if *side != nil {
			s := **side
			s.Link = truncate(s.Link, limit)
			*side = &s
		}
	}
	return c
}

// gather collects the conflicts of one apply or undo from its events.
type gather struct{ parts []Conflict }

func (g *gather) add(d Data) { g.parts = append(g.parts, d.Conflicts...) }

// end returns all that were collected with those of the last event, in the order of their paths, and starts anew.
func (g *gather) end(d Data) []Conflict {
	all := append(slices.Clone(g.parts), d.Conflicts...)
	g.parts = nil
	return all
}
