package layer

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const sized = 1 << 20

// layerOfSize captures a directory with one file of sized bytes under two names, and a hole of as many.
func layerOfSize(t *testing.T, top string) Layer {
	t.Helper()
	opt := testOptions(t)
	c, err := OpenCache(filepath.Join(top, "cache"), opt)
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	dir := filepath.Join(top, "original")
	must(t, write(dir, "f", string(make([]byte, sized))))
	must(t, os.Link(filepath.Join(dir, "f"), filepath.Join(dir, "g")))
	must(t, write(dir, "hole", ""))
	must(t, os.Truncate(filepath.Join(dir, "hole"), sized))
	must(t, exec.Command("sync", "-f", dir).Run())
	l, _, _, err := c.Capture(t.Context(), dir, nil)
	must(t, err)
	must(t, exec.Command("sync", "-f", dir).Run())
	return l
}

func diskSize(t *testing.T, l Layer, count Count) int64 {
	t.Helper()
	size, err := l.DiskSize(count)
	must(t, err)
	return size
}

func TestLayer_DiskSize(t *testing.T) {
	l := layerOfSize(t, t.TempDir())
	for _, count := range []Count{Allocated, Exclusive} {
		if got := diskSize(t, l, count); got < sized || got > sized+sized/4 {
			t.Errorf("count %d: %d bytes, want about %d", count, got, sized)
		}
	}
}

// What a layer shares with the original takes no room until the original changes.
func TestLayer_DiskSizeShared(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: mounts a file system")
	}
	if _, err := exec.LookPath("mkfs.xfs"); err != nil {
		t.Skip("needs a program: mkfs.xfs is not installed")
	}
	top, image := t.TempDir(), filepath.Join(t.TempDir(), "image")
	must(t, exec.Command("truncate", "-s", "320M", image).Run())
	must(t, exec.Command("mkfs.xfs", "-q", image).Run())
	must(t, exec.Command("mount", "-o", "loop", image, top).Run())
	t.Cleanup(func() { must(t, unix.Unmount(top, unix.MNT_DETACH)) })
	l := layerOfSize(t, top)
	if got := diskSize(t, l, Allocated); got < sized {
		t.Errorf("allocated: %d bytes, want %d at least", got, sized)
	}
	if got := diskSize(t, l, Exclusive); got > sized/4 {
		t.Errorf("exclusive: %d bytes of a reflinked copy, want next to none", got)
	}
	must(t, os.Remove(filepath.Join(top, "original/f")))
	must(t, os.Remove(filepath.Join(top, "original/g")))
	for end := time.Now().Add(10 * time.Second); diskSize(t, l, Exclusive) < sized; { // xfs frees extents beside all else
		if time.Now().After(end) {
			t.Fatalf("exclusive, after the original went: %d bytes, want %d", diskSize(t, l, Exclusive), sized)
		}
	}
}
