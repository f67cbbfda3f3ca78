package layertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// loopBytes is the length of the image of a file system; it is sparse. Less than 300 MiB is refused by mkfs.xfs.
const loopBytes = 512 << 20

// Loop mounts a new file system of the kind xfs or btrfs, in an image in a directory of the test, and gives the mount
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
	dir := t.TempDir()
	image, at := filepath.Join(dir, "image"), filepath.Join(dir, "fs")
	must(t, os.Mkdir(at, 0o755))
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, loopBytes))
	run(t, mkfs, "-q", image)
	// mount(8) takes a free loop device, and tells the kernel to free it when nothing is mounted of it.
	run(t, "mount", "-o", "loop", "-t", kind, image, at)
	t.Cleanup(func() { run(t, "umount", at) })
	return at
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}
