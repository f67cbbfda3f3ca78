package applier

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// Who looks with git while an apply, or its end, is under way does not see its directory, and could not add it.
func TestSession_HidesItsDirectoryFromGit(t *testing.T) {
	root := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("git", append([]string{"-C", root, "-c", "safe.directory=*"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	git("init", "-q")
	s, err := Open(t.Context(), root, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(root, layer.JournalDir)); err != nil {
		t.Fatal(err)
	}
	if got := git("status", "--porcelain"); got != "" {
		t.Errorf("git status: got %q, want nothing", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(root, layer.JournalDir)); !os.IsNotExist(err) {
		t.Errorf("after Close: got %v, want nothing left", err)
	}
}
