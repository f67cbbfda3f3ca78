package base

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// old is when files of these tests were last changed, as far as that can be said without waiting.
var old = time.Unix(1_700_000_000, 5)

// fooling is a change of a path that a refresh must see, and what it is made to.
type fooling struct {
	name   string
	before func(w *world) error // makes what is there at the first image
	change func(w *world) error
}

func foolings() []fooling {
	return []fooling{
		{"SameSizeAndTime", nil, func(w *world) error {
			return errors.Join(w.set("f", "XXXX"), os.Chtimes(w.at("f"), old, old))
		}},
		{"SameSizeAndTimeByRename", nil, func(w *world) error {
			return errors.Join(w.set("tmp", "XXXX"), os.Chtimes(w.at("tmp"), old, old), os.Rename(w.at("tmp"), w.at("f")))
		}},
		{"TimesInTheFuture", func(w *world) error { return os.Chtimes(w.at("f"), old.AddDate(90, 0, 0), old.AddDate(90, 0, 0)) }, func(w *world) error {
			return errors.Join(w.set("f", "XXXX"), os.Chtimes(w.at("f"), old.AddDate(90, 0, 0), old.AddDate(90, 0, 0)))
		}},
		{"SwapOfFiles", nil, func(w *world) error { return exchange(w.at("f"), w.at("g")) }},
		{"SwapOfDirectories", nil, func(w *world) error { return exchange(w.at("d"), w.at("e")) }},
		{"RenamedDirectory", nil, func(w *world) error {
			return errors.Join(os.Rename(w.at("d"), w.at("tmp")), os.Rename(w.at("e"), w.at("d")), os.Rename(w.at("tmp"), w.at("e")))
		}},
		{"Xattr", nil, func(w *world) error { return unix.Setxattr(w.at("f"), "user.a", []byte("1"), 0) }},
		{"Mode", nil, func(w *world) error { return os.Chmod(w.at("f"), 0o755) }},
		{"LinkAndUnlink", nil, func(w *world) error {
			return errors.Join(os.Remove(w.at("g")), os.Link(w.at("f"), w.at("g")))
		}},
		{"LinkBroken", func(w *world) error { return os.Link(w.at("f"), w.at("h")) }, func(w *world) error {
			return errors.Join(os.Remove(w.at("h")), w.set("h", "ffff"), os.Chtimes(w.at("h"), old, old))
		}},
		{"WrittenByItsOtherName", func(w *world) error { return os.Link(w.at("f"), w.at("d/h")) }, func(w *world) error {
			return errors.Join(w.set("d/h", "XXXX"), os.Chtimes(w.at("f"), old, old))
		}},
		{"WrittenByANameOutside", func(w *world) error { return os.Link(w.at("f"), w.path+"-outside") }, func(w *world) error {
			return errors.Join(os.WriteFile(w.path+"-outside", []byte("XXXX"), 0o644), os.Chtimes(w.at("f"), old, old))
		}},
		{"FileBecomesLink", nil, func(w *world) error {
			return errors.Join(os.Remove(w.at("f")), os.Symlink("dddd", w.at("f")))
		}},
		{"HolePunched", nil, func(w *world) error {
			f, err := os.OpenFile(w.at("f"), os.O_RDWR, 0)
			if err != nil {
				return err
			}
			err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4)
			return errors.Join(err, os.Chtimes(w.at("f"), old, old), f.Close())
		}},
	}
}

func (w *world) at(name string) string { return filepath.Join(w.path, name) }

func (w *world) set(name, content string) error {
	return os.WriteFile(w.at(name), []byte(content), 0o644)
}

func exchange(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}

