package image

import (
	"path"
	"strings"
)

// ofSubmodule tells whether a setting is what git itself writes into a submodule's repository: where its work tree is, which
// must be in the workspace and not in .git.
func ofSubmodule(config, key, value string) bool {
	dir := path.Dir(path.Clean(config))
	if key != "core.worktree" || path.IsAbs(value) || !strings.HasPrefix(dir, ".git/modules/") {
		return false
	}
	tree := path.Join(dir, value)
	return tree != "." && tree != ".." && !strings.HasPrefix(tree, "../") && tree != ".git" && !strings.HasPrefix(tree, ".git/")
}
