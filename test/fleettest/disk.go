package fleettest

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// SmallDisk mounts a file system of a size for the place's account, and skips the test where only root could.
func (p *Place) SmallDisk(t *testing.T, size string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	dir := p.Path("disk")
	Must(t, os.Mkdir(dir, 0o755))
	Must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755,size="+size))
	UnmountAfter(t, dir)
	p.Own(t, dir)
	return dir
}

// UnmountAfter unmounts a directory at the end of the test, which fails where something still uses it.
func UnmountAfter(t testing.TB, dir string) {
	t.Helper()
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
			syscall.Unmount(dir, syscall.MNT_DETACH)
		}
	})
}

// FillTo fills a file system until so many bytes are free.
func FillTo(t testing.TB, dir string, free int64) (release func()) {
	t.Helper()
	var st syscall.Statfs_t
	Must(t, syscall.Statfs(dir, &st))
	file := filepath.Join(dir, "filler")
	f, err := os.Create(file)
	Must(t, err)
	Must(t, errors.Join(syscall.Fallocate(int(f.Fd()), 0, 0, max(4096, int64(st.Bavail)*st.Bsize-free)), f.Close()))
	return func() { Must(t, os.Remove(file)) }
}

// FillDisk leaves no room on a file system.
func FillDisk(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	Must(t, err)
	defer f.Close()
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
}

// Unfinished is what lies in those places below a worker's state directory where only what is under way may.
func Unfinished(t testing.TB, state string) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"layers/staging/*/*", "scratch/*", "bases/*.tmp*", "repos/staging/*"} {
		files, err := filepath.Glob(filepath.Join(state, "worker", pattern))
		Must(t, err)
		found = append(found, files...)
	}
	return found
}

// LeftViews are the sandboxes that lie on a worker's disk.
func (c *Cluster) LeftViews(t testing.TB, worker string) []string {
	t.Helper()
	views, err := filepath.Glob(c.Path(worker, "worker", "layers", "staging", "*", "*"))
	Must(t, err)
	return views
}
