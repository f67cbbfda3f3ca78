package layer

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

func commitFile(t *testing.T, c *Cache, name string) Layer {
	t.Helper()
	s, err := c.Stage()
	must(t, err)
	must(t, write(s.Dir(), name, "content"))
	l, err := s.Commit(Meta{})
	must(t, err)
	return l
}

func TestCache_GetFindRemove(t *testing.T) {
	c := openTestCache(t, testOptions(t))
	l := commitFile(t, c, "f")
	got, err := c.Get(l.ID)
	must(t, err)
	if d := cmp.Diff(got, l); d != "" {
		t.Fatalf("Get (-got +want):\n%s", d)
	}
	l.Name, l.Size = "sha256-x.tar.zst", 7
	must(t, c.setName(l))
	again, err := OpenCache(c.dir, c.opt)
	must(t, err)
	defer again.Close()
	for _, c := range []*Cache{c, again} {
		if got, ok := c.Find(l.Name); !ok || cmp.Diff(got, l) != "" {
			t.Fatalf("Find gives %v, %v; want %v", got, ok, l)
		}
	}
	must(t, c.Remove(l.ID))
	must(t, c.Remove(l.ID))
	if _, err := c.Get(l.ID); !errors.Is(err, ErrNotFound) {
		t.Fatalf("Get of a removed layer: error %v, want ErrNotFound", err)
	}
	if _, ok := again.Find(l.Name); ok {
		t.Fatal("Find gives a removed layer")
	}
	for _, id := range []string{"", "..", "../x", stagingDir, "01ARZ3NDEKTSV4RRFFQ69G5FAV"} {
		if _, err := c.Get(id); !errors.Is(err, ErrNotFound) {
			t.Fatalf("Get(%q): error %v, want ErrNotFound", id, err)
		}
	}
}

func TestCache_OpenSweepsOnlyTheDead(t *testing.T) {
	c := openTestCache(t, testOptions(t))
	alive, err := c.Stage()
	must(t, err)
	dead := filepath.Join(c.dir, stagingDir, "01ARZ3NDEKTSV4RRFFQ69G5FAV")
	must(t, write(dead, "layer/fs/ro/f", "left"))
	must(t, os.Chmod(dead+"/layer/fs/ro", 0o555))
	second, err := OpenCache(c.dir, c.opt)
	must(t, err)
	defer second.Close()
	if _, err := os.Lstat(dead); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("staging of a dead process: error %v, want it gone", err)
	}
	if _, err := os.Lstat(alive.Dir()); err != nil {
		t.Fatalf("staging of a live process: %v", err)
	}
}

// After the machine restarts, a layer that was not synced is gone; one that was stays.
func TestCache_OpenAfterRestartOfTheMachine(t *testing.T) {
	c := openTestCache(t, testOptions(t))
	synced := commitFile(t, c, "f")
	s, err := c.Stage()
	must(t, err)
	loose, err := s.commitOr(Meta{}, untilReboot)
	must(t, err)
	if _, err := c.Get(loose.ID); err != nil {
		t.Fatalf("before the restart: %v", err)
	}
	record := filepath.Join(filepath.Dir(loose.Dir), metaFile)
	b, err := os.ReadFile(record)
	must(t, err)
	must(t, os.WriteFile(record, []byte(strings.Replace(string(b), bootID(), "another-boot", 1)), 0o600))
	damaged := commitFile(t, c, "g")
	must(t, os.Truncate(filepath.Join(filepath.Dir(damaged.Dir), metaFile), 0))
	after, err := OpenCache(c.dir, c.opt)
	must(t, err)
	defer after.Close()
	ids, err := after.Layers()
	must(t, err)
	if d := cmp.Diff(ids, []string{synced.ID}); d != "" {
		t.Fatalf("layers (-got +want):\n%s", d)
	}
}

