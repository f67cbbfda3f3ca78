package layer

import (
	"errors"
	"fmt"
	"io"
	"path"
)

// Builder fills a layer entry by entry, for callers that have no directory to capture.
// Entries may come in any order in which a directory precedes what is in it; parents that
// were not put are made with mode 0755.
type Builder struct {
	w    *writer
	dirs map[Path]bool
}

// Build makes a layer of what fill puts into it. When fill fails nothing is left. The layer
// survives the death of any process, but not that of the machine; see Persist.
func (c *Cache) Build(fill func(*Builder) error) (Layer, error) {
	staged, err := c.Stage()
	if err != nil {
		return Layer{}, err
	}
	w, err := newWriter(staged.Dir(), c.opt)
	if err != nil {
		return Layer{}, fmt.Errorf("layer: build: %w", errors.Join(err, staged.Discard()))
	}
	b := &Builder{w: w, dirs: map[Path]bool{".": true}}
	if err := fill(b); err != nil {
		return Layer{}, errors.Join(err, w.abort(), staged.Discard())
	}
	if err := w.finish(); err != nil {
		return Layer{}, fmt.Errorf("layer: build: %w", errors.Join(err, staged.Discard()))
	}
	return staged.commitOr(w.meta(), untilReboot)
}

// Put adds an entry; content is read for regular files only.
func (b *Builder) Put(e Entry, content io.Reader) error {
	if err := b.parents(e.Path); err != nil {
		return err
	}
	if e.Type == Dir {
		b.dirs[e.Path] = true
	}
	return b.w.put(e, content)
}

// Remove adds that a path does not exist.
func (b *Builder) Remove(p Path) error {
	if err := b.parents(p); err != nil {
		return err
	}
	return b.w.whiteout(p)
}

func (b *Builder) parents(p Path) error {
	dir := Path(path.Dir(string(p)))
	if b.dirs[dir] {
		return nil
	}
	return b.Put(Entry{Path: dir, Type: Dir, Mode: 0o755, UID: Self, GID: Self}, nil)
}
