package secret_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/secret"
)

func TestChain_Get(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	write("TOKEN", "s3cret\n", 0o600)
	write("OWNER_ONLY", "x", 0o400)
	write("GROUP", "canary", 0o640)
	write("WORLD", "canary", 0o604)
	write("WRITABLE", "canary", 0o620)
	write("LARGE", strings.Repeat("x", secret.MaxValue+1), 0o600)
	write("EMPTY", "", 0o600)
	if err := os.Symlink("TOKEN", filepath.Join(dir, "LINK")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "FOLDER"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "FIFO"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("WARMFLEET_SECRET_TOKEN", "from the environment")
	t.Setenv("WARMFLEET_SECRET_OTHER", "other")
	t.Setenv("HIDDEN", "canary")
	chain := secret.Chain{secret.Dir(dir), secret.Env{}}
	for _, c := range []struct {
		name, want string
		err        error // nil: any when want is "-"
	}{
		{"TOKEN", "s3cret\n", nil},
		{"LINK", "s3cret\n", nil},
		{"OWNER_ONLY", "x", nil},
		{"EMPTY", "", nil},
		{"OTHER", "other", nil},
		{"GROUP", "", secret.ErrExposed},
		{"WORLD", "", secret.ErrExposed},
		{"WRITABLE", "", secret.ErrExposed},
		{"NONE", "", secret.ErrMissing},
		{"HIDDEN", "", secret.ErrMissing},
		{"LARGE", "-", nil},
		{"FOLDER", "-", nil},
		{"FIFO", "-", nil},
		{"", "", secret.ErrName},
		{"../TOKEN", "", secret.ErrName},
		{"1A", "", secret.ErrName},
		{"A=B", "", secret.ErrName},
		{strings.Repeat("A", 129), "", secret.ErrName},
	} {
		got, err := chain.Get(t.Context(), c.name)
		switch {
		case c.want == "-":
			if err == nil || errors.Is(err, secret.ErrMissing) {
				t.Errorf("%q: got %q, %v; want an error", c.name, got, err)
			}
		case !errors.Is(err, c.err) || string(got) != c.want:
			t.Errorf("%q: got %q, %v; want %q, %v", c.name, got, err, c.want, c.err)
		}
		if err != nil && strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: the error holds the value: %v", c.name, err)
		}
	}
}
