package layer

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

func TestCache_RestoreMirrors(t *testing.T) {
	outside := scratch(t)
	must(t, write(outside, "keep/1", "kept"))
	must(t, os.Chmod(outside+"/keep/1", 0o640))
	before := take(t, outside)
	tests := map[string]func(dir string) error{
		"Nothing":      func(string) error { return nil },
		"Extras":       func(d string) error { return errors.Join(write(d, "more/x/y", "y"), unix.Mkfifo(d+"/dir/q", 0o600)) },
		"ExtraSocket":  func(d string) error { return layertest.Socket(d + "/dir/s") },
		"ExtraLinkOut": func(d string) error { return os.Symlink(outside+"/keep", d+"/node_modules") },
		"FileToLinkOut": func(d string) error {
			return errors.Join(os.Remove(d+"/a.txt"), os.Symlink(outside+"/keep/1", d+"/a.txt"))
		},
		"DirToLinkOut": func(d string) error {
			return errors.Join(os.RemoveAll(d+"/dir"), os.Symlink(outside+"/keep", d+"/dir"))
		},
		"ParentToLinkOut": func(d string) error {
			return errors.Join(os.RemoveAll(d+"/dir/sub"), os.Symlink(outside, d+"/dir/sub"))
		},
		"ReadOnly": func(d string) error {
			return errors.Join(layertest.EditReadOnly(d), os.Chmod(d+"/closed", 0o700), os.Remove(d+"/closed/f"), os.Chmod(d+"/closed", 0))
		},
		"ClosedRoot":    func(d string) error { return os.Chmod(d, 0) },
		"ReadOnlyRoot":  func(d string) error { return errors.Join(os.Remove(d+"/a.txt"), os.Chmod(d, 0o555)) },
		"ReadOnlyExtra": func(d string) error { return errors.Join(write(d, "m/f", ""), os.Chmod(d+"/m", 0o555)) },
		"Times":         func(d string) error { return os.Chtimes(d+"/dir", rootTime, rootTime) },
		"NewXattr":      func(d string) error { return unix.Setxattr(d+"/a.txt", "user.more", []byte("x"), 0) },
		"LinkMerged":    func(d string) error { return errors.Join(os.Remove(d+"/a.txt"), os.Link(d+"/h1", d+"/a.txt")) },
		"LinkBroken":    layertest.BreakLink,
		"TwinsMerged":   func(d string) error { return errors.Join(os.Remove(d+"/twin2"), os.Link(d+"/twin1", d+"/twin2")) },
		"FirstBroken": func(d string) error {
			return errors.Join(os.Remove(d+"/dir/h3"), write(d, "dir/h3", "linked\n"))
		},
		"LinksSwapped": func(d string) error {
			return errors.Join(os.Link(d+"/run.sh", d+"/r2"), os.Remove(d+"/h1"), os.Rename(d+"/r2", d+"/h1"))
		},
		"HolesFilled": func(d string) error {
			return os.WriteFile(d+"/holes", make([]byte, 3<<20), 0o644)
		},
	}
	for name, spoil := range tests {
		for _, known := range []bool{true, false} {
			t.Run(name+map[bool]string{true: "/Index", false: "/NoIndex"}[known], func(t *testing.T) {
				t.Parallel()
				c, dir, want := openTestCache(t, testOptions(t)), scratch(t), scratch(t)
				seed(t, dir)
				l, idx, _, err := c.Capture(context.Background(), dir, nil)
				must(t, err)
				_, err = c.Restore(context.Background(), want, nil, Chain{l})
				must(t, err)
				layertest.Compare(t, want, dir, layertest.Options{})
				must(t, spoil(dir))
				if !known {
					idx = nil
				}
				next, err := c.Restore(context.Background(), dir, idx, Chain{l})
				must(t, err)
				layertest.Compare(t, dir, want, layertest.Options{})
				if d := layertest.Diff(take(t, outside), before, layertest.Options{}); d != "" {
					t.Fatalf("outside (-got +want):\n%s", d)
				}
				checkQuiet(t, c, dir, next, Chain{l})
			})
		}
	}
}

