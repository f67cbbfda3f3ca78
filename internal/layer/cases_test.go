package layer

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// forEachView runs a test with every implementation of View that the caller may use.
func forEachView(t *testing.T, test func(t *testing.T, k viewKind)) {
	for _, k := range viewKinds() {
		t.Run(k.name, func(t *testing.T) { test(t, k) })
	}
}

// caseView captures what fill made and opens a view of it.
func caseView(t *testing.T, k viewKind, fill func(dir string)) (*Cache, View) {
	t.Helper()
	c := openTestCache(t, k.opt(testOptions(t)))
	dir := scratch(t)
	fill(dir)
	l, idx, _, err := c.Capture(context.Background(), dir, nil)
	must(t, err)
	v := k.open(t, c, dir, Chain{l}, idx)
	t.Cleanup(func() { must(t, v.Close()) })
	return c, v
}

func freeze(t *testing.T, v View) Chain {
	t.Helper()
	_, changed, err := v.Freeze(context.Background())
	must(t, err)
	if !changed {
		t.Fatal("Freeze found no change")
	}
	return v.Chain()
}

func reset(t *testing.T, v View, chain Chain) {
	t.Helper()
	must(t, v.Reset(context.Background(), chain))
}

func TestView_CaseA1RollbackIsExactInBothDirections(t *testing.T) {
	forEachView(t, func(t *testing.T, k viewKind) {
		c, v := caseView(t, k, func(dir string) {
			must(t, write(dir, "tracked", "1"))
			must(t, write(dir, ".gitignore", "cache/\n"))
			must(t, write(dir, "out/data.jsonl", "{}"))
			must(t, write(dir, "cache/x", "x"))
		})
		before := k.act(t, c, v, "Nothing")
		start := v.Chain()
		for _, step := range []string{"write tracked 2", "remove cache/x", "write new/a/b.txt b"} {
			k.act(t, c, v, step)
		}
		reset(t, v, start)
		sameSnapshot(t, "after rollback of an open layer", k.act(t, c, v, "Nothing"), before, layertest.Options{})
		k.act(t, c, v, "remove out")
		freeze(t, v)
		reset(t, v, start)
		sameSnapshot(t, "after rollback of a closed layer", k.act(t, c, v, "Nothing"), before, layertest.Options{})
	})
}

func TestView_CaseA2LaterCyclesKeepTheirWork(t *testing.T) {
	forEachView(t, func(t *testing.T, k viewKind) {
		c, v := caseView(t, k, func(dir string) { must(t, write(dir, "keep", "k")) })
		k.act(t, c, v, "write f 1")
		first := freeze(t, v)
		k.act(t, c, v, "write f 2")
		second := freeze(t, v)
		reset(t, v, first)
		k.act(t, c, v, "write g 3")
		third := freeze(t, v)
		for i, want := range []struct {
			chain Chain
			files []string
			f     int64
		}{{third, []string{"f", "g", "keep"}, 1}, {first, []string{"f", "keep"}, 1}, {second, []string{"f", "keep"}, 2}, {third, []string{"f", "g", "keep"}, 1}} {
			reset(t, v, want.chain)
			got := k.act(t, c, v, "Nothing")
			for _, name := range want.files {
				if got[name].Kind != "file" || len(got) != len(want.files)+1 {
					t.Fatalf("round %d: got %d paths, want %v", i, len(got), want.files)
				}
			}
			if digest, err := digestOf(slicesReader(fmt.Sprint(want.f))); err != nil || "sha256:"+got["f"].Digest != digest {
				t.Fatalf("round %d: f has digest %s, want %s (%d)", i, got["f"].Digest, digest, want.f)
			}
		}
	})
}

