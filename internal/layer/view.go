package layer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/otiai10/copy"
)

// Mount says what shows a view: an overlay, or the plain directory Bind.
type Mount struct {
	// Lowers are the directories of closed layers, the top one first.
	Lowers []string
	// Upper is the open layer, Work overlayfs' scratch directory beside it.
	Upper, Work string
	// Bind, if not "", is a directory that is the view itself; the rest is empty then.
	Bind string
	// IDMap: Bind holds files of its real owner, which the sandbox has to see as its own.
	IDMap bool
}

// View is a writable view of a chain: closed layers, and an open one that takes what is written.
// Calls must not overlap, and nothing may be mounted or writing during Freeze, Reset and Close.
type View interface {
	// Mount says what to attach now. Freeze and Reset change it.
	Mount() Mount
	// Freeze closes the open layer, appends it to the chain and opens a new one. When nothing changed there is no
	// layer and the second result is false. When it fails the open layer is still there.
	Freeze(ctx context.Context) (Layer, bool, error)
	// Reset drops what was written since the last Freeze; the view then shows exactly chain.
	Reset(ctx context.Context, chain Chain) error
	// Chain is the closed layers of the view.
	Chain() Chain
	// Close removes the open layer. An in-place view's directory is left as it is.
	Close() error
}

// dirView is a view that is a plain directory, compared with an index of its last state.
type dirView struct {
	c     *Cache
	dir   string
	chain Chain
	idx   *Index
	// scratch is the stage of a copy, nil for an original in place.
	scratch *Staged
	idmap   bool
}

