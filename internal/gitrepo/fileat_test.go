package gitrepo

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A file of a commit is read as a sandbox of it would: by its links, within the tree, up to the limit.
func TestStore_FileAt(t *testing.T) {
	r := sample(t)
	r.write("dir/file", "content\n")
	for link, to := range map[string]string{"to": "dir/file", "dangling": "nowhere", "outside": "../../../../etc/passwd", "loop": "loop"} {
		if err := os.Symlink(to, filepath.Join(r.dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	r.write("a b\tc", "odd\n")
	r.commit("files")
	s := newStore(t)
	remote := Remote{URL: "file://" + r.dir}
	tip, err := s.Sync(t.Context(), remote)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"dir/file": "content\n", "to": "content\n", "a b\tc": "odd\n"} {
		if got, err := s.FileAt(t.Context(), remote, tip, path, 100); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v, want %q", path, got, err, want)
		}
	}
	for _, path := range []string{"nope", "dir", "dangling", "outside", "loop", "dir/file/x", "../x", "", "x\ny", "nope dir"} {
		if got, err := s.FileAt(t.Context(), remote, tip, path, 100); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: got %q, %v, want that there is none", path, got, err)
		}
	}
	if _, err := s.FileAt(t.Context(), remote, tip, "dir/file", 7); err == nil || !strings.Contains(err.Error(), "at most 7") {
		t.Errorf("a larger file: got %v", err)
	}
}
