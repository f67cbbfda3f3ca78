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
	if len(base) == len(top) {
		return nil, nil
	}
	d := differ{base: NewTree(base), top: NewTree(top), above: len(top) - len(base)}
	if err := d.run(len(base) == 0); err != nil {
		return nil, fmt.Errorf("layer: compare chains: %w", err)
	}
	slices.SortFunc(d.found, func(a, b Change) int { return comparePaths(a.Path, b.Path) })
	return d.found, nil
}

type differ struct {
	base, top *Tree
	above     int // layers of top that base does not have
	found     []Change
}

func (d *differ) run(empty bool) error {
	return d.top.in(".", func(t *merged) error {
		if empty {
			return d.name(nil, t, ".")
		}
		return d.base.in(".", func(b *merged) error { return d.name(b, t, ".") })
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

// names are those that can differ: where the base shows through, only what the layers above it have.
func (d *differ) names(b, t *merged) ([]string, error) {
	seen := map[string]bool{}
	add := func(names []string, err error) error {
		for _, name := range names {
			seen[name] = true
		}
		return err
	}
	if b != nil && t != nil && d.through(b, t) {
		for _, p := range t.parts[:len(t.parts)-len(b.parts)] {
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

// through tells whether all of b shows in t.
func (d *differ) through(b, t *merged) bool {
	own := 0
	for _, p := range t.parts {
		if p.index < d.above {
			own++
		}
	}
	return len(t.parts)-own == len(b.parts)
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
