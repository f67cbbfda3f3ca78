package gitrepo

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// Locate has to say what git says, in every state that a HEAD can be in.
func TestStore_LocateAgreesWithGit(t *testing.T) {
	cache, err := layer.OpenCache(filepath.Join(t.TempDir(), "layers"), layer.Options{Owner: os.Getuid(), Trusted: os.Getuid() == 0, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	s, err := OpenStore(Options{Dir: t.TempDir(), Cache: cache, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	const commit = "git -c user.name=t -c user.email=t@example.com commit -q --allow-empty -m "
	for name, script := range map[string]string{
		"Loose":    "git init -q -b trunk . && " + commit + "one",
		"Packed":   "git init -q -b feat/x . && " + commit + "one && git pack-refs --all",
		"Detached": "git init -q . && " + commit + "one && git checkout -q --detach",
		"Unborn":   "git init -q -b trunk .",
		"Sha256":   "git init -q --object-format=sha256 . && " + commit + "one",
		"Linked":   "git init -q ../main-" + "linked && cd ../main-linked && " + commit + "one && rmdir ../Linked && git worktree add -q -b other ../Linked",
		"Moved":    "git init -q . && " + commit + "one && git pack-refs --all && " + commit + "two",
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), name)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("sh", "-euc", script)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			got, err := s.Locate(context.Background(), dir)
			if err != nil {
				t.Fatal(err)
			}
			want, err := s.Inspect(context.Background(), dir)
			if err != nil {
				t.Fatal(err)
			}
			want.Modified, want.Untracked = 0, 0
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("(-git +Locate):\n%s", d)
			}
		})
	}
}
