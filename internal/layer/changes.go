package layer

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"slices"
)

// Changes lists the paths that differ between base and top, of which base must be the beginning, in byte order.
//
// A difference is one of kind, mode, owner, attributes, link text, device or content; contents are compared, so a
// file that was written with what it had is none. Times and hard links alone are none either: they lie about who
// changed what. Below a removed directory every path is listed. Digest is filled for the regular files of a
// change, on both sides. The journal directory is left out. The cost follows what the layers above base hold.
func Changes(base, top Chain) ([]Change, error) {
	if len(top) < len(base) {
		return nil, fmt.Errorf("layer: compare chains: top has %d layers, base %d", len(top), len(base))
	}
	for i := range base {
		if base[i].ID != top[i].ID {
			return nil, fmt.Errorf("layer: compare chains: layer %d is %q in base and %q in top", i, base[i].ID, top[i].ID)
		}
	}
	return Compare(base, top)
}

// Compare lists what differs between any two chains, as Changes does; an empty chain is a tree without even a root.
// The cost follows what the layers above their common beginning hold: all of both trees where they have none.
// Layers are the same if their ids are, or their stored names.
func Compare(from, to Chain) ([]Change, error) {
	shared := 0
	for shared < min(len(from), len(to)) && sameLayer(from[shared], to[shared]) {
		shared++
	}
	d := differ{base: NewTree(from), top: NewTree(to), baseOwn: len(from) - shared, topOwn: len(to) - shared}
	if d.baseOwn == 0 && d.topOwn == 0 {
		return nil, nil
	}
	if err := d.run(len(from) == 0, len(to) == 0); err != nil {
		return nil, fmt.Errorf("layer: compare chains: %w", err)
	}
	slices.SortFunc(d.found, func(a, b Change) int { return comparePaths(a.Path, b.Path) })
	return d.found, nil
}

func sameLayer(a, b Layer) bool { return a.ID == b.ID || a.Name != "" && a.Name == b.Name }

type differ struct {
	base, top       *Tree
	baseOwn, topOwn int // layers that only base has, and only top
	found           []Change
}

func (d *differ) run(noBase, noTop bool) error {
	within := func(t *Tree, absent bool, fn func(*merged) error) error {
		if absent {
			return fn(nil)
		}
		return t.in(".", fn)
	}
	return within(d.top, noTop, func(t *merged) error {
		return within(d.base, noBase, func(b *merged) error { return d.name(b, t, ".") })
	})
}

// dir compares two directories of the same path; nil is one that is not there.
func (d *differ) dir(b, t *merged) error {
	names, err := d.names(b, t)
	if err != nil {
		return err
	}
	for _, name := range names {
		if t != nil && join(t.path, name) == JournalDir {
			continue
		}
		if err := d.name(b, t, name); err != nil {
			return err
		}
	}
	return nil
}

// names are those that can differ: where the same of the shared layers shows in both, only what the others have.
func (d *differ) names(b, t *merged) ([]string, error) {
	seen := map[string]bool{}
	add := func(names []string, err error) error {
		for _, name := range names {
			seen[name] = true
		}
		return err
	}
	if b != nil && t != nil && b.deeper(d.baseOwn) == t.deeper(d.topOwn) {
		own := slices.Concat(b.parts[:len(b.parts)-b.deeper(d.baseOwn)], t.parts[:len(t.parts)-t.deeper(d.topOwn)])
		for _, p := range own {
			if err := add(p.f.names()); err != nil {
				return nil, err
			}
		}
		return slices.Sorted(maps.Keys(seen)), nil
	}
	for _, m := range []*merged{b, t} {
		if m == nil {
			continue
		}
		if err := add(m.names()); err != nil {
			return nil, err
		}
	}
	return slices.Sorted(maps.Keys(seen)), nil
}

// deeper counts the parts that come from below the top own layers of the chain. They are the last ones, and what
// shows of the shared layers in a directory begins at the top of them, so equal counts are equal parts.
func (d *merged) deeper(own int) int {
	n := 0
	for _, p := range d.parts {
		if p.index >= own {
			n++
		}
	}
	return n
}

func (d *differ) name(b, t *merged, name string) error {
	before, err := lookBelow(b, name)
	if err != nil {
		return err
	}
	after, err := lookBelow(t, name)
	if err != nil {
		return err
	}
	if before == nil && after == nil {
		return nil
	}
	if err := d.compare(before, after); err != nil {
		return err
	}
	return d.below(b, t, before, after, name)
}

// below goes on into name, if it is a directory on any side.
func (d *differ) below(b, t *merged, before, after *located, name string) error {
	if name == "." {
		return d.dir(b, t)
	}
	bs, err := subOf(b, before, name)
	if err != nil {
		return err
	}
	defer bs.release()
	ts, err := subOf(t, after, name)
	if err != nil {
		return err
	}
	defer ts.release()
	if bs == nil && ts == nil {
		return nil
	}
	return d.dir(bs, ts)
}

func subOf(d *merged, e *located, name string) (*merged, error) {
	if e == nil || e.Type != Dir {
		return nil, nil
	}
	return d.sub(name)
}

// release closes a directory that may be absent and was only read.
func (d *merged) release() {
	if d != nil {
		d.close()
	}
}

func (d *differ) compare(before, after *located) error {
	b, err := d.side(d.base, before, after)
	if err != nil {
		return err
	}
	a, err := d.side(d.top, after, before)
	if err != nil {
		return err
	}
	if a != nil && b != nil && sameButTimes(*a, *b) {
		return nil
	}
	c := Change{Before: b, After: a}
	if a != nil {
		c.Path = a.Path
	} else {
		c.Path = b.Path
	}
	d.found = append(d.found, c)
	return nil
}

func sameButTimes(a, b Entry) bool {
	return a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID && sameBody(a, b) && a.Digest == b.Digest
}

// side completes one side's entry. A file that is the same on both is not read.
func (d *differ) side(t *Tree, e, other *located) (*Entry, error) {
	if e == nil {
		return nil, nil
	}
	if err := t.linkOf(e); err != nil {
		return nil, err
	}
	identical := other != nil && other.part.id == e.part.id
	if e.Type != File || identical {
		return &e.Entry, nil
	}
	_, name := split(e.Path)
	f, err := e.part.f.open(name)
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", e.Path, err)
	}
	defer f.Close()
	digest, err := digestOf(f)
	if err != nil {
		return nil, fmt.Errorf("read %q: %w", e.Path, err)
	}
	e.Digest = digest
	return &e.Entry, nil
}

func digestOf(r io.Reader) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}
