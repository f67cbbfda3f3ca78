package layer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/warmfleet/warmfleet/internal/fault"
)

// overlayView is a view by overlayfs: the chain below, an upper directory on top.
type overlayView struct {
	c      *Cache
	chain  Chain
	below  Chain     // what is mounted for chain
	squash *squashed // among below, nil for none
	open   *Staged
	disk   Disk // what open lies on; nil for the cache itself
}

// Disk is a file system that takes the open layers of one view, and no more than fits.
type Disk interface {
	// Dir is its root.
	Dir() string
	// Lend calls do while there is room that is otherwise kept back.
	Lend(do func() error) error
	// Sound is an error when files on it may lack what was written to them.
	Sound() error
}

// OpenOn is Open by the overlay driver for a view whose open layer lies on d, which no other view uses and which the caller
// gives up after Close. Closing a layer costs a copy of it into the cache, where it takes room of its own.
func (c *Cache) OpenOn(ctx context.Context, d Disk, chain Chain) (View, error) {
	v := &overlayView{c: c, disk: d}
	if err := v.start(ctx, chain); err != nil {
		return nil, fmt.Errorf("layer: open on a disk: %w", err)
	}
	return v, nil
}

func (c *Cache) openOverlay(ctx context.Context, chain Chain) (View, error) {
	v := &overlayView{c: c}
	if err := v.start(ctx, chain); err != nil {
		return nil, err
	}
	return v, nil
}

const workDir = "work"

func workOf(s *Staged) string { return filepath.Join(s.home, workDir) }

// start opens a new layer on chain. When it fails the view is as it was.
func (v *overlayView) start(ctx context.Context, chain Chain) error {
	if len(chain) == 0 {
		return errors.New("the chain is empty")
	}
	below, q, err := v.c.below(ctx, chain, v.squash)
	if err != nil {
		return err
	}
	s, err := v.openLayer(below)
	if err != nil {
		if q != v.squash {
			err = errors.Join(err, q.discard())
		}
		return err
	}
	old := v.squash
	v.open, v.chain, v.below, v.squash = s, slices.Clone(chain), below, q
	if old != q {
		return old.discard()
	}
	return nil
}

// openLayer makes an upper directory. An overlay shows the attributes of its upper directory's root, so that gets
// the root's.
func (v *overlayView) openLayer(below Chain) (*Staged, error) {
	root, err := NewTree(below).Lookup(".")
	if err != nil {
		return nil, err
	}
	home := v.c.staging
	if v.disk != nil {
		home = v.disk.Dir()
	}
	s, err := v.c.stageIn(home)
	if err != nil {
		return nil, err
	}
	if below.live() {
		err = hideJournal(s)
	}
	if err := errors.Join(err, fault.Err("layer.open"), v.c.makeWork(s), v.c.shapeRoot(s, root)); err != nil {
		return nil, errors.Join(err, s.Discard())
	}
	return s, nil
}

func (c *Cache) makeWork(s *Staged) error {
	own := c.opt.diskOwner()
	return errors.Join(os.Mkdir(workOf(s), 0o700), os.Chown(workOf(s), own.uid, own.gid))
}

func (c *Cache) shapeRoot(s *Staged, root Entry) error {
	f, err := openFolder(s.Dir(), needRead)
	if err != nil {
		return err
	}
	_, err = f.shape(".", root, c.opt.prefix(), c.opt.diskOwner())
	return errors.Join(err, f.close())
}

// hideJournal keeps what an apply stages in a live original out of the sandbox.
func hideJournal(s *Staged) error {
	f, err := openFolder(s.Dir(), needWrite)
	if err != nil {
		return err
	}
	return errors.Join(f.whiteout(JournalDir), f.close())
}

// remountable lets the open layer be mounted once more. A volatile overlay leaves a mark in its work directory that
// forbids that, since its machine may have crashed; this process did not even end.
func (v *overlayView) remountable() error {
	return RemoveTree(filepath.Join(workOf(v.open), "work"))
}

func (v *overlayView) Mount() Mount {
	m := Mount{Upper: v.open.Dir(), Work: workOf(v.open), Live: v.below.live()}
	for _, l := range slices.Backward(v.below) {
		m.Lowers = append(m.Lowers, l.Dir)
	}
	return m
}

func (v *overlayView) Chain() Chain { return slices.Clone(v.chain) }

func (v *overlayView) Freeze(ctx context.Context) (l Layer, changed bool, err error) {
	if v.disk == nil {
		l, changed, err = v.freeze(ctx)
	} else {
		err = v.disk.Lend(func() error {
			l, changed, err = v.freezeFromDisk(ctx)
			return err
		})
	}
	if err != nil {
		return Layer{}, false, fmt.Errorf("layer: freeze: %w", err)
	}
	return l, changed, nil
}

func (v *overlayView) freeze(ctx context.Context) (Layer, bool, error) {
	meta, changed, err := v.c.normalise(ctx, v.open.Dir(), workOf(v.open), v.below)
	if err != nil {
		return Layer{}, false, errors.Join(err, v.remountable())
	}
	closed := v.open
	if !changed {
		if err := v.start(ctx, v.chain); err != nil {
			return Layer{}, false, errors.Join(err, v.remountable())
		}
		return Layer{}, false, closed.Discard()
	}
	fault.At("layer.normalised")
	if err := RemoveTree(workOf(closed)); err != nil {
		return Layer{}, false, err
	}
	l, err := closed.commit(Layer{Lost: meta.Lost}, meta, untilReboot)
	if err != nil {
		return Layer{}, false, errors.Join(err, v.c.makeWork(closed))
	}
	if err := v.start(ctx, append(v.Chain(), l)); err != nil {
		return Layer{}, false, errors.Join(err, closed.reopen(l), v.c.makeWork(closed))
	}
	return l, true, nil
}

// freezeFromDisk closes a copy of the open layer, which cannot become one of another file system by a rename.
func (v *overlayView) freezeFromDisk(ctx context.Context) (Layer, bool, error) {
	l, changed, err := v.Copy(ctx)
	if err != nil {
		return Layer{}, false, errors.Join(err, v.remountable())
	}
	chain := v.Chain()
	if changed {
		chain = append(chain, l)
	}
	copied := v.open
	if err := v.start(ctx, chain); err != nil {
		if changed {
			err = errors.Join(err, v.c.Remove(l.ID))
		}
		return Layer{}, false, errors.Join(err, v.remountable())
	}
	return l, changed, copied.Discard()
}

func (v *overlayView) Reset(ctx context.Context, chain Chain) error {
	reset := func() error {
		dropped := v.open
		if err := v.start(ctx, chain); err != nil {
			return errors.Join(err, v.remountable())
		}
		fault.At("layer.reset")
		return dropped.Discard()
	}
	var err error
	if v.disk == nil {
		err = reset()
	} else {
		err = v.disk.Lend(reset)
	}
	if err != nil {
		return fmt.Errorf("layer: reset: %w", err)
	}
	return nil
}

func (v *overlayView) Close() error { return errors.Join(v.open.Discard(), v.squash.discard()) }
