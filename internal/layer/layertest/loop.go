package layertest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// loopBytes is the length of the image of a file system; it is sparse. Less than 300 MiB is refused by mkfs.xfs.
const loopBytes = 512 << 20

// Loop mounts a new file system of the kind xfs or btrfs, in an image in memory where that is possible, and gives the mount
// point. Everything is gone after the test. It skips the test where the caller is not root or the
// tools are absent.
func Loop(t testing.TB, kind string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: mounts a file system")
	}
	if err := unix.Access("/dev/loop-control", unix.W_OK); err != nil {
		t.Skipf("needs loop devices: %v", err)
	}
	mkfs, err := exec.LookPath("mkfs." + kind)
	if err != nil {
		t.Skip("needs mkfs." + kind)
	}
	image, at := filepath.Join(imageDir(t), "image"), filepath.Join(t.TempDir(), "fs")
	must(t, os.Mkdir(at, 0o755))
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, loopBytes))
	run(t, mkfs, "-q", image)
	// mount(8) takes a free loop device, and tells the kernel to free it when nothing is mounted of it.
	run(t, "mount", "-o", "loop", "-t", kind, image, at)
	t.Cleanup(func() { must(t, unmount(at)) })
	return at
}

// imageDir is a directory of the test in memory, so that a sync costs no wait for a disk, or else with its other ones.
func imageDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "image")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}

// busyLimit bounds the wait for a file system that is still in use: a process that is being started by another test has
// copies of all descriptors until it executes its program.
const busyLimit = 10 * time.Second

// unmount leaves nothing mounted, even when it fails.
func unmount(at string) error {
	for end := time.Now().Add(busyLimit); ; {
		err := unix.Unmount(at, 0)
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		if time.Now().After(end) {
			return errors.Join(err, unix.Unmount(at, unix.MNT_DETACH))
		}
		<-time.After(20 * time.Millisecond)
	}
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}
