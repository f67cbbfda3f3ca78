package gitrepo

import (
	"context"
	"fmt"
)

// Locate is Inspect without looking at the work tree's files: Modified and Untracked stay 0,
// and its cost does not grow with the tree.
func (s *Store) Locate(ctx context.Context, path string) (Info, error) {
	info, err := locate(path)
	if err != nil || info.Kind == KindNone || info.Kind == KindGitDir {
		return info, err
	}
	if err := s.git.inspectHead(ctx, &info); err != nil {
		return info, fmt.Errorf("gitrepo: locate %q: %w", path, err)
	}
	return info, nil
}