// OpenInPlace is the view of strategy none: dir itself. idx must be that of dir for chain, from Capture or Restore.
func (c *Cache) OpenInPlace(ctx context.Context, dir string, chain Chain, idx *Index) (View, error) {
	if idx == nil {
		return nil, fmt.Errorf("layer: open %q in place: no index", dir)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return &dirView{c: c, dir: dir, chain: slices.Clone(chain), idx: idx, idmap: os.Geteuid() == 0}, nil
}

// OpenCopy copies chain to a scratch directory of the cache. It is for where overlayfs cannot be used: it costs the
// whole tree.
func (c *Cache) OpenCopy(ctx context.Context, chain Chain) (View, error) {
	s, err := c.Stage()
	if err != nil {
		return nil, err
	}
	v := &dirView{c: c, dir: s.Dir(), scratch: s}
	if err := v.fill(ctx, chain); err != nil {
		return nil, fmt.Errorf("layer: open copy: %w", errors.Join(err, s.Discard()))
	}
	return v, nil
}

// fill copies the lowest layer's plain files in bulk; restoring the chain then does everything else.
func (v *dirView) fill(ctx context.Context, chain Chain) error {
	job := restoreJob{dir: v.dir, chain: chain, owner: v.c.ownerOf()}
	if len(chain) > 0 {
		if err := copyPlain(chain[0].Dir, v.dir); err != nil {
			v.c.opt.Log.Debug().Err(err).Msg("bulk copy stopped; the rest is copied file by file")
		}
		job.assume = chain[0].ID
	}
	idx, err := v.c.restore(ctx, job)
	if err != nil {
		return err
	}
	v.chain, v.idx = slices.Clone(chain), idx
	return nil
}

// ownerOf is the owner of every file in a copy.
func (c *Cache) ownerOf() *int {
	owner := c.opt.Owner
	if os.Geteuid() != 0 {
		owner = os.Geteuid()
	}
	return &owner
}

// copyPlain copies directories and plain files. What otiai10/copy would lose or stop at is left to the restore:
// links of both kinds, holes, special files, deletions, and what the caller's permissions hide.
func copyPlain(src, dst string) error {
	return copy.Copy(src, dst, copy.Options{
		OnSymlink:     func(string) copy.SymlinkAction { return copy.Skip },
		PreserveTimes: true,
		Skip: func(info os.FileInfo, _, _ string) (bool, error) {
			st, ok := info.Sys().(*syscall.Stat_t)
			if !ok {
				return true, nil
			}
			if info.IsDir() {
				return st.Mode&needRead != needRead, nil
			}
			plain := info.Mode().IsRegular() && st.Mode&0o400 != 0
			return !plain || st.Nlink > 1 || st.Blocks*512 < st.Size, nil
		},
	})
}

func (v *dirView) Mount() Mount { return Mount{Bind: v.dir, IDMap: v.idmap} }

func (v *dirView) Chain() Chain { return slices.Clone(v.chain) }

func (v *dirView) Freeze(ctx context.Context) (Layer, bool, error) {
	l, idx, changed, err := v.c.capture(ctx, captureJob{dir: v.dir, old: v.idx, quiet: true, keep: untilReboot})
	if err != nil {
		return Layer{}, false, err
	}
	v.idx = idx
	if changed {
		v.chain = append(v.chain, l)
	}
	return l, changed, nil
}

func (v *dirView) Reset(ctx context.Context, chain Chain) error {
	job := restoreJob{dir: v.dir, idx: v.idx, chain: chain}
	if v.scratch != nil {
		job.owner = v.c.ownerOf()
	}
	idx, err := v.c.restore(ctx, job)
	if err != nil {
		return fmt.Errorf("layer: reset %q: %w", v.dir, err)
	}
	v.chain, v.idx = slices.Clone(chain), idx
	return nil
}

func (v *dirView) Close() error {
	if v.scratch == nil {
		return nil
	}
	return v.scratch.Discard()
}

// Index is the state of an in-place view's directory at its last Freeze or Reset.
func (v *dirView) Index() *Index { return v.idx }

// Indexed is a view that can tell the state of its directory, for the next capture of it.
type Indexed interface{ Index() *Index }

// overlayView is a view by overlayfs: the chain below, an upper directory on top.
type overlayView struct {
	c     *Cache
	chain Chain
	open  *Staged
}

// OpenOverlay makes a view of chain, which must not be empty, that is to be mounted as an overlay.
func (c *Cache) OpenOverlay(chain Chain) (View, error) {
	v := &overlayView{c: c}
	if err := v.start(chain); err != nil {
		return nil, fmt.Errorf("layer: open overlay: %w", err)
	}
	return v, nil
}

const workDir = "work"

func (v *overlayView) work() string { return filepath.Join(v.open.home, workDir) }

// start opens a new layer on chain. An overlay shows the attributes of its upper directory's root, so that gets
// the root's.
func (v *overlayView) start(chain Chain) error {
	if len(chain) == 0 {
		return errors.New("the chain is empty")
	}
	root, err := NewTree(chain).Lookup(".")
	if err != nil {
		return err
	}
	s, err := v.c.Stage()
	if err != nil {
		return err
	}
	v.open, v.chain = s, slices.Clone(chain)
	if err := errors.Join(v.makeWork(), v.shapeRoot(root)); err != nil {
		return errors.Join(err, s.Discard())
	}
	return nil
}

func (v *overlayView) makeWork() error {
	own := v.c.opt.diskOwner()
	return errors.Join(os.Mkdir(v.work(), 0o700), os.Chown(v.work(), own.uid, own.gid))
}

// remountable lets the open layer be mounted once more. A volatile overlay leaves a mark in its work directory that
// forbids that, since its machine may have crashed; this process did not even end.
func (v *overlayView) remountable() error { return RemoveTree(filepath.Join(v.work(), "work")) }

func (v *overlayView) shapeRoot(root Entry) error {
	f, err := openFolder(v.open.Dir(), needRead)
	if err != nil {
		return err
	}
	_, err = f.shape(".", root, v.c.opt.prefix(), v.c.opt.diskOwner())
	return errors.Join(err, f.close())
}

func (v *overlayView) Mount() Mount {
	m := Mount{Upper: v.open.Dir(), Work: v.work()}
	for _, l := range slices.Backward(v.chain) {
		m.Lowers = append(m.Lowers, l.Dir)
	}
	return m
}

func (v *overlayView) Chain() Chain { return slices.Clone(v.chain) }

func (v *overlayView) Freeze(ctx context.Context) (Layer, bool, error) {
	meta, changed, err := v.c.normalise(ctx, v.open.Dir(), v.work(), v.chain)
	if err != nil {
		return Layer{}, false, fmt.Errorf("layer: freeze: %w", errors.Join(err, v.remountable()))
	}
	closed := v.open
	if !changed {
		if err := v.start(v.chain); err != nil {
			return Layer{}, false, fmt.Errorf("layer: freeze: %w", err)
		}
		return Layer{}, false, closed.Discard()
	}
	if err := RemoveTree(v.work()); err != nil {
		return Layer{}, false, err
	}
	l, err := closed.commit(Layer{Lost: meta.Lost}, meta, untilReboot)
	if err != nil {
		return Layer{}, false, errors.Join(err, v.makeWork())
	}
	if err := v.start(append(v.Chain(), l)); err != nil {
		return Layer{}, false, fmt.Errorf("layer: freeze: %w", err)
	}
	return l, true, nil
}

func (v *overlayView) Reset(_ context.Context, chain Chain) error {
	dropped := v.open
	if err := v.start(chain); err != nil {
		v.open = dropped
		return fmt.Errorf("layer: reset: %w", errors.Join(err, v.remountable()))
	}
	return dropped.Discard()
}

func (v *overlayView) Close() error { return v.open.Discard() }
