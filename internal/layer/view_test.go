package layer

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// scratch is a directory that is removed whatever its modes.
func scratch(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "layer")
	must(t, err)
	t.Cleanup(func() { must(t, RemoveTree(dir)) })
	return dir
}

func take(t testing.TB, dir string) layertest.Snapshot {
	t.Helper()
	s, err := layertest.Take(dir)
	must(t, err)
	return s
}

func sameSnapshot(t testing.TB, what string, got, want layertest.Snapshot, o layertest.Options) {
	t.Helper()
	if d := layertest.Diff(got, want, o); d != "" {
		t.Fatalf("%s (-got +want):\n%s", what, d)
	}
}

// viewKind is an implementation of View under test.
type viewKind struct {
	name string
	opt  func(Options) Options
	open func(t *testing.T, c *Cache, dir string, chain Chain, idx *Index) View
	// act runs a step in the view and tells what the view shows then.
	act func(t *testing.T, c *Cache, v View, step string) layertest.Snapshot
	can func(step string) bool
	// ignore: overlayfs without an index gives the names of a file it copied up different inode numbers; in a user
	// namespace owners have other numbers.
	ignore layertest.Options
}

func viewKinds() []viewKind {
	all := func(string) bool { return true }
	same := func(o Options) Options { return o }
	overlay := func(t *testing.T, c *Cache, _ string, chain Chain, _ *Index) View {
		v, err := c.OpenOverlay(chain)
		must(t, err)
		return v
	}
	mounted := func(t *testing.T, c *Cache, v View, step string) layertest.Snapshot {
		return inOverlay(t, c.opt, v.Mount(), step)
	}
	direct := func(t *testing.T, _ *Cache, v View, step string) layertest.Snapshot {
		must(t, runStep(step, v.Mount().Bind))
		return take(t, v.Mount().Bind)
	}
	kinds := []viewKind{
		{"OverlayUser", func(o Options) Options { o.Trusted = false; return o }, overlay, mounted, func(s string) bool { return !needsRedirect(s) }, layertest.Options{NoLinks: true, NoOwners: true}},
		{"Copy", same, func(t *testing.T, c *Cache, _ string, chain Chain, _ *Index) View {
			v, err := c.OpenCopy(context.Background(), chain)
			must(t, err)
			return v
		}, direct, all, layertest.Options{}},
		{"InPlace", same, func(t *testing.T, c *Cache, dir string, chain Chain, idx *Index) View {
			v, err := c.OpenInPlace(context.Background(), dir, chain, idx)
			must(t, err)
			return v
		}, direct, all, layertest.Options{}},
	}
	if os.Getuid() == 0 {
		kinds = append(kinds, viewKind{"OverlayRoot", same, overlay, mounted, all, layertest.Options{}})
	}
	return kinds
}

// viewBase captures the seeded tree.
func viewBase(t *testing.T, k viewKind) (c *Cache, dir string, chain Chain, idx *Index) {
	c = openTestCache(t, k.opt(testOptions(t)))
	dir = scratch(t)
	seed(t, dir)
	l, idx, changed, err := c.Capture(context.Background(), dir, nil)
	must(t, err)
	if !changed {
		t.Fatal("first capture found nothing")
	}
	return c, dir, Chain{l}, idx
}

func TestView_FreezeKeepsWhatWasShown(t *testing.T) {
	for _, k := range viewKinds() {
		t.Run(k.name, func(t *testing.T) {
			for _, step := range slices.Sorted(maps.Keys(steps)) {
				if !k.can(step) {
					continue
				}
				t.Run(step, func(t *testing.T) { testFreeze(t, k, step) })
			}
		})
	}
}

func testFreeze(t *testing.T, k viewKind, step string) {
	ctx := context.Background()
	c, dir, base, idx := viewBase(t, k)
	original := take(t, dir)
	lostIn := k.ignore
	lostIn.Skip = []string{"dir/new.sock", JournalDir} // what a layer leaves out on purpose
	v := k.open(t, c, dir, base, idx)
	want := k.act(t, c, v, step)
	l, changed, err := v.Freeze(ctx)
	must(t, err)
	if same := layertest.Diff(want, original, lostIn) == ""; changed == same {
		t.Fatalf("Freeze says changed = %v, want %v", changed, !same)
	}
	chain := v.Chain()
	if changed && chain[len(chain)-1].ID != l.ID {
		t.Fatalf("chain ends in %q, want %q", chain[len(chain)-1].ID, l.ID)
	}
	sameSnapshot(t, "view after Freeze", k.act(t, c, v, "Nothing"), want, lostIn)
	if _, again, err := v.Freeze(ctx); err != nil || again {
		t.Fatalf("second Freeze: changed = %v, error %v; want false, nil", again, err)
	}
	to := scratch(t)
	_, err = c.Restore(ctx, to, nil, chain)
	must(t, err)
	sameSnapshot(t, "restored chain", take(t, to), want, lostIn)
	checkTree(t, chain, want, lostIn)
	checkChanges(t, base, chain, original, want)
	must(t, v.Reset(ctx, base))
	back := k.act(t, c, v, "Nothing")
	sameSnapshot(t, "view after Reset", back, original, lostIn)
	must(t, v.Reset(ctx, chain))
	sameSnapshot(t, "view after Reset forward", k.act(t, c, v, "Nothing"), want, lostIn)
	must(t, v.Close())
	if _, err := os.Stat(filepath.Join(base[0].Dir, "a.txt")); err != nil {
		t.Fatalf("base after Close: %v", err)
	}
}

