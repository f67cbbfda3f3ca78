package layer

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// captured makes a directory with one old file and captures it.
func captured(t *testing.T) (c *Cache, dir string, l Layer, idx *Index) {
	t.Helper()
	c, dir = openTestCache(t, testOptions(t)), scratch(t)
	must(t, write(dir, "f", "content"))
	must(t, write(dir, "d/g", "other"))
	l, idx, _, err := c.Capture(context.Background(), dir, nil)
	must(t, err)
	return c, dir, l, idx
}

// layerPaths lists a layer: whiteouts end in "!", opaque directories in "/".
func layerPaths(t *testing.T, c *Cache, l Layer) []string {
	t.Helper()
	var got []string
	must(t, walkLayer(l.Dir, c.opt, nil, func(it item) error {
		p := string(it.Path)
		switch {
		case it.Whiteout:
			p += "!"
		case it.Opaque:
			p += "/"
		}
		got = append(got, p)
		return nil
	}))
	return got
}

func TestCache_Capture(t *testing.T) {
	tests := []struct {
		name   string
		change func(dir string) error
		want   []string // nil: no layer
	}{
		{"Nothing", func(string) error { return nil }, nil},
		{"OnlyChangeTime", func(d string) error { return errors.Join(os.Chmod(d+"/f", 0o600), os.Chmod(d+"/f", 0o644)) }, nil},
		{"SameContentNewInode", func(d string) error {
			return layertest.KeepTime(d+"/f", func() error {
				return errors.Join(os.Rename(d+"/f", d+"/t"), write(d, "f", "content"), os.Remove(d+"/t"), os.Chtimes(d, time.Time{}, rootTime))
			})
		}, nil},
		{"SameSizeSameTime", func(d string) error {
			return layertest.KeepTime(d+"/f", func() error { return os.WriteFile(d+"/f", []byte("CONTENT"), 0o644) })
		}, []string{".", "f"}},
		{"Mode", func(d string) error { return os.Chmod(d+"/f", 0o755) }, []string{".", "f"}},
		{"Delete", func(d string) error { return os.Remove(d + "/d/g") }, []string{".", "d", "d/g!"}},
		{"DeleteTree", func(d string) error { return os.RemoveAll(d + "/d") }, []string{".", "d!"}},
		{"DirBecomesFile", func(d string) error { return layertest.Replace(d, "d", "file") }, []string{".", "d"}},
		{"FileBecomesDir", func(d string) error { return layertest.Replace(d, "f", "dir") }, []string{".", "f/", "f/in"}},
		{"NewAlias", func(d string) error { return os.Link(d+"/f", d+"/d/f2") }, []string{".", "d", "d/f2", "f"}},
		{"OutsideAlias", func(d string) error { return os.Link(d+"/f", d+"-alias") }, nil},
		{"Journal", func(d string) error {
			return errors.Join(write(d, JournalDir+"/x", ""), os.Chtimes(d, time.Time{}, rootTime))
		}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, dir := openTestCache(t, testOptions(t)), filepath.Join(scratch(t), "tree")
			must(t, write(dir, "f", "content"))
			must(t, write(dir, "d/g", "other"))
			must(t, os.Chtimes(dir, time.Time{}, rootTime))
			_, idx, _, err := c.Capture(context.Background(), dir, nil)
			must(t, err)
			must(t, tt.change(dir))
			l, next, changed, err := c.Capture(context.Background(), dir, idx)
			must(t, err)
			var got []string
			if changed {
				got = layerPaths(t, c, l)
			}
			if d := cmp.Diff(got, tt.want); d != "" {
				t.Fatalf("layer (-got +want):\n%s", d)
			}
			if _, _, again, err := c.Capture(context.Background(), dir, next); err != nil || again {
				t.Fatalf("third capture: changed = %v, error %v; want false, nil", again, err)
			}
		})
	}
}

var rootTime = time.Unix(1_600_000_000, 0)

// The file is captured within a tick of its last change; an edit in the same tick may leave no trace in its stat.
func TestCache_CaptureReadsRacyFilesAgain(t *testing.T) {
	c, dir, _, idx := captured(t)
	for _, e := range idx.entries {
		if e.Path == "f" && !e.racy {
			t.Fatal("a file changed just before the capture is trusted")
		}
	}
	must(t, layertest.KeepTime(dir+"/f", func() error { return os.WriteFile(dir+"/f", []byte("CONTENT"), 0o644) }))
	for _, e := range idx.entries { // as if the clock had not moved on
		st, err := os.Lstat(filepath.Join(dir, string(e.Path)))
		must(t, err)
		e.stamp.ctime = st.Sys().(*syscall.Stat_t).Ctim.Nano()
	}
	_, _, changed, err := c.Capture(context.Background(), dir, idx)
	must(t, err)
	if !changed {
		t.Fatal("an edit in the tick of the capture was missed")
	}
}