func TestView_CaseA5KindsAreNotFollowed(t *testing.T) {
	forEachView(t, func(t *testing.T, k viewKind) {
		c, v := caseView(t, k, func(dir string) {
			must(t, os.Mkdir(dir+"/logs", 0o750))
			must(t, write(dir, "v1/in", "in"))
			must(t, os.Symlink("v1/", dir+"/cur"))
			must(t, os.Symlink("nowhere", dir+"/x"))
			must(t, write(dir, "script", "#!"))
			must(t, os.Chmod(dir+"/script", 0o755))
		})
		before, start := k.act(t, c, v, "Nothing"), v.Chain()
		for _, name := range []string{"logs", "cur", "x", "script"} {
			k.act(t, c, v, "remove "+name)
			k.act(t, c, v, "write "+name+" file")
		}
		freeze(t, v)
		reset(t, v, start)
		sameSnapshot(t, "after rollback", k.act(t, c, v, "Nothing"), before, layertest.Options{})
	})
}

func TestView_ChainOf60Layers(t *testing.T) {
	forEachView(t, func(t *testing.T, k viewKind) {
		c, v := caseView(t, k, func(dir string) { must(t, write(dir, "d/0", "0")) })
		var shown layertest.Snapshot
		var chains []Chain
		var snaps []layertest.Snapshot
		for i := range 60 {
			step := fmt.Sprintf("write d/%d %d", i, i)
			if i%3 == 1 {
				step = "remove d" // the next round makes it again: nothing old may come back
			}
			shown = k.act(t, c, v, step)
			chains, snaps = append(chains, freeze(t, v)), append(snaps, shown)
		}
		for _, i := range []int{59, 30, 1} {
			o := k.ignore
			reset(t, v, chains[i])
			sameSnapshot(t, fmt.Sprintf("view of layer %d", i), k.act(t, c, v, "Nothing"), snaps[i], o)
			checkTree(t, chains[i], snaps[i], o)
		}
	})
}

// Case B2: directories without write permission, made, changed, rolled back and removed by their owner.
func TestView_CaseB2ReadOnlyDirectories(t *testing.T) {
	forEachView(t, func(t *testing.T, k viewKind) {
		c, v := caseView(t, k, func(dir string) {
			must(t, write(dir, "ro/f", "f"))
			must(t, os.Chmod(dir+"/ro/f", 0o444))
			must(t, os.Chmod(dir+"/ro", 0o555))
		})
		before, start := k.act(t, c, v, "Nothing"), v.Chain()
		k.act(t, c, v, "EditInReadOnly")
		freeze(t, v)
		reset(t, v, start)
		sameSnapshot(t, "after rollback", k.act(t, c, v, "Nothing"), before, layertest.Options{})
	})
}

func TestView_ResetForgetsFailedWork(t *testing.T) {
	forEachView(t, func(t *testing.T, k viewKind) {
		c, v := caseView(t, k, func(dir string) { must(t, write(dir, "a", "a")) })
		k.act(t, c, v, "write b b")
		gone := slices.Clone(v.Chain())
		gone = append(gone, Layer{ID: "01AAAAAAAAAAAAAAAAAAAAAAAA", Dir: "/nonexistent/fs"})
		if err := v.Reset(context.Background(), gone); err == nil {
			t.Fatal("Reset to a layer that is not there gave no error")
		}
		if got := k.act(t, c, v, "Nothing"); got["b"].Kind != "file" {
			t.Fatal("a failed Reset dropped the open layer")
		}
	})
}

// The bulk copy takes the lowest layer's files; those of higher layers must win even where nothing but their
// content differs.
func TestView_OpensOnAChain(t *testing.T) {
	forEachView(t, func(t *testing.T, k viewKind) {
		c, v := caseView(t, k, func(dir string) { seed(t, dir) })
		for _, step := range []string{"RecreateDir", "write h1 x", "remove odd", "SameSizeSameTime"} {
			k.act(t, c, v, step)
			freeze(t, v)
		}
		want := k.act(t, c, v, "Nothing")
		cp, err := c.OpenCopy(context.Background(), v.Chain())
		must(t, err)
		defer func() { must(t, cp.Close()) }()
		sameSnapshot(t, "copy of a chain", take(t, cp.Mount().Bind), want, k.ignore)
	})
}