// checkTree compares the unmounted reading of a chain with what the view showed.
func checkTree(t *testing.T, chain Chain, want layertest.Snapshot, o layertest.Options) {
	t.Helper()
	tree, last := NewTree(chain), Path("")
	got := layertest.Snapshot{}
	err := tree.Walk(func(e Entry) error {
		if last != "" && comparePaths(last, e.Path) >= 0 {
			t.Errorf("Walk gives %q after %q", e.Path, last)
		}
		last = e.Path
		alone, err := tree.Lookup(e.Path)
		if d := cmp.Diff(alone, e); err != nil || d != "" {
			t.Errorf("Lookup(%q): error %v, (-got +Walk):\n%s", e.Path, err, d)
		}
		got[string(e.Path)] = nodeOf(t, tree, e)
		return nil
	})
	must(t, err)
	for p, n := range got {
		if e := Path(p); n.Group == "" && slices.ContainsFunc(slices.Collect(maps.Values(got)), func(m layertest.Node) bool { return m.Group == p }) {
			n.Group = string(e)
			got[p] = n
		}
	}
	o.NoOwners, o.NoHoles = true, true
	sameSnapshot(t, "tree of the chain", got, want, o)
}

func nodeOf(t *testing.T, tree *Tree, e Entry) layertest.Node {
	t.Helper()
	n := layertest.Node{
		Kind: string(e.Type), Mode: e.Mode, MTime: e.MTime.UnixNano(), Size: e.Size, Link: e.Link,
		Rdev: e.Rdev, Group: string(e.HardLink),
	}
	for name, value := range e.Xattrs {
		if n.Xattrs == nil {
			n.Xattrs = map[string]string{}
		}
		n.Xattrs[name] = string(value)
	}
	if e.Type == File {
		f, err := tree.Open(e.Path)
		must(t, err)
		digest, err := digestOf(f)
		must(t, errors.Join(err, f.Close()))
		n.Digest = strings.TrimPrefix(digest, "sha256:")
	}
	return n
}

// checkChanges compares the difference of two chains with that of what they showed.
func checkChanges(t *testing.T, base, top Chain, before, after layertest.Snapshot) {
	t.Helper()
	changes, err := Changes(base, top)
	must(t, err)
	got := []string{}
	for _, c := range changes {
		got = append(got, string(c.Path))
		checkSide(t, c.Before, before[string(c.Path)])
		checkSide(t, c.After, after[string(c.Path)])
	}
	plain := func(n layertest.Node) layertest.Node {
		n.MTime, n.Group, n.Data, n.UID, n.GID = 0, "", nil, 0, 0
		return n
	}
	want := []string{}
	paths := maps.Clone(before)
	maps.Copy(paths, after)
	for p := range paths {
		lost := p == "dir/new.sock" || strings.HasPrefix(p, JournalDir)
		if !lost && !cmp.Equal(plain(before[p]), plain(after[p])) {
			want = append(want, p)
		}
	}
	slices.SortFunc(want, func(a, b string) int { return comparePaths(Path(a), Path(b)) })
	if d := cmp.Diff(got, want); d != "" {
		t.Fatalf("changes (-got +want):\n%s", d)
	}
}

func checkSide(t *testing.T, e *Entry, n layertest.Node) {
	t.Helper()
	if e == nil {
		if n.Kind != "" {
			t.Errorf("one side of a change is nil, want a %s", n.Kind)
		}
		return
	}
	if string(e.Type) != n.Kind || e.Mode != n.Mode {
		t.Errorf("side of %q is %s %o, want %s %o", e.Path, e.Type, e.Mode, n.Kind, n.Mode)
	}
	if e.Digest != "" && e.Digest != "sha256:"+n.Digest {
		t.Errorf("digest of %q is %s, want %s", e.Path, e.Digest, n.Digest)
	}
}
