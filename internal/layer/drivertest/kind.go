// Package drivertest is the conformance suite of layer drivers, and what other tests need to try something with
// each of them: a driver, a file system to use it on, and a way to work in its views, mounted or not.
//
// A test with all drivers is
//
//	func TestMain(m *testing.M) { os.Exit(layertest.Main(m, do)) } // do runs a step, named by any string, in a directory
//
//	drivertest.Each(t, do, func(t *testing.T, k drivertest.Kind) {
//		c := k.Cache(t)               // a layer cache on the kind's file system
//		v := k.View(t, c, dir)        // captures dir and opens a view of it, closed with the test
//		shown := k.Act(t, v, "step")  // runs do("step", root of the view), then describes what the view shows
//		l, changed, err := v.Freeze(t.Context())
//	})
//
// It must not know how a driver does what it does.
package drivertest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/disk"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// Kind is a driver under test.
type Kind struct {
	Name   string
	Driver layer.Driver
	// FS is the file system that cache and views lie on, xfs, btrfs or memory; "" is that of the test's own directory.
	FS string
	// Brief: the suite leaves out the long tests, which the driver passes on another file system.
	Brief bool
	// Trusted: an overlay as a root worker mounts it; else, as an ordinary user does.
	Trusted bool
	// Ignore is what a view of this kind shows otherwise than it was: overlayfs without an index gives the names of a
	// file that it copied up different inode numbers; in a user namespace owners have other numbers.
	Ignore layertest.Options
	// Disk: the open layer lies on a disk of its own.
	Disk bool
	// Do runs a step; for an overlay in a process of its own, where layertest.Main has to be given the same one.
	Do func(step, dir string) error

	root string // where FS is mounted
}

// Kinds are all drivers on all file systems, whether this machine and user can use them or not.
func Kinds(do func(step, dir string) error) []Kind {
	user := layertest.Options{NoLinks: true, NoOwners: true}
	kinds := []Kind{
		{Name: "OverlayUser", Driver: layer.Overlay, Ignore: user},
		{Name: "OverlayRoot", Driver: layer.Overlay, Trusted: true},
		{Name: "OverlayDisk", Driver: layer.Overlay, Trusted: true, Disk: true, Brief: true},
		{Name: "OverlayXFS", Driver: layer.Overlay, Trusted: true, FS: "xfs", Brief: true},
		{Name: "OverlayBtrfs", Driver: layer.Overlay, Trusted: true, FS: "btrfs", Brief: true},
		{Name: "ReflinkXFS", Driver: layer.Reflink, FS: "xfs"},
		{Name: "ReflinkBtrfs", Driver: layer.Reflink, FS: "btrfs", Brief: true},
		{Name: "Copy", Driver: layer.Copy, FS: memory},
		{Name: "InPlace", Driver: layer.InPlace, FS: memory},
		{Name: "InPlaceXFS", Driver: layer.InPlace, FS: "xfs", Brief: true},
		{Name: "InPlaceBtrfs", Driver: layer.InPlace, FS: "btrfs", Brief: true},
	}
	for i := range kinds {
		kinds[i].Do = do
	}
	return kinds
}

// Each runs a test with every kind, as a subtest of its name, side by side. It skips those that only root can use, and those that need tools
// which are absent.
func Each(t *testing.T, do func(step, dir string) error, test func(t *testing.T, k Kind)) {
	for _, k := range Kinds(do) {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			test(t, k.Ready(t))
		})
	}
}

// Ready makes a kind usable until the test ends, or skips the test.
func (k Kind) Ready(t testing.TB) Kind {
	t.Helper()
	if testing.Short() && k.FS != "" {
		t.Skip("short: the driver is tried on one file system")
	}
	if k.Trusted && os.Getuid() != 0 {
		t.Skip("needs root: trusted attributes")
	}
	switch k.FS {
	case "":
	case memory:
		k.root = memoryDir(t)
	default:
		k.root = layertest.Loop(t, k.FS)
	}
	return k
}

// memory is a file system that costs no wait for a disk: restores sync what they changed.
const memory = "memory"

// memoryDir is where that is mounted on most machines, "" for the test's own directory.
func memoryDir(t testing.TB) string {
	t.Helper()
	const shm = "/dev/shm"
	dir, err := os.MkdirTemp(shm, "driver")
	if err != nil {
		return ""
	}
	defer os.Remove(dir)
	if unix.Setxattr(dir, "user.try", []byte("1"), 0) != nil {
		return ""
	}
	return shm
}

