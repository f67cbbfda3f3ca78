package applier

import (
	"fmt"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// opKind is what an operation does. The words are stored in journals.
type opKind string

const (
	opPut    opKind = "put"    // a staged thing takes a free path
	opSwap   opKind = "swap"   // a staged thing and the original's change places
	opRemove opKind = "remove" // the original's goes into the stage
	opRmdir  opKind = "rmdir"  // an empty directory goes; the journal alone remembers it
	opMeta   opKind = "meta"   // mode and extended attributes in place
)

// op is one operation on one path, made by at most one rename. It is stored in the journal: fields may be added, none renamed.
type op struct {
	Kind opKind     `json:"kind"`
	Path layer.Path `json:"path"`
	Old  *state     `json:"old,omitempty"`
	New  *state     `json:"new,omitempty"`
	// Slot is the operation's name in the stage.
	Slot string `json:"slot"`
	// Ino is the inode of what was staged: whatever has it is ours.
	Ino uint64 `json:"ino,omitempty"`

	content []byte // merged bytes, only until staged
	group   layer.Path
	linkTo  *op // staged before, of the same hard-link group, and to be one file with it
	// linkFrom is a file of the original that it is to be one with, "" for none.
	linkFrom layer.Path
}

// conflict is what keeps an operation from being made, where the original is now another than planned; nil is not known.
func (o *op) conflict(k Kind, now *state) Conflict {
	return Conflict{Path: o.Path, Kind: k, Base: o.Old.at(o.Path), Ours: o.New.at(o.Path), Theirs: now.at(o.Path)}
}

// fresh is true for the metadata of a directory that the same journal puts there.
func (o *op) fresh() bool { return o.Kind == opMeta && o.Old.Ino == 0 }

func (o *op) staged() bool { return o.Kind == opPut || o.Kind == opSwap }

// preview turns findings without conflicts into operations: directories are opened, then things go, children
// first, then things come, parents first, and metadata is last, deepest first.
func (c *checker) preview() Preview {
	p := Preview{req: c.req}
	var opened, gone, come, meta []op
	for _, f := range c.order {
		want := f.verdict.want
		if want == nil && !f.verdict.remove {
			continue
		}
		p.Steps, p.found = append(p.Steps, Step{Path: f.path, Action: f.action()}), append(p.found, f)
		if f.orig != nil {
			p.Replaced = append(p.Replaced, f.orig.entry(f.path))
		}
		old := f.orig
		if old != nil && old.Type == layer.Dir && old.Mode&ownerWriteEx != ownerWriteEx {
			// An owner needs these bits for what happens inside, or to a directory itself.
			open := *old
			open.Mode |= workingMode
			opened = append(opened, op{Kind: opMeta, Path: f.path, Old: old, New: &open})
			old = &open
		}
		gone, come, meta = f.operations(old, gone, come, meta)
	}
	slices.Reverse(gone)
	slices.Reverse(meta)
	p.ops = slices.Concat(opened, gone, come, meta)
	for i := range p.ops {
		p.ops[i].Slot = fmt.Sprintf("%06d", i)
	}
	if c.req.Restore {
		c.linkBack(p.ops)
	} else {
		linkGroups(p.ops)
	}
	return p
}

func (f *finding) action() Action {
	switch {
	case f.verdict.remove:
		return Remove
	case f.orig == nil:
		return Add
	case sameContent(f.orig, f.verdict.want):
		return Meta
	}
	return Replace
}

func (f *finding) operations(old *state, gone, come, meta []op) (g, c, m []op) {
	want := f.verdict.want
	switch {
	case old != nil && want != nil && sameContent(old, want):
		return gone, come, append(meta, op{Kind: opMeta, Path: f.path, Old: old, New: want})
	case old != nil && want != nil && old.Type != layer.Dir && want.Type != layer.Dir:
		o := op{Kind: opSwap, Path: f.path, Old: old, New: want, content: f.content, group: f.group}
		return gone, append(come, o), meta
	case old != nil && old.Type == layer.Dir:
		gone = append(gone, op{Kind: opRmdir, Path: f.path, Old: old})
	case old != nil:
		gone = append(gone, op{Kind: opRemove, Path: f.path, Old: old})
	}
	if want == nil {
		return gone, come, meta
	}
	if want.Type == layer.Dir {
		fresh := *want
		fresh.Mode = workingMode
		come = append(come, op{Kind: opPut, Path: f.path, New: &fresh})
		return gone, come, append(meta, op{Kind: opMeta, Path: f.path, Old: &fresh, New: want})
	}
	return gone, append(come, op{Kind: opPut, Path: f.path, New: want, group: f.group}), meta
}

// linkGroups makes one file of the members of a hard-link group that all are new, or all replace one file.
func linkGroups(ops []op) {
	first := map[layer.Path]*op{}
	for i := range ops {
		o := &ops[i]
		if !o.staged() || o.New.Type != layer.File {
			continue
		}
		f := first[o.group]
		switch {
		case f == nil:
			first[o.group] = o
		case f.Kind == o.Kind && same(f.New, o.New) && f.New.UID == o.New.UID && f.New.GID == o.New.GID &&
			(o.Kind == opPut || f.Old.Ino == o.Old.Ino):
			o.linkTo = f
		}
	}
}

// writable refuses, before anything is made, a plan that changes directories this process may not write.
func (c *checker) writable(ops []op) error {
	if os.Geteuid() == 0 {
		return nil
	}
	done := map[string]bool{}
	for i := range ops {
		o := &ops[i]
		dir := path.Dir(string(o.Path))
		if f := c.found[layer.Path(dir)]; f != nil && f.verdict.want != nil || o.Kind == opMeta || done[dir] {
			continue // it is new, or is opened first
		}
		if f := c.found[layer.Path(dir)]; f != nil && f.vacated() {
			continue
		}
		done[dir] = true
		d, _, err := c.tree.parent(o.Path)
		if err != nil {
			return err
		}
		err = unix.Access(reopen(d), unix.W_OK|unix.X_OK)
		d.Close()
		if err != nil {
			return fmt.Errorf("applier: write directory %q: %w", dir, err)
		}
	}
	return nil
}