func TestCache_LayersOfAnotherKindAreAbsent(t *testing.T) {
	c := openTestCache(t, testOptions(t))
	l := commitFile(t, c, "f")
	m, err := readMeta(filepath.Dir(l.Dir))
	must(t, err)
	m.Trusted = !m.Trusted
	must(t, writeMeta(filepath.Dir(l.Dir), m))
	if _, err := c.Get(l.ID); !errors.Is(err, ErrNotFound) {
		t.Fatalf("error %v, want ErrNotFound", err)
	}
}

func TestStaged_Adopt(t *testing.T) {
	c := openTestCache(t, testOptions(t))
	s, err := c.Stage()
	must(t, err)
	must(t, write(s.Dir(), "d/a", "a"))
	must(t, os.Link(s.Dir()+"/d/a", s.Dir()+"/b"))
	must(t, layertest.Socket(s.Dir()+"/d/s"))
	must(t, os.Chmod(s.Dir()+"/d", 0o555))
	l, err := s.Adopt()
	must(t, err)
	if d := cmp.Diff(l.Lost, []Lost{{"d/s", lostSocket}}); d != "" {
		t.Fatalf("lost (-got +want):\n%s", d)
	}
	e, err := NewTree(Chain{l}).Lookup("d/a")
	must(t, err)
	if e.HardLink != "b" {
		t.Fatalf("d/a is linked to %q, want b", e.HardLink)
	}
}

// Case B5: removing a tree removes links, never what they point to.
func TestRemoveTree_CaseB5(t *testing.T) {
	dir := scratch(t)
	for _, f := range []string{"keep/1", "keep/2", "keep/3", "box/f", "box/sub/g"} {
		must(t, write(dir, f, "x"))
	}
	must(t, os.Symlink("../keep", dir+"/box/node_modules"))
	must(t, os.Symlink("/", dir+"/box/root"))
	must(t, os.Symlink(dir+"/keep", dir+"/swapped"))
	must(t, os.Chmod(dir+"/box/sub", 0o500))
	must(t, os.Chmod(dir+"/box", 0))
	for _, name := range []string{"box", "swapped", "absent", "absent/below"} {
		must(t, RemoveTree(filepath.Join(dir, name)))
	}
	got := take(t, dir)
	if len(got) != 5 || got["keep/3"].Kind != "file" {
		t.Fatalf("got %d paths, want keep with its 3 files", len(got))
	}
}

func TestRemoveTree_StopsAtMounts(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: mounts a tmpfs")
	}
	dir := scratch(t)
	must(t, write(dir, "box/m/x", "x"))
	must(t, unix.Mount("tmpfs", dir+"/box/m", "tmpfs", 0, "size=1m"))
	defer func() { must(t, unix.Unmount(dir+"/box/m", 0)) }()
	must(t, write(dir, "box/m/mounted", "x"))
	if err := RemoveTree(dir + "/box"); !errors.Is(err, unix.EBUSY) {
		t.Fatalf("error %v, want EBUSY", err)
	}
	if _, err := os.Stat(dir + "/box/m/mounted"); err != nil {
		t.Fatal(err)
	}
}

// A directory that was replaced by a link between being seen and being opened leads nowhere.
func TestFolder_OpensNoLink(t *testing.T) {
	outside, dir := scratch(t), scratch(t)
	must(t, write(outside, "keep", "kept"))
	must(t, os.Symlink(outside, dir+"/link"))
	if f, err := openFolder(dir+"/link", needRead); err == nil {
		f.close()
		t.Error("a link was opened as a directory")
	}
	f, err := openFolder(dir, needWrite)
	must(t, err)
	defer f.close()
	for _, need := range []uint32{needRead, needWrite} {
		if sub, err := f.sub("link", need); err == nil {
			sub.close()
			t.Errorf("a link in a directory was opened as one, to do %o", need)
		}
	}
	if err := f.empty("link"); err == nil {
		t.Error("what a link leads to was emptied")
	}
	if got := take(t, outside); len(got) != 2 {
		t.Errorf("outside: got %v, want the root and one file", got)
	}
}
