package natsboot

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestStateDir_Order(t *testing.T) {
	tmp := t.TempDir()
	path := func(name string) string { return filepath.Join(tmp, name) }
	must(t, os.WriteFile(path("file"), nil, 0o600))
	tests := []struct {
		name, flag, env, xdg, home string
		want                       string
	}{
		{"Flag", path("flag"), path("env"), path("xdg"), path("home"), path("flag")},
		{"Variable", "", path("env"), path("xdg"), path("home"), path("env")},
		{"XDG", "", "", path("xdg"), path("home"), path("xdg/warmfleet")},
		{"Home", "", "", "", path("home"), path("home/.local/state/warmfleet")},
		{"RelativeXDGIgnored", "", "", "xdg", path("home2"), path("home2/.local/state/warmfleet")},
		{"UnusableXDG", "", "", path("file"), path("home3"), path("home3/.local/state/warmfleet")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv(StateDirEnv, tt.env)
			t.Setenv("XDG_STATE_HOME", tt.xdg)
			t.Setenv("HOME", tt.home)
			got, err := StateDir(tt.flag)
			if got != tt.want || err != nil {
				t.Fatalf("got %q, %v, want %q", got, err, tt.want)
			}
			fi, err := os.Stat(got)
			must(t, err)
			if fi.Mode().Perm() != 0o700 {
				t.Errorf("mode: got %o, want 700", fi.Mode().Perm())
			}
		})
	}
}

func TestStateDir_HomeUnset(t *testing.T) {
	t.Setenv(StateDirEnv, "")
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("HOME", "")
	dirs := stateDirs("")
	if len(dirs) != 1 || !strings.HasSuffix(dirs[0], "/.local/state/warmfleet") {
		t.Errorf("got %v, want the home of the passwd entry", dirs)
	}
}

func TestStateDir_Refused(t *testing.T) {
	tmp := t.TempDir()
	path := func(name string) string { return filepath.Join(tmp, name) }
	must(t, os.WriteFile(path("file"), nil, 0o600))
	must(t, os.Mkdir(path("shared"), 0o700))
	must(t, os.WriteFile(path("shared/other"), nil, 0o600))
	must(t, os.Chmod(path("shared"), 0o777))
	tests := []struct{ name, dir string }{
		{"File", path("file")},
		{"BelowFile", path("file/below")},
		{"OthersMayWrite", path("shared")},
		{"Proc", "/proc/warmfleet"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := StateDir(tt.dir)
			if !errors.Is(err, ErrNoStateDir) {
				t.Fatalf("got %q, %v, want ErrNoStateDir", got, err)
			}
			if !strings.Contains(err.Error(), "--state-dir") || strings.Contains(err.Error(), "\n") {
				t.Errorf("message: %q", err)
			}
		})
	}
	fi, err := os.Stat(path("shared"))
	must(t, err)
	if fi.Mode().Perm() != 0o777 {
		t.Errorf("a directory that is not ours became %o", fi.Mode().Perm())
	}
}

func TestStateDir_MadePrivate(t *testing.T) {
	for _, file := range []string{"", lockFile} {
		dir := filepath.Join(t.TempDir(), "d")
		must(t, os.Mkdir(dir, 0o755))
		if file != "" {
			must(t, os.WriteFile(filepath.Join(dir, file), nil, 0o600))
		}
		_, err := StateDir(dir)
		must(t, err)
		fi, err := os.Stat(dir)
		must(t, err)
		if fi.Mode().Perm() != 0o700 {
			t.Errorf("with %q: mode %o, want 700", file, fi.Mode().Perm())
		}
	}
}

func TestStateDir_OwnLinkFollowed(t *testing.T) {
	tmp := t.TempDir()
	must(t, os.Mkdir(filepath.Join(tmp, "real"), 0o700))
	must(t, os.Symlink("real", filepath.Join(tmp, "link")))
	if _, err := StateDir(filepath.Join(tmp, "link")); err != nil {
		t.Error(err)
	}
}

func TestStateDir_OtherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("reason: only root can make files of another user")
	}
	const other = 12345
	tmp := t.TempDir()
	path := func(name string) string { return filepath.Join(tmp, name) }
	must(t, os.Mkdir(path("theirs"), 0o700))
	must(t, os.Chown(path("theirs"), other, other))
	must(t, os.Mkdir(path("mine"), 0o700))
	must(t, os.Symlink("mine", path("link")))
	must(t, os.Lchown(path("link"), other, other))
	for _, dir := range []string{path("theirs"), path("link"), path("link/below")} {
		if got, err := StateDir(dir); !errors.Is(err, ErrNoStateDir) {
			t.Errorf("%s: got %q, %v, want ErrNoStateDir", dir, got, err)
		}
	}
	if entries, err := os.ReadDir(path("mine")); err != nil || len(entries) != 0 {
		t.Errorf("written through another user's link: %v, %v", entries, err)
	}
}

func TestStateDir_ReadOnly(t *testing.T) {
	dir := mount(t, "1m")
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	if got, err := StateDir(dir); !errors.Is(err, ErrNoStateDir) {
		t.Errorf("got %q, %v, want ErrNoStateDir", got, err)
	}
	if got, err := StateDir(filepath.Join(dir, "new")); !errors.Is(err, ErrNoStateDir) {
		t.Errorf("got %q, %v, want ErrNoStateDir", got, err)
	}
}

// mount makes a file system of size bytes.
func mount(t *testing.T, size string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("reason: only root can mount a file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700,size="+size); err != nil {
		t.Skipf("reason: cannot mount a file system here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}
