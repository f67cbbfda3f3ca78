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
	s, err := v.c.openLayer(below)
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
func (c *Cache) openLayer(below Chain) (*Staged, error) {
	root, err := NewTree(below).Lookup(".")
	if err != nil {
		return nil, err
	}
	s, err := c.Stage()
	if err != nil {
		return nil, err
	}
	if below.live() {
		err = hideJournal(s)
	}
	if err := errors.Join(err, fault.Err("layer.open"), c.makeWork(s), c.shapeRoot(s, root)); err != nil {
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

func (v *overlayView) Freeze(ctx context.Context) (Layer, bool, error) {
	meta, changed, err := v.c.normalise(ctx, v.open.Dir(), workOf(v.open), v.below)
	if err != nil {
		return Layer{}, false, fmt.Errorf("layer: freeze: %w", errors.Join(err, v.remountable()))
	}
	closed := v.open
	if !changed {
		if err := v.start(ctx, v.chain); err != nil {
			return Layer{}, false, fmt.Errorf("layer: freeze: %w", errors.Join(err, v.remountable()))
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
		return Layer{}, false, fmt.Errorf("layer: freeze: %w", errors.Join(err, closed.reopen(l), v.c.makeWork(closed)))
	}
	return l, true, nil
}

func (v *overlayView) Reset(ctx context.Context, chain Chain) error {
	dropped := v.open
	if err := v.start(ctx, chain); err != nil {
		return fmt.Errorf("layer: reset: %w", errors.Join(err, v.remountable()))
	}
	fault.At("layer.reset")
	return dropped.Discard()
}

func (v *overlayView) Close() error { return errors.Join(v.open.Discard(), v.squash.discard()) }
