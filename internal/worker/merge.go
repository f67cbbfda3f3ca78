package worker

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/plan/applier"
)

// mergeFunc merges text files that both the plan and the original changed, as git would there.
func (w *Worker) mergeFunc(t *target, r checkpoint.Restored) applier.MergeFunc {
	base, ours := layer.NewTree(r.Chain[:r.BaseLayers]), layer.NewTree(r.Chain)
	return func(ctx context.Context, p layer.Path, original []byte) (_ []byte, _ bool, err error) {
		v := gitrepo.Versions{Path: string(p), Ours: original}
		for side, tree := range map[*[]byte]*layer.Tree{&v.Base: base, &v.Theirs: ours} {
			var fits bool
			if *side, fits, err = readUpTo(tree, p); err != nil || !fits {
				return nil, false, err
			}
		}
		m, err := w.repos.Git().NewMerger(filepath.Join(w.cfg.StateDir, "scratch"), t.info.Root)
		if err != nil {
			return nil, false, err
		}
		defer func() { err = errors.Join(err, m.Close()) }()
		return m.Merge(ctx, v)
	}
}

// readUpTo reads a file of a tree, false if it is larger than what is merged.
func readUpTo(tree *layer.Tree, p layer.Path) ([]byte, bool, error) {
	r, err := tree.Open(p)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, applier.MergeLimit+1))
	return b, len(b) <= applier.MergeLimit, err
}
