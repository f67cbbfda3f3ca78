package applier

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// TestMain runs one apply instead of the tests when this binary was started by one of them.
func TestMain(m *testing.M) {
	if dir := os.Getenv("APPLIER_CHILD"); dir != "" {
		os.Exit(child(dir))
	}
	os.Exit(m.Run())
}

// trees are the three sides of an apply as directories.
type trees struct{ base, orig, ours string }

func newTrees(t *testing.T, base func(dir string)) trees {
	t.Helper()
	return treesIn(t, memDir(t), base)
}

func treesIn(t *testing.T, parent string, base func(dir string)) trees {
	t.Helper()
	tr := trees{filepath.Join(parent, "base"), filepath.Join(parent, "orig"), filepath.Join(parent, "ours")}
	must(t, os.Mkdir(tr.base, 0o755))
	base(tr.base)
	for _, to := range []string{tr.orig, tr.ours} {
		if out, err := exec.Command("cp", "-a", tr.base, to).CombinedOutput(); err != nil {
			t.Fatalf("copy base: %v: %s", err, out)
		}
	}
	return tr
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sh runs a script in a directory; it is how the cases describe what a user or a plan did.
func sh(t testing.TB, dir, script string) {
	t.Helper()
	cmd := exec.Command("bash", "-euc", "umask 022; "+script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
}

func script(t testing.TB, s string) func(string) {
	return func(dir string) { sh(t, dir, s) }
}

// entries reads a tree by means of its own, apart from the code under test.
func entries(t testing.TB, dir string) map[layer.Path]*layer.Entry {
	t.Helper()
	all, first := map[layer.Path]*layer.Entry{}, map[uint64]layer.Path{}
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		if rel == layer.JournalDir {
			return fs.SkipDir
		}
		e, ino, err := entryOf(p, layer.Path(rel))
		if err != nil {
			return err
		}
		if e.Type == layer.File {
			if f, linked := first[ino]; linked {
				e.HardLink = f
			} else {
				first[ino] = e.Path
			}
		}
		all[e.Path] = e
		return nil
	}))
	return all
}

func entryOf(p string, rel layer.Path) (*layer.Entry, uint64, error) {
	fi, err := os.Lstat(p)
	if err != nil {
		return nil, 0, err
	}
	st := fi.Sys().(*syscall.Stat_t)
	e := &layer.Entry{
		Path: rel, Mode: st.Mode & 0o7777, UID: int(st.Uid), GID: int(st.Gid), MTime: fi.ModTime().UTC(),
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.Type, e.Size = layer.File, fi.Size()
		b, err := os.ReadFile(p)
		if err != nil {
			return nil, 0, err
		}
		sum := sha256.Sum256(b)
		e.Digest = "sha256:" + hex.EncodeToString(sum[:])
	case unix.S_IFDIR:
		e.Type = layer.Dir
	case unix.S_IFLNK:
		e.Type = layer.Symlink
		text, err := os.Readlink(p)
		if err != nil {
			return nil, 0, err
		}
		e.Link = layer.LinkText(text)
		return e, st.Ino, nil
	case unix.S_IFIFO:
		e.Type = layer.Fifo
	case unix.S_IFCHR:
		e.Type, e.Rdev = layer.Char, st.Rdev
	}
	for _, name := range []string{"user.test", capability, aclAccess, aclDefault} {
		buf := make([]byte, 1024)
		if n, err := unix.Lgetxattr(p, name, buf); err == nil {
			if e.Xattrs == nil {
				e.Xattrs = map[string][]byte{}
			}
			e.Xattrs[name] = buf[:n]
		}
	}
	return e, st.Ino, nil
}

func equalEntries(a, b *layer.Entry) bool {
	return a.Type == b.Type && a.Mode == b.Mode && a.Link == b.Link && a.Digest == b.Digest && a.Rdev == b.Rdev &&
		cmp.Equal(a.Xattrs, b.Xattrs)
}

func changes(t testing.TB, base, ours string) []layer.Change {
	t.Helper()
	before, after := entries(t, base), entries(t, ours)
	var cs []layer.Change
	for p, b := range before {
		if a := after[p]; a == nil || !equalEntries(a, b) {
			cs = append(cs, layer.Change{Path: p, Before: b, After: a})
		}
	}
	for p, a := range after {
		if before[p] == nil {
			cs = append(cs, layer.Change{Path: p, After: a})
		}
	}
	return cs
}

// snapshot is everything of a tree that an apply promises about, one line a path.
func snapshot(t testing.TB, dir string) []string {
	t.Helper()
	var lines []string
	for p, e := range entries(t, dir) {
		lines = append(lines, fmt.Sprintf("%q %s %04o %d:%d %q %s %d %v", p, e.Type, e.Mode, e.UID, e.GID, e.Link,
			strings.TrimPrefix(e.Digest, "sha256:"), e.Rdev, e.Xattrs))
	}
	slices.Sort(lines)
	return lines
}

func sameTrees(t testing.TB, what string, got, want []string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: (-want +got)\n%s", what, diff)
	}
}

// dirContent is Content from a directory.
type dirContent string

func (d dirContent) Open(p layer.Path) (io.ReadCloser, error) {
	return os.Open(filepath.Join(string(d), string(p)))
}

func (tr trees) request(t testing.TB) Request {
	return Request{Plan: "01PLAN", Epoch: 1, Changes: changes(t, tr.base, tr.ours), Content: dirContent(tr.ours)}
}

func open(t testing.TB, root string, hook func(string) error) *Session {
	t.Helper()
	s, err := Open(context.Background(), root, Options{Hook: hook})
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// apply is the whole way of one request.
func apply(root string, req Request, hook func(string) error) (_ []Conflict, err error) {
	ctx := context.Background()
	s, err := Open(ctx, root, Options{Hook: hook})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p, conflicts, err := s.Check(ctx, req)
	if err != nil || len(conflicts) > 0 {
		return conflicts, err
	}
	if err := s.Stage(ctx, p); err != nil {
		return nil, err
	}
	if err := s.Commit(ctx); err != nil {
		return nil, err
	}
	return nil, s.Finish(ctx)
}

func kinds(cs []Conflict) []string {
	var out []string
	for _, c := range cs {
		out = append(out, fmt.Sprintf("%s: %s", c.Path, c.Kind))
	}
	return out
}

func noJournal(t testing.TB, root string) {
	t.Helper()
	if _, err := os.Lstat(filepath.Join(root, layer.JournalDir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: got %v, want it gone", layer.JournalDir, err)
	}
}

func asRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes mounts, devices or files of other users")
	}
}

func asUser(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		t.Skip("needs an ordinary user: root may write everywhere")
	}
}

func read(t testing.TB, parts ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(parts...))
	must(t, err)
	return string(bytes.TrimSuffix(b, []byte("\n")))
}