// checkQuiet checks that a restored directory has nothing to capture, and that restoring it again touches nothing.
func checkQuiet(t *testing.T, c *Cache, dir string, idx *Index, chain Chain) {
	t.Helper()
	_, idx, changed, err := c.Capture(context.Background(), dir, idx)
	must(t, err)
	if changed {
		t.Fatal("Capture after Restore found a change")
	}
	before := changeTimes(t, dir)
	_, err = c.Restore(context.Background(), dir, idx, chain)
	must(t, err)
	if os.Getuid() != 0 {
		return // opening up one's own unreadable files changes their change time
	}
	if d := cmp.Diff(changeTimes(t, dir), before); d != "" {
		t.Fatalf("a second Restore touched (-got +want):\n%s", d)
	}
}

func changeTimes(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	times := map[string]int64{}
	must(t, filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		if errors.Is(err, os.ErrPermission) {
			return nil
		}
		var st unix.Stat_t
		err = errors.Join(err, unix.Lstat(p, &st))
		times[p] = st.Ctim.Nano()
		return err
	}))
	return times
}

// What the chain says it could not keep is not deleted; what came later is (case B1).
func TestCache_RestoreSparesWhatWasLost(t *testing.T) {
	c, dir := openTestCache(t, testOptions(t)), scratch(t)
	must(t, write(dir, "d/f", "f"))
	must(t, layertest.Socket(dir+"/d/old.sock"))
	l, idx, _, err := c.Capture(context.Background(), dir, nil)
	must(t, err)
	must(t, layertest.Socket(dir+"/d/new.sock"))
	must(t, write(dir, JournalDir+"/lock", "held"))
	next, err := c.Restore(context.Background(), dir, idx, Chain{l})
	must(t, err)
	got := take(t, dir)
	if got["d/old.sock"].Kind != "socket" || got["d/new.sock"].Kind != "" || got[JournalDir+"/lock"].Kind != "file" {
		t.Fatalf("old socket %q, new socket %q, journal %q; want socket, none, file",
			got["d/old.sock"].Kind, got["d/new.sock"].Kind, got[JournalDir+"/lock"].Kind)
	}
	if d := cmp.Diff(next.Lost(), []Lost{{"d/old.sock", lostSocket}}); d != "" {
		t.Fatalf("lost (-got +want):\n%s", d)
	}
}

// Case B6: a restore that cannot stage everything, here because the file system is full, changes nothing.
func TestCache_RestoreCaseB6FullDiskChangesNothing(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: mounts a small tmpfs")
	}
	c, dir := openTestCache(t, testOptions(t)), scratch(t)
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m,mode=0755"))
	defer func() { must(t, unix.Unmount(dir, 0)) }()
	must(t, os.WriteFile(dir+"/big", bytes.Repeat([]byte("b"), 3<<20), 0o644))
	must(t, write(dir, "small", "s"))
	l, idx, _, err := c.Capture(context.Background(), dir, nil)
	must(t, err)
	must(t, os.WriteFile(dir+"/big", bytes.Repeat([]byte("c"), 3<<20), 0o644))
	must(t, os.Remove(dir+"/small"))
	must(t, write(dir, "extra", "e"))
	before := take(t, dir)
	if _, err := c.Restore(context.Background(), dir, idx, Chain{l}); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("error %v, want ENOSPC", err)
	}
	sameSnapshot(t, "after a failed restore", take(t, dir), before, layertest.Options{})
	must(t, os.Truncate(dir+"/big", 0))
	_, err = c.Restore(context.Background(), dir, idx, Chain{l})
	must(t, err)
	if got := take(t, dir); got["big"].Size != 3<<20 || got["small"].Kind != "file" || got["extra"].Kind != "" {
		t.Fatalf("restored tree has %v", got)
	}
}

func TestCache_RestoreCancelled(t *testing.T) {
	c, dir, l, idx := captured(t)
	must(t, write(dir, "f", "changed"))
	before := take(t, dir)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := c.Restore(ctx, dir, idx, Chain{l}); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v, want context.Canceled", err)
	}
	sameSnapshot(t, "after a cancelled restore", take(t, dir), before, layertest.Options{})
}
