package layer

import (
	"context"
	"fmt"
	"os"
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
	// Live: the last of Lowers is an original of its real owner, which the sandbox has to see as its own.
	Live bool
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
	l, idx, changed, err := v.c.capture(ctx, captureJob{dir: v.dir, old: v.idx, quiet: v.scratch != nil, keep: untilReboot})
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
