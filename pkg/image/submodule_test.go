package image

import "testing"

func TestOfSubmodule(t *testing.T) {
	for _, tc := range []struct {
		config, key, value string
		want               bool
	}{
		{".git/modules/sub/config", "core.worktree", "../../../sub", true},
		{"./.git/modules/a/b/config", "core.worktree", "../../../../deep/sub", true},
		{".git/modules/sub/modules/in/config", "core.worktree", "../../../../../sub/in", true},
		{".git/modules/sub/config", "core.worktree", "../../../../etc", false},
		{".git/modules/sub/config", "core.worktree", "../../..", false},
		{".git/modules/sub/config", "core.worktree", "../../../../../..", false},
		{".git/modules/sub/config", "core.worktree", "../../hooks", false},
		{".git/modules/sub/config", "core.worktree", "/etc", false},
		{".git/modules/sub/config", "core.fsmonitor", "../../../sub", false},
		{".git/config", "core.worktree", "../sub", false},
	} {
		if got := ofSubmodule(tc.config, tc.key, tc.value); got != tc.want {
			t.Errorf("%s %s=%s: got %v, want %v", tc.config, tc.key, tc.value, got, tc.want)
		}
	}
}
