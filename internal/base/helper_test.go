package base

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// world is a directory, and a store with a cache of its own.
type world struct {
	*Store
	t     *testing.T
	cache *layer.Cache
	state string
	path  string
}

func newWorld(t *testing.T, o Options) *world {
	t.Helper()
	w := &world{t: t, state: t.TempDir(), path: filepath.Join(t.TempDir(), "a path")}
	if err := os.Mkdir(w.path, 0o755); err != nil {
		t.Fatal(err)
	}
	w.open(o)
	return w
}

// open opens cache and store anew, as after a restart.
func (w *world) open(o Options) {
	w.t.Helper()
	cache, err := layer.OpenCache(filepath.Join(w.state, "cache"), layer.Options{
		Owner: os.Getuid(), Trusted: os.Getuid() == 0, Log: zerolog.Nop(),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = cache.Close() })
	o.Dir, o.Cache, o.Log = filepath.Join(w.state, "base"), cache, zerolog.New(zerolog.NewTestWriter(w.t))
	o.Own = append(o.Own, filepath.Join(w.state, "cache"))
	if w.Store, err = Open(o); err != nil {
		w.t.Fatal(err)
	}
	w.cache = cache
}

func (w *world) write(name, content string) {
	w.t.Helper()
	path := filepath.Join(w.path, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) get(path string) Base {
	w.t.Helper()
	b, err := w.FromPath(w.t.Context(), path)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(b.Release)
	return b
}

// wantExact checks that a chain shows what the directory holds now.
func (w *world) wantExact(chain layer.Chain) {
	w.t.Helper()
	want, got := map[string]string{}, map[string]string{}
	err := filepath.WalkDir(w.path, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Name() == layer.JournalDir {
			return fs.SkipDir
		}
		rel, err := filepath.Rel(w.path, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			want[rel] = d.Type().String()
			return err
		}
		value := make([]byte, 16)
		n, err := unix.Lgetxattr(path, "user.a", value)
		want[rel] = fmt.Sprintf("%v %v %s", d.Type(), info.Mode().Perm(), value[:max(n, 0)])
		if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
		if d.Type().IsRegular() {
			b, err := os.ReadFile(path)
			want[rel] += " " + string(b)
			return err
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	tree := layer.NewTree(chain)
	err = tree.Walk(func(e layer.Entry) error {
		typ := map[layer.Type]fs.FileMode{layer.Dir: fs.ModeDir, layer.Symlink: fs.ModeSymlink}[e.Type].String()
		if got[string(e.Path)] = typ; e.Type == layer.Symlink {
			return nil
		}
		got[string(e.Path)] = fmt.Sprintf("%v %v %s", typ, fs.FileMode(e.Mode).Perm(), e.Xattrs["user.a"])
		if e.Type != layer.File {
			return nil
		}
		r, err := tree.Open(e.Path)
		if err != nil {
			return err
		}
		defer func() { _ = r.Close() }()
		b, err := io.ReadAll(r)
		got[string(e.Path)] += " " + string(b)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("the image is not the directory (-directory +image):\n%s", diff)
	}
}

func (w *world) each(pattern string, do func(string) error) error {
	found, err := filepath.Glob(filepath.Join(w.state, "base", imagesDir, "*", pattern))
	if err != nil || len(found) == 0 {
		return fmt.Errorf("%q: %d files, %v", pattern, len(found), err)
	}
	for _, f := range found {
		err = errors.Join(err, do(f))
	}
	return err
}

// flipBit damages a file without changing its length.
func flipBit(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	at := bytes.LastIndex(b, []byte("\x02a")) // the name of the file a, after its length
	b[at+1] ^= 2
	return os.WriteFile(path, b, 0o600)
}

func (w *world) cut(pattern string) error {
	return w.each(pattern, func(p string) error {
		st, err := os.Stat(p)
		if err != nil {
			return err
		}
		return os.Truncate(p, st.Size()/2)
	})
}
