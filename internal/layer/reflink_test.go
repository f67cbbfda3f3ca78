package layer

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// used is what a file system has allocated, in bytes, once all is on the disk.
func used(t *testing.T, dir string) int64 {
	t.Helper()
	must(t, syncFS(dir))
	var st unix.Statfs_t
	must(t, unix.Statfs(dir, &st))
	return int64(st.Blocks-st.Bfree) * st.Bsize
}

// Where files can share blocks, a base, a view of it, a restore and a checkpoint of a renamed directory cost no data.
func TestCache_SharesBlocks(t *testing.T) {
	const size = 32 << 20
	for _, fs := range []string{"xfs", "btrfs"} {
		t.Run(fs, func(t *testing.T) {
			at := layertest.Loop(t, fs)
			c := cacheIn(t, at, testOptions(t))
			dir := filepath.Join(at, "original")
			must(t, os.Mkdir(dir, 0o755))
			must(t, os.WriteFile(dir+"/big", bytes.Repeat([]byte("0123456789abcdef"), size/16), 0o644))
			f, err := os.Create(dir + "/holes")
			must(t, err)
			_, err = f.WriteAt([]byte("end"), size)
			must(t, err)
			must(t, f.Close())
			choice, err := c.Choose("", "cannot be mounted")
			must(t, err)
			if choice.Driver != Reflink {
				t.Fatalf("choice is %v, want reflink", choice)
			}
			before := used(t, at)
			l, _, _, err := c.Capture(context.Background(), dir, nil)
			must(t, err)
			v, err := c.Open(context.Background(), Reflink, Chain{l})
			must(t, err)
			defer v.Close()
			to := filepath.Join(at, "restored")
			must(t, os.Mkdir(to, 0o755))
			_, err = c.Restore(context.Background(), to, nil, Chain{l})
			must(t, err)
			must(t, os.Rename(v.Mount().Bind+"/big", v.Mount().Bind+"/moved"))
			_, _, err = v.Freeze(context.Background())
			must(t, err)
			if more := used(t, at) - before; more > size/4 {
				t.Errorf("a base, a view, a restore and a checkpoint of %d bytes allocated %d", size, more)
			}
			layertest.Compare(t, to, dir, layertest.Options{})
		})
	}
}

// A copy between two file systems is one, and complete.
func TestCopyContent_AcrossFileSystems(t *testing.T) {
	shm, err := os.MkdirTemp("/dev/shm", "layer")
	must(t, err)
	t.Cleanup(func() { must(t, RemoveTree(shm)) })
	dir := scratch(t)
	must(t, layertest.Sparse(dir+"/f"))
	src, err := os.Open(dir + "/f")
	must(t, err)
	defer src.Close()
	dst, err := os.Create(shm + "/f")
	must(t, err)
	must(t, copyContent(dst, src, 3<<20))
	must(t, dst.Close())
	if d := layertest.Diff(take(t, shm), take(t, dir), layertest.Options{NoTimes: true, Skip: []string{"."}}); d != "" {
		t.Fatalf("(-got +want):\n%s", d)
	}
}

func TestCache_Choose(t *testing.T) {
	c := openTestCache(t, testOptions(t))
	shares := c.tryReflink() == nil // the temporary directory may be on any file system
	best := Copy
	if shares {
		best = Reflink
	}
	const no = "the kernel says no"
	for _, tc := range []struct {
		name, noOverlay string
		want, got       Driver
		why             string
	}{
		{"Best", "", "", Overlay, ""},
		{"Overlay", "", Overlay, Overlay, ""},
		{"Copy", "", Copy, Copy, "overlay: not asked for; reflink: not asked for"},
		{"NoOverlay", no, "", best, no},
		{"CopyWithoutOverlay", no, Copy, Copy, no},
		{"OverlayImpossible", no, Overlay, "", no},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := c.Choose(tc.want, tc.noOverlay)
			if got.Driver != tc.got || (err == nil) != (tc.got != "") {
				t.Fatalf("got %v, %v; want %q", got, err, tc.got)
			}
			why := got.Why
			if err != nil {
				why = err.Error()
			}
			if !strings.Contains(why, tc.why) || tc.why == "" && why != "" {
				t.Errorf("why is %q, want %q in it", why, tc.why)
			}
		})
	}
	if _, err := ParseDriver("in_place"); err == nil {
		t.Error("in_place was taken as a driver to ask for")
	}
}
