package layer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// tarSpec is an entry to build a layer from. Data is a file's content; holes lie where Segs leave them.
type tarSpec struct {
	item
	Data string
	Segs []segment
}

// tarSeenOnDisk is what a test compares of an entry.
type tarSeenOnDisk struct {
	item
	Content string // digest
	Segs    []segment
}

func tarOptions() Options {
	return Options{Owner: os.Getuid(), Trusted: os.Getuid() == 0}
}

func newTarCache(t testing.TB) *Cache {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "cache")
	c, err := OpenCache(dir, tarOptions())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), RemoveTree(dir)); err != nil {
			t.Error(err)
		}
	})
	return c
}

// mustLayer builds a layer from specs in the order given.
func mustLayer(t testing.TB, c *Cache, specs []tarSpec) Layer {
	t.Helper()
	s, err := c.Stage()
	if err != nil {
		t.Fatal(err)
	}
	w, err := newWriter(s.Dir(), c.opt)
	if err != nil {
		t.Fatal(err)
	}
	for _, sp := range specs {
		if err := sp.put(w); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.finish(); err != nil {
		t.Fatal(err)
	}
	l, err := s.Commit(Meta{Owners: w.owners()})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (sp tarSpec) put(w *writer) error {
	if sp.Whiteout {
		return w.whiteout(sp.Path)
	}
	segs := sp.Segs
	if sp.Data != "" && segs == nil {
		segs = whole(int64(len(sp.Data)))
	}
	if sp.Size == 0 {
		sp.Size = int64(len(sp.Data))
	}
	content := segmentContent{strings.NewReader(sp.Data), segs, make([]byte, 4096)}
	if err := w.put(sp.Entry, content); err != nil {
		return err
	}
	if sp.Opaque {
		return w.opaque(sp.Path)
	}
	return nil
}

func mustPack(t testing.TB, c *Cache, l Layer) (Packed, []byte) {
	t.Helper()
	var b bytes.Buffer
	p, err := c.Pack(context.Background(), nil, l, &b)
	if err != nil {
		t.Fatal(err)
	}
	return p, b.Bytes()
}

// onDisk reads back a tree in overlay form.
func onDisk(t testing.TB, dir string, opt Options, owners map[Path][2]int) []tarSeenOnDisk {
	t.Helper()
	var all []tarSeenOnDisk
	err := walkLayer(dir, opt, owners, func(it item) error {
		seen := tarSeenOnDisk{item: it}
		if it.Type == File && !it.Whiteout {
			f, err := openFile(dir, it.Path)
			if err != nil {
				return err
			}
			defer f.Close()
			h := sha256.New()
			if _, err := io.Copy(h, f); err != nil {
				return err
			}
			seen.Content = hex.EncodeToString(h.Sum(nil)[:4])
			if seen.Segs, err = segmentsOf(f, it.Size); err != nil {
				return err
			}
		}
		all = append(all, seen)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func layerOnDisk(t testing.TB, c *Cache, l Layer) []tarSeenOnDisk {
	t.Helper()
	m, err := readMeta(filepath.Join(c.dir, l.ID))
	if err != nil {
		t.Fatal(err)
	}
	return onDisk(t, m.Dir, c.opt, m.owners())
}

func diffTrees(got, want []tarSeenOnDisk) string {
	return cmp.Diff(want, got, cmp.AllowUnexported(tarSeenOnDisk{}, item{}, segment{}))
}

// staged counts what lies in the staging area of a cache.
func staged(t testing.TB, c *Cache) int {
	t.Helper()
	entries, err := os.ReadDir(c.staging)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func wantEmpty(t testing.TB, c *Cache) {
	t.Helper()
	ids, err := c.Layers()
	if err != nil {
		t.Fatal(err)
	}
	if len(ids) > 0 || staged(t, c) > 0 {
		t.Errorf("the cache holds layers %v and %d staged ones, want none", ids, staged(t, c))
	}
}

func tarTime(sec, ns int64) time.Time { return time.Unix(sec, ns) }

func dirSpec(p Path, mode uint32) tarSpec {
	return tarSpec{item: item{Entry: Entry{Path: p, Type: Dir, Mode: mode, UID: Self, GID: Self, MTime: tarTime(1e9, 1)}}}
}

func fileSpec(p Path, data string) tarSpec {
	e := Entry{Path: p, Type: File, Mode: 0o644, UID: Self, GID: Self, MTime: tarTime(1e9+7, 123456789)}
	return tarSpec{item: item{Entry: e}, Data: data}
}

func linkSpec(p, first Path) tarSpec {
	s := fileSpec(p, "")
	s.HardLink = first
	return s
}

func goneSpec(p Path) tarSpec {
	return tarSpec{item: item{Entry: Entry{Path: p}, Whiteout: true}}
}

func symlinkSpec(p Path, text string) tarSpec {
	e := Entry{Path: p, Type: Symlink, Mode: 0o777, UID: Self, GID: Self, MTime: tarTime(-5, 250), Link: LinkText(text)}
	return tarSpec{item: item{Entry: e}}
}

// with changes a copy of a spec.
func (sp tarSpec) with(change func(*tarSpec)) tarSpec {
	change(&sp)
	return sp
}

const (
	sparseEnd  = 5 << 20
	sparseHead = 64 << 10
)

// oddTree is a layer with about everything that a file system can hold.
func oddTree() []tarSpec {
	sparse := func(p Path, size int64, segs ...segment) tarSpec {
		var n int64
		for _, s := range segs {
			n += s.len
		}
		return fileSpec(p, strings.Repeat("sparse! ", int(n/8))).with(func(sp *tarSpec) {
			sp.Size, sp.Segs = size, append([]segment{}, segs...)
		})
	}
	deep, deepDirs := Path("deep"), []tarSpec{dirSpec("deep", 0o755)}
	for range 22 { // past PATH_MAX
		deep = join(deep, strings.Repeat("d", 250))
		deepDirs = append(deepDirs, dirSpec(deep, 0o700))
	}
	specs := []tarSpec{
		dirSpec(".", 0o751),
		fileSpec("a", "under a\n"),
		fileSpec("a.b", "sorts between a and a/c if a were a directory"),
		dirSpec("d", 0o2755),
		fileSpec("d/-rf", "dash"),
		fileSpec("d/new\nline", "newline"),
		fileSpec("d/\xff\xfe", "not UTF-8"),
		fileSpec("d/e\u0301", "NFD"),
		fileSpec("d/\u00e9", "NFC"),
		fileSpec("d/ trailing ", "blanks"),
		fileSpec(Path("d/"+strings.Repeat("n", 255)), "long name"),
		fileSpec(Path("d/"+strings.Repeat("m", 98)), "exactly what ustar holds"),
		fileSpec("d-e", "sorts before d/"),
		dirSpec("wh", 0o755),
		dirSpec("wh/.wh.dir", 0o755),
		fileSpec("wh/.wh.dir/x", "below a name that looks like a whiteout"),
		fileSpec("wh/.wh..wh..opq", "a file of that name"),
		fileSpec("wh/.warmfleet.x", "looks escaped"),
		linkSpec("wh/link", "wh/.warmfleet.x"),
		goneSpec("wh/.wh.gone"),
		goneSpec("gone"),
		goneSpec("wh/gone"),
		dirSpec("opaque", 0o755).with(func(s *tarSpec) { s.Opaque = true }),
		fileSpec("opaque/in", "new"),
		dirSpec("opaque-empty", 0o1777).with(func(s *tarSpec) { s.Opaque = true }),
		dirSpec("readonly", 0o555),
		fileSpec("readonly/f", "r"),
		dirSpec("closed", 0),
		fileSpec("empty", ""),
		fileSpec("secret", "mode 0").with(func(s *tarSpec) { s.Mode = 0 }),
		fileSpec("setuid", "#!").with(func(s *tarSpec) { s.Mode = 0o4755 }),
		fileSpec("old", "1969").with(func(s *tarSpec) { s.MTime = tarTime(-1, 500) }),
		fileSpec("future", "2500").with(func(s *tarSpec) { s.MTime = tarTime(13e9, 0) }),
		fileSpec("whole-second", "").with(func(s *tarSpec) { s.MTime = tarTime(7, 0) }),
		fileSpec("attrs", "x").with(func(s *tarSpec) {
			s.Xattrs = map[string][]byte{"user.a": []byte("1"), "user.b=%25c": {0, 0xff, '\n'}, "user.overlay.opaque": []byte("y")}
		}),
		fileSpec("foreign", "by another").with(func(s *tarSpec) { s.UID, s.GID = 0, 1<<31 }),
		dirSpec("foreign-dir", 0o755).with(func(s *tarSpec) { s.UID, s.GID = 4711, Self }),
		sparse("hole-all", sparseEnd),
		sparse("hole-end", sparseEnd, segment{0, sparseHead}),
		sparse("hole-front", sparseEnd, segment{sparseEnd - sparseHead, sparseHead}),
		sparse("hole-mid", sparseEnd, segment{0, sparseHead}, segment{1 << 20, sparseHead}, segment{sparseEnd - sparseHead, sparseHead}),
		fileSpec("link1", "one file"),
		linkSpec("link2", "link1"),
		linkSpec("d/link3", "link1"),
		symlinkSpec("dangling", "../../nowhere"),
		symlinkSpec("long-text", strings.Repeat("/x", 500)),
		{item: item{Entry: Entry{Path: "fifo", Type: Fifo, Mode: 0o620, UID: Self, GID: Self, MTime: tarTime(1, 1)}}},
	}
	return append(append(specs, deepDirs...), fileSpec(join(deep, "bottom"), "deep"))
}

// storedAs makes the stored form of a tar, with its proper name.
func storedAs(t testing.TB, tar []byte) (string, []byte) {
	t.Helper()
	var b bytes.Buffer
	if err := encode(&b, bytes.NewReader(tar)); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s%x%s", namePrefix, sha256.Sum256(tar), nameSuffix), b.Bytes()
}

// richTar is a tar with one of nearly everything, made without a file system.
func richTar(t testing.TB) []byte {
	t.Helper()
	specs := oddTree()
	slices.SortFunc(specs, func(a, b tarSpec) int { return comparePaths(a.Path, b.Path) })
	var b bytes.Buffer
	w := &tarWriter{w: &b}
	for _, s := range specs {
		e := tarEntry{item: s.item, segs: s.Segs}
		if s.Type == File && s.Segs == nil {
			e.Size, e.segs = int64(len(s.Data)), whole(int64(len(s.Data)))
		}
		if s.HardLink > s.Path {
			continue
		}
		marker := e
		e.Opaque = false
		if err := w.item(&e); err != nil {
			t.Fatal(err)
		}
		if s.HardLink == "" {
			if _, err := io.WriteString(w, s.Data); err != nil {
				t.Fatal(err)
			}
		}
		if marker.Opaque {
			if err := w.item(&marker); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