func TestCache_CaptureCaseB1SpecialFiles(t *testing.T) {
	c, dir, _, idx := captured(t)
	must(t, unix.Mkfifo(dir+"/p", 0o640))
	must(t, layertest.Socket(dir+"/s.sock"))
	l, _, _, err := c.Capture(context.Background(), dir, idx)
	must(t, err)
	if d := cmp.Diff(l.Lost, []Lost{{"s.sock", lostSocket}}); d != "" {
		t.Fatalf("lost (-got +want):\n%s", d)
	}
	if d := cmp.Diff(layerPaths(t, c, l), []string{".", "p"}); d != "" {
		t.Fatalf("layer (-got +want):\n%s", d)
	}
	kept, err := c.Get(l.ID)
	must(t, err)
	if d := cmp.Diff(kept, l); d != "" {
		t.Fatalf("layer from the cache (-got +want):\n%s", d)
	}
}

// Case B3: a file that never stands still is an error that names it; one that comes and goes is no error.
func TestCache_CaptureCaseB3MovingFiles(t *testing.T) {
	c, dir := openTestCache(t, testOptions(t)), scratch(t)
	must(t, os.WriteFile(dir+"/log", bytes.Repeat([]byte("x"), 16<<20), 0o644))
	stop := make(chan struct{})
	var busy sync.WaitGroup
	busy.Go(func() { loopUntil(stop, func() { layertest.AppendTo(dir + "/log") }) })
	var err error
	for end := time.Now().Add(30 * time.Second); err == nil && time.Now().Before(end); {
		// A capture succeeds if the writer happened to rest during one of its reads.
		_, _, _, err = c.Capture(context.Background(), dir, nil)
	}
	close(stop)
	busy.Wait()
	if !errors.Is(err, errChanged) || !strings.Contains(err.Error(), `"log"`) {
		t.Fatalf("error %v, want one that names the file that changed", err)
	}
	left, err := os.ReadDir(c.staging)
	must(t, err)
	if len(left) != 0 {
		t.Fatalf("%d stages left after the error, want 0", len(left))
	}
}

func TestCache_CaptureCaseB3VanishingFiles(t *testing.T) {
	c, dir, aside := openTestCache(t, testOptions(t)), scratch(t), scratch(t)
	for i := range 200 {
		must(t, write(dir, "d/keep"+string(rune('a'+i%26))+strings.Repeat("k", i), "k"))
	}
	stop := make(chan struct{})
	var busy sync.WaitGroup
	n := 0
	large := strings.Repeat("v", 1<<20) // long enough to go away while it is read
	busy.Go(func() {
		loopUntil(stop, func() {
			name := "v" + strconv.Itoa(n%8)
			n++
			os.Remove(dir + "/d/" + name)
			write(aside, name, large)
			os.Rename(aside+"/"+name, dir+"/d/"+name)
		})
	})
	var (
		idx   *Index
		chain Chain
	)
	for range 12 {
		l, now, changed, err := c.Capture(context.Background(), dir, idx)
		if err != nil {
			t.Error(err)
			break
		}
		idx = now
		if changed {
			chain = append(chain, l)
		}
		tree := NewTree(chain)
		for i := range 8 {
			p := Path("d/v" + strconv.Itoa(i))
			_, err := tree.Lookup(p)
			indexed := slices.ContainsFunc(idx.entries, func(e *indexed) bool { return e.Path == p })
			if indexed != (err == nil) {
				t.Errorf("%s in the index: %v; in the layers: %v", p, indexed, err)
			}
		}
	}
	close(stop)
	busy.Wait()
}

func loopUntil(stop chan struct{}, do func()) {
	for {
		select {
		case <-stop:
			return
		default:
			do()
		}
	}
}

func TestCache_CaptureCancelled(t *testing.T) {
	c, dir, _, idx := captured(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, _, err := c.Capture(ctx, dir, idx); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v, want context.Canceled", err)
	}
}