// Can tells whether a step of layertest can be done in a view of this kind.
func (k Kind) Can(step string) bool {
	return k.Driver != layer.Overlay || k.Trusted || !layertest.NeedsRedirect(step)
}

// Dir makes a directory on the kind's file system, that is removed whatever its modes.
func (k Kind) Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(k.root, "driver")
	must(t, err)
	t.Cleanup(func() { must(t, layer.RemoveTree(dir)) })
	return dir
}

// Cache opens a cache on the kind's file system.
func (k Kind) Cache(t testing.TB) *layer.Cache {
	t.Helper()
	trusted := os.Getuid() == 0 && (k.Trusted || k.Driver != layer.Overlay)
	o := layer.Options{Owner: os.Getuid(), Trusted: trusted, Log: zerolog.New(zerolog.NewTestWriter(t))}
	c, err := layer.OpenCache(filepath.Join(k.Dir(t), "cache"), o)
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

// View captures dir as the base of a chain of one layer and opens a view of it, which is closed with the test. A view in place
// is dir itself.
func (k Kind) View(t testing.TB, c *layer.Cache, dir string) layer.View {
	t.Helper()
	l, idx, _, err := c.Capture(t.Context(), dir, nil)
	must(t, err)
	var v layer.View
	if k.Driver == layer.InPlace {
		v, err = c.OpenInPlace(t.Context(), dir, layer.Chain{l}, idx)
	} else {
		v, err = k.open(t, c, layer.Chain{l})
	}
	must(t, err)
	t.Cleanup(func() { must(t, v.Close()) })
	return v
}

// OnChain opens a view of a chain, with no view of any kind before it, which is closed with the test.
func (k Kind) OnChain(t testing.TB, c *layer.Cache, chain layer.Chain) layer.View {
	t.Helper()
	var v layer.View
	var err error
	if k.Driver == layer.InPlace {
		dir := k.Dir(t)
		var idx *layer.Index
		idx, err = c.Restore(t.Context(), dir, nil, chain)
		must(t, err)
		v, err = c.OpenInPlace(t.Context(), dir, chain, idx)
	} else {
		v, err = k.open(t, c, chain)
	}
	must(t, err)
	t.Cleanup(func() { must(t, v.Close()) })
	return v
}

// diskSize is more than any test writes, in bytes.
const diskSize = 256 << 20

func (k Kind) open(t testing.TB, c *layer.Cache, chain layer.Chain) (layer.View, error) {
	t.Helper()
	if !k.Disk {
		return c.Open(t.Context(), k.Driver, chain)
	}
	m, err := disk.Open(t.Context(), k.Dir(t))
	if errors.Is(err, disk.ErrAbsent) {
		t.Skip(err)
	}
	must(t, err)
	d, err := m.Make(t.Context(), diskSize)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return c.OpenOn(t.Context(), d, chain)
}

// Act runs a step in a view and describes what the view shows then.
func (k Kind) Act(t testing.TB, v layer.View, step string) layertest.Snapshot {
	t.Helper()
	m := v.Mount()
	if m.Bind == "" {
		return layertest.InOverlay(t, k.overlay(m), step)
	}
	must(t, k.Do(step, m.Bind))
	return take(t, m.Bind)
}

// Show describes what a view shows.
func (k Kind) Show(t testing.TB, v layer.View) layertest.Snapshot {
	t.Helper()
	m := v.Mount()
	if m.Bind != "" {
		return take(t, m.Bind)
	}
	return layertest.InOverlay(t, k.overlay(m), "")
}

// overlay is a view's mount for another process, where a disk is not that process's own descriptor.
func (k Kind) overlay(m layer.Mount) layertest.Overlay {
	theirs := func(path string) string {
		if rest, ok := strings.CutPrefix(path, "/proc/self/"); ok {
			return fmt.Sprintf("/proc/%d/%s", os.Getpid(), rest)
		}
		return path
	}
	return layertest.Overlay{Lowers: m.Lowers, Upper: theirs(m.Upper), Work: theirs(m.Work), Trusted: k.Trusted}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func take(t testing.TB, dir string) layertest.Snapshot {
	t.Helper()
	s, err := layertest.Take(dir)
	must(t, err)
	return s
}