// furnish fills a path with pairs of files that a stat can tell apart by little.
func (w *world) furnish() {
	for name, content := range map[string]string{"f": "ffff", "g": "gggg", "d/x": "dddd", "e/x": "eeee"} {
		w.write(name, content)
		if err := os.Chtimes(w.at(name), old, old); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) writeOut() {
	w.t.Helper()
	for _, name := range []string{"f", "g", "d/x", "e/x"} {
		f, err := os.Open(w.at(name))
		if err == nil {
			err = errors.Join(f.Sync(), f.Close())
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// outwait returns when what was changed until now is too old to be racy.
func (w *world) outwait() {
	w.t.Helper()
	var st unix.Stat_t
	name := w.path + "-clock"
	if err := errors.Join(os.WriteFile(name, nil, 0o600), unix.Lstat(name, &st)); err != nil {
		w.t.Fatal(err)
	}
	for end := time.Unix(0, st.Ctim.Nano()).Add(50 * time.Millisecond); time.Now().Before(end); {
		runtime.Gosched()
	}
}

// Whatever changes between two refreshes, with whatever stat it leaves, is in the second image. Each change is made
// at once after the first image, and long enough after it that only the stat can tell.
func TestStore_CannotBeFooled(t *testing.T) {
	for _, f := range foolings() {
		for _, late := range []bool{false, true} {
			name := f.name + map[bool]string{false: "/AtOnce", true: "/Late"}[late]
			t.Run(name, func(t *testing.T) { fool(t, newWorld(t, Options{}), f, late) })
		}
	}
}

func fool(t *testing.T, w *world, f fooling, late bool) {
	t.Helper()
	w.furnish()
	if f.before != nil {
		if err := f.before(w); err != nil {
			t.Fatal(err)
		}
	}
	w.writeOut() // dirty pages alone would be a reason to read the files again
	if late {
		w.outwait()
	}
	w.get(w.path)
	if err := f.change(w); errors.Is(err, unix.EOPNOTSUPP) {
		t.Logf("this file system has no such change: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	w.wantExact(w.get(w.path).Chain)
}

// mapped maps a file shared and writable, as a database does.
func mapped(t *testing.T, path string) []byte {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, 4, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(m); err != nil {
			t.Error(err)
		}
	})
	return m
}

// storeUnder checks that stores through a mapping are seen, of which only the first changes any time.
func storeUnder(t *testing.T, w *world) {
	t.Helper()
	w.furnish()
	m := mapped(t, w.at("f"))
	m[0] = 'a' // the page is dirty from here on, and nothing writes it out
	w.outwait()
	w.get(w.path)
	var before, after unix.Stat_t
	for i := range 3 {
		err := unix.Lstat(w.at("f"), &before)
		m[1] = byte('a' + i)
		if err := errors.Join(err, unix.Lstat(w.at("f"), &after)); err != nil {
			t.Fatal(err)
		}
		if i == 0 && before.Ctim != after.Ctim {
			t.Log("the store changed the times: the page had been written out")
		}
		w.wantExact(w.get(w.path).Chain)
		w.outwait()
	}
}

func TestStore_SeesStoresThroughAMapping(t *testing.T) { storeUnder(t, newWorld(t, Options{})) }

// A file whose pages are clean is not read again: its next store will show.
func TestStore_MappedAndWrittenOut(t *testing.T) {
	w := newWorld(t, Options{})
	w.furnish()
	m := mapped(t, w.at("f"))
	m[0] = 'a'
	if err := unix.Msync(m, unix.MS_SYNC); err != nil {
		t.Fatal(err)
	}
	w.outwait()
	w.get(w.path)
	m[1] = 'b'
	w.wantExact(w.get(w.path).Chain)
}

// on mounts a file system for a test's path.
func on(t *testing.T, w *world, args ...string) {
	t.Helper()
	if out, err := exec.Command("mount", append(args, w.path)...).CombinedOutput(); err != nil {
		t.Fatalf("mount %q: %v: %s", args, err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(w.path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// image makes a file system in a file.
func imageOf(t *testing.T, size string, mkfs ...string) string {
	t.Helper()
	if _, err := exec.LookPath(mkfs[0]); err != nil {
		t.Skip("needs a program: " + mkfs[0] + " is not installed")
	}
	name := filepath.Join(t.TempDir(), "image")
	if out, err := exec.Command("truncate", "-s", size, name).CombinedOutput(); err != nil {
		t.Fatalf("truncate: %v: %s", err, out)
	}
	if out, err := exec.Command(mkfs[0], append(mkfs[1:], name)...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", mkfs[0], err, out)
	}
	return name
}

// The same on other file systems: each must either stamp what is done to it, or be read again.
func TestStore_CannotBeFooledElsewhere(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: mounts file systems")
	}
	for name, mount := range map[string]func(t *testing.T, w *world){
		"Tmpfs": func(t *testing.T, w *world) { on(t, w, "-t", "tmpfs", "tmpfs") },
		"Xfs": func(t *testing.T, w *world) {
			on(t, w, "-o", "loop", imageOf(t, "320M", "mkfs.xfs", "-q"))
		},
		"Btrfs": func(t *testing.T, w *world) {
			on(t, w, "-o", "loop", imageOf(t, "128M", "mkfs.btrfs", "-q"))
		},
		"Ext4WithWholeSeconds": func(t *testing.T, w *world) {
			on(t, w, "-o", "loop", imageOf(t, "32M", "mkfs.ext4", "-q", "-I", "128"))
		},
		"Overlay": func(t *testing.T, w *world) { on(t, w, overlayOn(t, t.TempDir())...) },
		"OverlayInMemory": func(t *testing.T, w *world) {
			below := &world{path: t.TempDir()}
			on(t, below, "-t", "tmpfs", "tmpfs")
			on(t, w, overlayOn(t, below.path)...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			each := func(t *testing.T) *world {
				w := newWorld(t, Options{})
				mount(t, w)
				return w
			}
			t.Run("Mapping", func(t *testing.T) { storeUnder(t, each(t)) })
			w := each(t)
			top := w.path
			for _, f := range foolings() {
				t.Run(f.name, func(t *testing.T) {
					w.t, w.path = t, filepath.Join(top, f.name)
					if err := os.Mkdir(w.path, 0o755); err != nil {
						t.Fatal(err)
					}
					fool(t, w, f, false)
				})
			}
			w.t, w.path = t, top
		})
	}
}

// overlayOn are the arguments of mount(8) for an overlay with all its directories in dir.
func overlayOn(t *testing.T, dir string) []string {
	t.Helper()
	var o []string
	for _, part := range []string{"lowerdir", "upperdir", "workdir"} {
		d := filepath.Join(dir, part)
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		o = append(o, part+"="+d)
	}
	return []string{"-t", "overlay", "overlay", "-o", strings.Join(o, ",")}
}

// What is mounted over a directory is what the path shows, even where the stats are those of what it hides.
func TestStore_OtherDeviceSameStat(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: mounts file systems")
	}
	w := newWorld(t, Options{})
	w.furnish()
	image := imageOf(t, "32M", "mkfs.ext4", "-q")
	sub := &world{t: t, path: w.at("sub")}
	if err := os.Mkdir(sub.path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := exec.Command("mount", "-o", "loop", image, sub.path).Run(); err != nil {
		t.Fatal(err)
	}
	sub.write("x", "1111")
	twin := image + "-twin"
	if err := errors.Join(unix.Unmount(sub.path, 0), exec.Command("cp", image, twin).Run()); err != nil {
		t.Fatal(err)
	}
	// The content of the twin's file is changed below the file system: no stat can tell.
	if out, err := exec.Command("sed", "-i", "s/1111/2222/", twin).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	on(t, sub, "-o", "loop", image)
	w.outwait()
	w.get(w.path)
	on(t, sub, "-o", "loop", twin)
	w.wantExact(w.get(w.path).Chain)
}