func TestIndex_Encode(t *testing.T) {
	c, dir := openTestCache(t, testOptions(t)), scratch(t)
	seed(t, dir)
	must(t, layertest.Socket(dir+"/s"))
	_, idx, _, err := c.Capture(context.Background(), dir, nil)
	must(t, err)
	var buf bytes.Buffer
	must(t, idx.Encode(&buf))
	got, err := DecodeIndex(bytes.NewReader(buf.Bytes()))
	must(t, err)
	if d := cmp.Diff(got, idx, cmp.AllowUnexported(Index{}, indexed{}, stamp{}, clock{})); d != "" {
		t.Fatalf("decoded index (-got +want):\n%s", d)
	}
	for _, cut := range []int{0, 3, len(indexMagic) + 1, buf.Len() / 2, buf.Len() - 1} {
		if _, err := DecodeIndex(bytes.NewReader(buf.Bytes()[:cut])); !errors.Is(err, ErrIndexForm) {
			t.Fatalf("index cut at %d: error %v, want ErrIndexForm", cut, err)
		}
	}
}

// A path longer than PATH_MAX is reachable only component by component.
func TestCache_PathsLongerThanPathMax(t *testing.T) {
	c, dir := openTestCache(t, testOptions(t)), scratch(t)
	name := strings.Repeat("n", 250)
	deep := Path(strings.Repeat(name+"/", 25) + "f")
	root, err := openFolder(dir, needWrite)
	must(t, err)
	for range 25 {
		must(t, unix.Mkdirat(root.fd, name, 0o755))
		next, err := root.sub(name, needWrite)
		must(t, errors.Join(err, root.close()))
		root = next
	}
	f, err := root.create("f", Entry{Type: File})
	must(t, err)
	_, err = f.WriteString("deep")
	must(t, errors.Join(err, f.Close(), root.close()))

	l, idx, _, err := c.Capture(context.Background(), dir, nil)
	must(t, err)
	to := scratch(t)
	next, err := c.Restore(context.Background(), to, nil, Chain{l})
	must(t, err)
	paths := func(x *Index) (all []Path) {
		for _, e := range x.entries {
			all = append(all, e.Path)
		}
		return all
	}
	if d := cmp.Diff(paths(next), paths(idx)); d != "" || !slices.Contains(paths(idx), deep) {
		t.Fatalf("restored paths (-got +want):\n%s", d)
	}
	changed, err := Changes(nil, Chain{l})
	must(t, err)
	if got, want := len(changed), 27; got != want {
		t.Fatalf("got %d changes, want %d", got, want)
	}
}

// Files of other owners are given to the cache's owner on disk, remembered, and given back.
func TestCache_CaptureOwners(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: only root can make files of other owners")
	}
	const host, self, foreign = 0x70000001, 1234, 33
	o := testOptions(t)
	o.Owner = host
	c, dir := openTestCache(t, o), scratch(t)
	seed(t, dir)
	must(t, filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(p, self, self))
	}))
	must(t, os.Chown(dir+"/suid", self, self))
	must(t, os.Chmod(dir+"/suid", 0o755|os.ModeSetuid))
	must(t, os.Chown(dir+"/a.txt", foreign, self))
	must(t, os.Lchown(dir+"/dangling", foreign, foreign))
	l, _, _, err := c.Capture(context.Background(), dir, nil)
	must(t, err)
	for p, n := range take(t, l.Dir) {
		if n.UID != host || n.GID != host {
			t.Errorf("%q has owner %d:%d in the cache, want %d", p, n.UID, n.GID, host)
		}
	}
	v, err := c.Open(context.Background(), Overlay, Chain{l})
	must(t, err)
	defer v.Close()
	inOverlay(t, o, v.Mount(), "write a.txt edited")
	_, _, err = v.Freeze(context.Background())
	must(t, err)
	chain := v.Chain()
	for p, want := range map[Path][2]int{"a.txt": {foreign, Self}, "dangling": {foreign, foreign}, "dir/x": {Self, Self}} {
		e, err := NewTree(chain).Lookup(p)
		must(t, err)
		if e.UID != want[0] || e.GID != want[1] {
			t.Errorf("%q has owner %d:%d, want %v", p, e.UID, e.GID, want)
		}
	}
	to := scratch(t)
	_, err = c.Restore(context.Background(), to, nil, Chain{l})
	must(t, err)
	layertest.Compare(t, to, dir, layertest.Options{})
}
