package base

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/layer"
)

func TestStore_FromPath(t *testing.T) {
	w := newWorld(t, Options{})
	w.write("a", "1")
	w.write("d/b", "1")
	w.write(layer.JournalDir+"/x", "journal")
	if err := os.Symlink("nowhere", filepath.Join(w.path, "link")); err != nil {
		t.Fatal(err)
	}
	first := w.get(w.path)
	if !first.Changed || len(first.Chain) != 1 || first.Root.Type != layer.Dir {
		t.Errorf("first: got %+v", first)
	}
	w.wantExact(first.Chain)
	if again := w.get(w.path); again.Changed || !cmp.Equal(again.Chain, first.Chain) {
		t.Errorf("unchanged: got changed %v, %d layers", again.Changed, len(again.Chain))
	}
	w.write("a", "2") // as many bytes, at once: the racy case
	w.write("d/new", "n")
	if err := os.Remove(filepath.Join(w.path, "d/b")); err != nil {
		t.Fatal(err)
	}
	second := w.get(w.path)
	if !second.Changed || len(second.Chain) != 2 {
		t.Errorf("second: got changed %v, %d layers", second.Changed, len(second.Chain))
	}
	w.wantExact(second.Chain)
}

func TestStore_Reopened(t *testing.T) {
	w := newWorld(t, Options{})
	w.write("a", "1")
	chain := w.get(w.path).Chain
	w.open(Options{})
	if b := w.get(w.path); b.Changed || !cmp.Equal(b.Chain, chain) {
		t.Errorf("got changed %v; want the same image", b.Changed)
	}
	for name, harm := range map[string]func() error{
		"layer gone": func() error { return w.cache.Remove(w.get(w.path).Chain[0].ID) },
		"record cut": func() error { return w.cut(recordFile) },
		"index cut":  func() error { return w.cut(indexPrefix + "*") },
		"index gone": func() error { return w.each(indexPrefix+"*", os.Remove) },
		"index bit":  func() error { return w.each(indexPrefix+"*", flipBit) },
		"crash's temp": func() error {
			return w.each(recordFile, func(p string) error { return os.WriteFile(filepath.Join(filepath.Dir(p), ".tmp-1"), nil, 0o600) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := harm(); err != nil {
				t.Fatal(err)
			}
			w.open(Options{})
			w.write("a", name)
			b := w.get(w.path)
			w.wantExact(b.Chain)
			if anew := name != "crash's temp"; anew != (len(b.Chain) == 1) {
				t.Errorf("got a chain of %d layers, want a new image %v", len(b.Chain), anew)
			}
		})
	}
}

// A chain stays short; an image in use keeps its layers all the same, and nothing is left behind.
func TestStore_ManyChanges(t *testing.T) {
	w := newWorld(t, Options{})
	w.write("keep", "k")
	held, err := w.FromPath(t.Context(), w.path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2*maxLayers + 3 {
		w.write("f", fmt.Sprint(i))
		b, err := w.FromPath(t.Context(), w.path)
		if err != nil {
			t.Fatal(err)
		}
		w.wantExact(b.Chain)
		b.Release()
		if err := w.squash(t.Context(), w.path); err != nil {
			t.Fatal(err)
		}
		again, err := w.FromPath(t.Context(), w.path)
		if err != nil {
			t.Fatal(err)
		}
		if again.Release(); again.Changed || len(again.Chain) > maxLayers {
			t.Errorf("change %d: changed %v, chain of %d layers", i, again.Changed, len(again.Chain))
		}
	}
	if _, err := layer.NewTree(held.Chain).Lookup("keep"); err != nil {
		t.Errorf("an image in use lost a layer: %v", err)
	}
	held.Release()
	w.write("f", "end")
	w.get(w.path)
	all, err := w.cache.Layers()
	if err != nil {
		t.Fatal(err)
	}
	known, err := w.Layers()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(known, slices.Sorted(slices.Values(all))); diff != "" {
		t.Errorf("layers that no record names (+) or that are gone (-):\n%s", diff)
	}
	if len(all) > maxLayers {
		t.Errorf("%d layers are kept", len(all))
	}
}

func TestStore_TwelveAtOnce(t *testing.T) {
	w := newWorld(t, Options{})
	for i := range 200 {
		w.write(fmt.Sprintf("d%d/f%d", i%7, i), fmt.Sprint(i))
	}
	other := *w // a second process has a store of its own on the same directory
	other.open(Options{})
	var wg sync.WaitGroup
	bases := make([]Base, 12)
	for i := range bases {
		s := []*Store{w.Store, other.Store}[i%2]
		wg.Go(func() {
			var err error
			if bases[i], err = s.FromPath(t.Context(), w.path); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if all, err := w.cache.Layers(); err != nil || len(all) != 1 {
		t.Errorf("got %d layers, %v; want one capture for all", len(all), err)
	}
	for _, b := range bases {
		if !cmp.Equal(b.Chain, bases[0].Chain) {
			t.Error("images differ")
		}
		b.Release()
	}
}

func TestStore_Refusals(t *testing.T) {
	w := newWorld(t, Options{})
	w.write("f", "x")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(w.path, link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{
		link: ErrPath, filepath.Join(w.path, "f"): ErrPath, w.path + "/.": ErrPath, filepath.Join(w.path, "absent"): fs.ErrNotExist,
		w.state: ErrStateInside, filepath.Dir(w.state): ErrStateInside, filepath.Join(w.state, "base"): ErrStateInside, "/": ErrStateInside,
	} {
		if _, err := w.FromPath(t.Context(), path); !errors.Is(err, want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: got %v, want %v", path, err, want)
		}
	}
	if err := os.Symlink(w.path, filepath.Join(w.state, "own")); err != nil {
		t.Fatal(err)
	}
	w.open(Options{Own: []string{filepath.Join(w.state, "own")}})
	if _, err := w.FromPath(t.Context(), w.path); !errors.Is(err, ErrStateInside) {
		t.Errorf("state behind a link: got %v, want ErrStateInside", err)
	}
}

func TestStore_SocketIsNoted(t *testing.T) {
	w := newWorld(t, Options{})
	w.write("f", "x")
	t.Chdir(w.path)
	l, err := net.Listen("unix", "s.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if b := w.get(w.path); len(b.Notes) != 1 || !strings.Contains(b.Notes[0], `"s.sock" (socket)`) {
		t.Errorf("got notes %q", b.Notes)
	}
}

// unreadableEnv tells the test below, run again as an ordinary user, which path to take.
const unreadableEnv = "BASE_TEST_UNREADABLE"

func TestStore_UnreadableFiles(t *testing.T) {
	if path := os.Getenv(unreadableEnv); path != "" {
		w := newWorld(t, Options{})
		_, err := w.FromPath(t.Context(), path)
		if !errors.Is(err, ErrUnreadable) || !strings.Contains(err.Error(), `"s0", "s1", "s2" and more, 5 in all`) {
			t.Errorf("got %v, want ErrUnreadable with names and a count", err)
		}
		if left, err := w.cache.Layers(); err != nil || len(left) != 0 {
			t.Errorf("left in the cache: %q, %v", left, err)
		}
		return
	}
	if os.Getuid() != 0 {
		t.Skip("needs root: makes files that an ordinary user may not read")
	}
	top, err := os.MkdirTemp("/var/tmp", "unreadable") // the parents of t.TempDir are closed to others
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(top) }()
	const nobody = 65534
	err = errors.Join(os.Chmod(top, 0o755), os.Mkdir(filepath.Join(top, "tmp"), 0o700), os.Chown(filepath.Join(top, "tmp"), nobody, nobody), os.Mkdir(filepath.Join(top, "p"), 0o755))
	for i := range 5 {
		err = errors.Join(err, os.WriteFile(filepath.Join(top, "p", fmt.Sprint("s", i)), nil, 0o600))
	}
	self, openErr := os.Open("/proc/self/exe")
	if err := errors.Join(err, openErr); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = self.Close() }()
	cmd := exec.Command("/proc/self/fd/3", "-test.run=^TestStore_UnreadableFiles$")
	cmd.ExtraFiles = []*os.File{self}
	cmd.Dir = top
	cmd.Env = []string{unreadableEnv + "=" + filepath.Join(top, "p"), "TMPDIR=" + filepath.Join(top, "tmp")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("as an ordinary user: %v\n%s", err, out)
	}
}

func TestReadable(t *testing.T) {
	lost := []layer.Lost{{Path: "s", What: "socket"}}
	if err := readable(lost); err != nil {
		t.Errorf("a socket: got %v", err)
	}
	for _, n := range []string{"a", "b", "c", "d"} {
		lost = append(lost, layer.Lost{Path: layer.Path(n), What: "unreadable file"})
	}
	err := readable(lost)
	if !errors.Is(err, ErrUnreadable) || !strings.Contains(err.Error(), `"a", "b", "c" and more, 4 in all`) {
		t.Errorf("got %v", err)
	}
}

// What an image costs follows what changed: an unchanged tree adds no layer, one file more
// adds a layer of that file.
func TestStore_CostFollowsWhatChanged(t *testing.T) {
	w := newWorld(t, Options{})
	for i := range 500 {
		w.write(fmt.Sprintf("d%d/f%d", i%50, i), "x")
	}
	first := w.get(w.path)
	again := w.get(w.path)
	if again.Changed || len(again.Chain) != len(first.Chain) {
		t.Errorf("an unchanged tree: changed %v, %d layers, want %d", again.Changed, len(again.Chain), len(first.Chain))
	}
	w.write("d1/new", "x")
	more := w.get(w.path)
	if len(more.Chain) != len(first.Chain)+1 {
		t.Fatalf("one file more: %d layers, want %d", len(more.Chain), len(first.Chain)+1)
	}
	var files []string
	err := filepath.WalkDir(more.Chain[len(more.Chain)-1].Dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, d.Name())
		}
		return err
	})
	if err != nil || !slices.Equal(files, []string{"new"}) {
		t.Errorf("the added layer holds %v, %v, want the new file", files, err)
	}
}
