package layer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
)

// Squash makes one layer that shows on the chain below, which may be empty, exactly what layers, bottom first, show
// there. The layers stay; the new one lists the losses of all of them. Like every layer of a sandbox it
// survives the death of any process, but not that of the machine; see Persist.
func (c *Cache) Squash(ctx context.Context, below, layers Chain) (Layer, error) {
	s, m, err := c.squash(ctx, below, layers)
	if err != nil {
		return Layer{}, fmt.Errorf("layer: squash: %w", err)
	}
	return s.commitOr(m, untilReboot)
}

func (c *Cache) squash(ctx context.Context, below, layers Chain) (*Staged, Meta, error) {
	if len(layers) == 0 {
		return nil, Meta{}, errors.New("no layers")
	}
	s, err := c.Stage()
	if err != nil {
		return nil, Meta{}, err
	}
	w, err := newWriter(s.Dir(), c.opt)
	if err != nil {
		return nil, Meta{}, errors.Join(err, s.Discard())
	}
	tree := NewTree(layers)
	q := squasher{ctx: ctx, writer: w, links: map[inode]Path{}}
	if err := tree.in(".", func(d *merged) error { return q.root(d, below) }); err != nil {
		return nil, Meta{}, errors.Join(err, w.abort(), s.Discard())
	}
	if err := w.finish(); err != nil {
		return nil, Meta{}, errors.Join(err, s.Discard())
	}
	m, err := q.metaOf(tree)
	if err != nil {
		return nil, Meta{}, errors.Join(err, s.Discard())
	}
	return s, m, nil
}

// squasher writes what several layers hold into one.
type squasher struct {
	*writer
	ctx   context.Context
	links map[inode]Path
}

func (q *squasher) root(d *merged, below Chain) error {
	root, err := d.entry(".")
	if err != nil {
		return err
	}
	if err := q.put(root.Entry, nil); err != nil {
		return err
	}
	if len(below) == 0 {
		return q.children(d, nil)
	}
	return NewTree(below).in(".", func(low *merged) error { return q.children(d, low) })
}

// children writes what the directory d, which was put, holds in any of the layers. low is what shows through it, nil for
// nothing. A deletion of nothing is not kept: where no layer below has the directory, overlayfs lists it as a name.
func (q *squasher) children(d, low *merged) error {
	if err := q.ctx.Err(); err != nil {
		return err
	}
	names, err := d.marked()
	if err != nil {
		return fmt.Errorf("list %q: %w", d.path, err)
	}
	return inPathOrder(slices.Sorted(maps.Keys(names)), func(name string) (bool, error) {
		if !names[name] {
			hidden, err := lookBelow(low, name)
			if err == nil && hidden != nil {
				err = q.whiteout(join(d.path, name))
			}
			return false, err
		}
		e, err := d.entry(name)
		if err != nil {
			return false, fmt.Errorf("read %q: %w", join(d.path, name), err)
		}
		return e.Type == Dir, q.add(e, name)
	}, func(name string) error { return q.descend(d, low, name) })
}

// marked are the names of a directory in all layers, and whether they are shown or marked deleted.
func (d *merged) marked() (map[string]bool, error) {
	seen := map[string]bool{}
	for _, p := range d.parts {
		if _, err := d.visible(p, seen); err != nil {
			return nil, err
		}
	}
	return seen, nil
}

func (q *squasher) add(e *located, name string) error {
	if e.Type != Dir && e.st.Nlink > 1 {
		key := inode{uint64(e.part.index), e.st.Ino}
		first, seen := q.links[key]
		if !seen {
			q.links[key] = e.Path
		}
		e.HardLink = first
	}
	if e.Type != File || e.HardLink != "" {
		return q.put(e.Entry, nil)
	}
	src, err := e.part.f.open(name)
	if err != nil {
		return fmt.Errorf("open %q: %w", e.Path, err)
	}
	return errors.Join(q.put(e.Entry, src), src.Close())
}

func (q *squasher) descend(d, low *merged, name string) error {
	sub, err := d.sub(name)
	if err != nil {
		return fmt.Errorf("open %q: %w", join(d.path, name), err)
	}
	defer sub.release()
	through, err := subBelow(low, name)
	if err != nil {
		return fmt.Errorf("open %q below: %w", sub.path, err)
	}
	defer through.release()
	if through == nil || !sub.sealed {
		return q.children(sub, through)
	}
	if err := q.opaque(sub.path); err != nil {
		return err
	}
	return q.children(sub, nil)
}

// subBelow opens the directory name of what lies below, nil where that has none.
func subBelow(low *merged, name string) (*merged, error) {
	if low == nil {
		return nil, nil
	}
	sub, err := low.sub(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return sub, err
}

// metaOf joins what the records of the layers say.
func (q *squasher) metaOf(t *Tree) (Meta, error) {
	layers, err := t.load()
	if err != nil {
		return Meta{}, err
	}
	m := q.meta()
	for _, l := range slices.Backward(layers) {
		m.Lost = append(m.Lost, l.meta.Lost...)
		if m.SelfUID == nil && l.meta.SelfUID != nil && l.meta.SelfGID != nil {
			m.SelfUID, m.SelfGID = l.meta.SelfUID, l.meta.SelfGID
		}
	}
	sortLost(m.Lost)
	m.Lost = slices.Compact(m.Lost)
	return m, nil
}

// maxLowers is how many layers an overlay is mounted of. The kernel takes 500 (OVL_MAX_STACK in fs/overlayfs/params.h);
// long before that every look-up of a name that is in none of them gets slow.
const maxLowers = 128

// squashed stands for the layers of a long chain above its lowest one, in the mounts of one view.
type squashed struct {
	ids   []string // of the layers it stands for, and of the one below
	layer Layer
	stage *Staged
}

// of tells whether chain begins with what it stands for.
func (q *squashed) of(chain Chain) bool {
	if q == nil || len(chain) < len(q.ids) {
		return false
	}
	for i, id := range q.ids {
		if chain[i].ID != id {
			return false
		}
	}
	return true
}

// below gives the layers to mount for chain, and the squashed one among them, which is old if that still serves.
func (c *Cache) below(ctx context.Context, chain Chain, old *squashed) (Chain, *squashed, error) {
	lowers := slices.Clone(chain)
	if !old.of(chain) {
		old = nil
	} else {
		lowers = append(Chain{chain[0], old.layer}, chain[len(old.ids):]...)
	}
	if len(lowers) <= maxLowers {
		return lowers, old, nil
	}
	s, m, err := c.squash(ctx, lowers[:1], lowers[1:])
	if err != nil {
		return nil, nil, fmt.Errorf("squash %d layers: %w", len(lowers)-1, err)
	}
	q := &squashed{stage: s, layer: Layer{ID: s.id, Dir: s.Dir()}}
	for _, l := range chain {
		q.ids = append(q.ids, l.ID)
	}
	if err := s.record(q.layer, m); err != nil {
		return nil, nil, errors.Join(err, s.Discard())
	}
	return Chain{chain[0], q.layer}, q, nil
}

// record makes a layer readable where it is being built, for the one who builds it.
func (s *Staged) record(l Layer, m Meta) error {
	rec := s.recordOf(l, m)
	rec.Boot = bootID()
	return writeMeta(s.home, rec)
}

func (q *squashed) discard() error {
	if q == nil {
		return nil
	}
	return q.stage.Discard()
}
