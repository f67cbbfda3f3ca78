package drivertest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

func sameSnapshot(t testing.TB, what string, got, want layertest.Snapshot, o layertest.Options) {
	t.Helper()
	if d := layertest.Diff(got, want, o); d != "" {
		t.Fatalf("%s (-got +want):\n%s", what, d)
	}
}

// Suite tests everything that is promised of a driver. The kind is Ready, and its Do is layertest.RunStep.
func Suite(t *testing.T, k Kind) {
	t.Run("Freeze", func(t *testing.T) {
		for _, step := range slices.Sorted(maps.Keys(layertest.Steps())) {
			if k.Can(step) && (!k.Brief || slices.Contains(briefly(), step)) {
				t.Run(step, func(t *testing.T) { testFreeze(t, k, step) })
			}
		}
	})
	if !k.Brief && k.Driver != layer.InPlace { // which is a plain directory, as a copy is
		t.Run("Traps", func(t *testing.T) { testTraps(t, k) })
		t.Run("LongChain", func(t *testing.T) { testLongChain(t, k) })
	}
	for name, test := range cases() {
		if k.Brief && strings.HasPrefix(name, "Chain") {
			continue
		}
		t.Run(name, func(t *testing.T) { test(t, k) })
	}
}

// briefly are the steps whose outcome depends on the file system: links, holes, attributes, what overlayfs finds again by file
// handles.
func briefly() []string {
	return []string{
		"WriteLinked", "WriteLinkedGone", "AddLink", "RenameWithLinks", "RenameLinkedDir", "RenameAndChange", "SwapDirs",
		"Sparse", "Xattrs", "NewFiles", "DeleteAll", "RecreateDir", "SameSizeSameTime",
	}
}

func testFreeze(t *testing.T, k Kind, step string) {
	ctx := t.Context()
	c, dir := k.Cache(t), k.Dir(t)
	layertest.Seed(t, dir)
	original := take(t, dir)
	lostIn := k.Ignore
	lostIn.Skip = []string{"dir/new.sock", layer.JournalDir} // what a layer leaves out on purpose
	v := k.View(t, c, dir)
	base := v.Chain()
	want := k.Act(t, v, step)
	copied, differs := copyCase{k, c, v, want, lostIn}.test(t)
	l, changed, err := v.Freeze(ctx)
	must(t, err)
	if changed != differs || copied.ID == l.ID && changed {
		t.Fatalf("Copy made %q (%v), then Freeze made %q (%v); want the same twice", copied.ID, differs, l.ID, changed)
	}
	if same := layertest.Diff(want, original, lostIn) == ""; changed == same {
		t.Fatalf("Freeze says changed = %v, want %v", changed, !same)
	}
	chain := v.Chain()
	if changed && chain[len(chain)-1].ID != l.ID {
		t.Fatalf("chain ends in %q, want %q", chain[len(chain)-1].ID, l.ID)
	}
	sameSnapshot(t, "view after Freeze", k.Show(t, v), want, lostIn)
	if _, again, err := v.Freeze(ctx); err != nil || again {
		t.Fatalf("second Freeze: changed = %v, error %v; want false, nil", again, err)
	}
	to := k.Dir(t)
	_, err = c.Restore(ctx, to, nil, chain)
	must(t, err)
	sameSnapshot(t, "restored chain", take(t, to), want, lostIn)
	checkTree(t, chain, want, lostIn)
	checkChanges(t, base, chain, original, want)
	must(t, v.Reset(ctx, base))
	back := k.Show(t, v)
	sameSnapshot(t, "view after Reset", back, original, lostIn)
	must(t, v.Reset(ctx, chain))
	sameSnapshot(t, "view after Reset forward", k.Show(t, v), want, lostIn)
	if _, err := os.Stat(filepath.Join(base[0].Dir, "a.txt")); err != nil {
		t.Fatalf("base after Close: %v", err)
	}
}

type copyCase struct {
	kind   Kind
	cache  *layer.Cache
	view   layer.View
	want   layertest.Snapshot
	ignore layertest.Options
}

// test copies the open layer, which must restore to what the view shows, and leave everything as it was.
func (c copyCase) test(t *testing.T) (layer.Layer, bool) {
	t.Helper()
	below := c.view.Chain()
	l, changed, err := c.view.(layer.Copier).Copy(t.Context())
	must(t, err)
	if d := cmp.Diff(c.view.Chain(), below); d != "" {
		t.Fatalf("chain after Copy (-got +want):\n%s", d)
	}
	if !changed {
		return l, false
	}
	to := c.kind.Dir(t)
	_, err = c.cache.Restore(t.Context(), to, nil, append(below, l))
	must(t, err)
	sameSnapshot(t, "restored copy", take(t, to), c.want, c.ignore)
	sameSnapshot(t, "view after Copy", c.kind.Show(t, c.view), c.want, c.ignore)
	return l, true
}

// checkTree compares the unmounted reading of a chain with what the view showed.
func checkTree(t *testing.T, chain layer.Chain, want layertest.Snapshot, o layertest.Options) {
	t.Helper()
	tree, last := layer.NewTree(chain), layer.Path("")
	got := layertest.Snapshot{}
	err := tree.Walk(func(e layer.Entry) error {
		if last != "" && comparePaths(string(last), string(e.Path)) >= 0 {
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
		if e := layer.Path(p); n.Group == "" && slices.ContainsFunc(slices.Collect(maps.Values(got)), func(m layertest.Node) bool { return m.Group == p }) {
			n.Group = string(e)
			got[p] = n
		}
	}
	o.NoOwners, o.NoHoles = true, true
	sameSnapshot(t, "tree of the chain", got, want, o)
}

func nodeOf(t *testing.T, tree *layer.Tree, e layer.Entry) layertest.Node {
	t.Helper()
	n := layertest.Node{
		Kind: string(e.Type), Mode: e.Mode, MTime: e.MTime.UnixNano(), Size: e.Size, Link: string(e.Link),
		Rdev: e.Rdev, Group: string(e.HardLink),
	}
	for name, value := range e.Xattrs {
		if n.Xattrs == nil {
			n.Xattrs = map[string]string{}
		}
		n.Xattrs[name] = string(value)
	}
	if e.Type == layer.File {
		f, err := tree.Open(e.Path)
		must(t, err)
		digest, err := digestOf(f)
		must(t, errors.Join(err, f.Close()))
		n.Digest = digest
	}
	return n
}

// checkChanges compares the difference of two chains with that of what they showed.
func checkChanges(t *testing.T, base, top layer.Chain, before, after layertest.Snapshot) {
	t.Helper()
	changes, err := layer.Changes(base, top)
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
		lost := p == "dir/new.sock" || strings.HasPrefix(p, layer.JournalDir)
		if !lost && !cmp.Equal(plain(before[p]), plain(after[p])) {
			want = append(want, p)
		}
	}
	slices.SortFunc(want, func(a, b string) int { return comparePaths(a, b) })
	if d := cmp.Diff(got, want); d != "" {
		t.Fatalf("changes (-got +want):\n%s", d)
	}
}

func checkSide(t *testing.T, e *layer.Entry, n layertest.Node) {
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

// comparePaths is the byte order of paths with the root first.
func comparePaths(a, b string) int {
	switch {
	case a == b:
		return 0
	case a == ".":
		return -1
	case b == ".":
		return 1
	}
	return strings.Compare(a, b)
}

func digestOf(r io.Reader) (string, error) {
	h := sha256.New()
	_, err := io.Copy(h, r)
	return hex.EncodeToString(h.Sum(nil)), err
}
