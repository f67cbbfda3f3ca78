package applier

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// Taking an apply back is an apply too: of its Inverse, three-way on what it made, what the original is now, and what it
// was before. A Request with Restore differs from others in that
//   - owners, groups and ACLs are given back as they were, unless they were changed since;
//   - a path becomes one file again with the names it was hard-linked to, also those that the plan had left alone;
//   - a directory that the plan had made and that holds something else since stays.

// Inverse is the changes that take a staged preview back once it is committed: each path from what it will be to what
// it is now. Call it between Stage and Commit. Their HardLink may name a path that is not among the changes.
func (s *Session) Inverse(p Preview) ([]layer.Change, error) {
	if s.phase != phaseStaged {
		return nil, fmt.Errorf("applier: invert: %w", ErrOrder)
	}
	out := make([]layer.Change, 0, len(p.found))
	groups := map[uint64]*linked{}
	for _, f := range p.found {
		out = append(out, layer.Change{Path: f.path, Before: f.verdict.want.at(f.path), After: f.orig.at(f.path)})
		if f.orig == nil || f.orig.Type != layer.File {
			continue
		}
		if g := groups[f.orig.Ino]; g != nil {
			g.here++
			continue
		}
		names, err := s.tree.links(f.path)
		if err != nil {
			return nil, err
		}
		groups[f.orig.Ino] = &linked{first: f.path, here: 1, names: names}
	}
	if err := s.findLinked(p, groups); err != nil {
		return nil, err
	}
	for i, f := range p.found {
		if f.orig == nil || f.orig.Type != layer.File {
			continue
		}
		if first := groups[f.orig.Ino].first; first != f.path {
			out[i].After.HardLink = first
		}
	}
	return out, nil
}

// linked is the names of one file of the original: first is one that the apply leaves alone where there is any.
type linked struct {
	first layer.Path
	here  uint64 // names that the apply replaces
	names uint64 // all that there are
}

// links is how many names a file has, wherever.
func (t *tree) links(p layer.Path) (uint64, error) {
	f, err := t.open(p, unix.O_PATH)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, fmt.Errorf("applier: stat %q: %w", p, err)
	}
	return uint64(st.Nlink), nil
}

// findLinked looks through the original for other names of the files that have more than the apply replaces. Only such
// files make it cost more than what changed.
func (s *Session) findLinked(p Preview, groups map[uint64]*linked) error {
	missing := map[uint64]*linked{}
	for ino, g := range groups {
		if g.names > g.here {
			missing[ino] = g
		}
	}
	changed := map[layer.Path]bool{}
	for _, f := range p.found {
		changed[f.path] = true
	}
	var walk func(dir layer.Path) error
	walk = func(dir layer.Path) error {
		names, err := s.tree.names(dir)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, ErrOtherMount) || errors.Is(err, errParentReplaced) {
			return nil
		}
		for _, name := range names {
			at := layer.Path(path.Join(string(dir), name))
			if len(missing) == 0 || err != nil {
				break
			}
			if at != layer.JournalDir {
				err = s.visit(at, changed[at], missing, walk)
			}
		}
		return err
	}
	if len(missing) == 0 {
		return nil
	}
	return walk(".")
}

func (s *Session) visit(at layer.Path, changed bool, missing map[uint64]*linked, walk func(layer.Path) error) error {
	f, err := s.tree.open(at, unix.O_PATH)
	if err != nil {
		return nil // it went, or lies elsewhere
	}
	st, err := statOf(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("applier: stat %q: %w", at, err)
	}
	switch {
	case st.Type == layer.Dir:
		return walk(at)
	case st.Type == layer.File && missing[st.Ino] != nil && !changed:
		missing[st.Ino].first = at
		delete(missing, st.Ino)
	}
	return nil
}

// keep lets a directory stay, with what came into it since. One that is closed to its owner is opened for what goes.
func (f *finding) keep() {
	f.verdict = verdict{}
	if f.orig.Mode&ownerWriteEx != ownerWriteEx {
		as := *f.orig
		f.verdict.want = &as
	}
}

// giveBack sets the owner, group and ACLs of what is restored to those of before the apply, where nobody changed them since.
func (f *finding) giveBack(before state) {
	if f.orig != nil && f.base != nil && (f.orig.UID != f.base.UID || f.orig.GID != f.base.GID) || before.UID == layer.Self {
		return
	}
	want := f.verdict.want
	want.UID, want.GID, want.ACLs = before.UID, before.GID, before.ACLs
}

// linkBack makes one file of the members of a hard-link group, and of a name that the apply had left alone where that still
// is the same.
func (c *checker) linkBack(ops []op) {
	first, outside := map[layer.Path]*op{}, map[layer.Path]*state{}
	for i := range ops {
		o := &ops[i]
		if !o.staged() || o.New.Type != layer.File {
			continue
		}
		if c.found[o.group] == nil {
			there, asked := outside[o.group]
			if !asked {
				there, _ = c.tree.state(o.group) // what cannot be read is no name of it
				outside[o.group] = there
			}
			if there != nil && sameFile(there, o.New) {
				o.linkFrom = o.group
				continue
			}
		}
		switch f := first[o.group]; {
		case f == nil:
			first[o.group] = o
		case sameFile(f.New, o.New):
			o.linkTo = f
		}
	}
}

func sameFile(a, b *state) bool { return same(a, b) && a.UID == b.UID && a.GID == b.GID }

// linkOriginal stages another name of a file of the original.
func (s *stager) linkOriginal(o *op) error {
	f, err := s.tree.open(o.linkFrom, unix.O_PATH)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := statOf(f)
	if err != nil {
		return err
	}
	o.Ino = st.Ino
	return unix.Linkat(unix.AT_FDCWD, reopen(f), int(s.dir.Fd()), o.Slot, unix.AT_SYMLINK_FOLLOW)
}
