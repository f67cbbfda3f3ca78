package drivertest

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// cases are tests of their own, by name.
func cases() map[string]func(*testing.T, Kind) {
	return map[string]func(*testing.T, Kind){
		"CaseA1RollbackIsExactInBothDirections": testCaseA1RollbackIsExactInBothDirections,
		"CaseA2LaterCyclesKeepTheirWork":        testCaseA2LaterCyclesKeepTheirWork,
		"CaseA5KindsAreNotFollowed":             testCaseA5KindsAreNotFollowed,
		"ChainOf60Layers":                       testChainOf60Layers,
		"CaseB2ReadOnlyDirectories":             testCaseB2ReadOnlyDirectories,
		"ResetForgetsFailedWork":                testResetForgetsFailedWork,
		"OpensOnAChain":                         testOpensOnAChain,
		"DamagedLayersChangeNothing":            testDamagedLayersChangeNothing,
	}
}

// filled opens a view of what fill made.
func filled(t *testing.T, k Kind, fill func(dir string)) layer.View {
	t.Helper()
	dir := k.Dir(t)
	fill(dir)
	return k.View(t, k.Cache(t), dir)
}

func freeze(t *testing.T, v layer.View) layer.Chain {
	t.Helper()
	_, changed, err := v.Freeze(t.Context())
	must(t, err)
	if !changed {
		t.Fatal("Freeze found no change")
	}
	return v.Chain()
}

func reset(t *testing.T, v layer.View, chain layer.Chain) {
	t.Helper()
	must(t, v.Reset(t.Context(), chain))
}

func testCaseA1RollbackIsExactInBothDirections(t *testing.T, k Kind) {
	v := filled(t, k, func(dir string) {
		must(t, layertest.Write(dir, "tracked", "1"))
		must(t, layertest.Write(dir, ".gitignore", "cache/\n"))
		must(t, layertest.Write(dir, "out/data.jsonl", "{}"))
		must(t, layertest.Write(dir, "cache/x", "x"))
	})
	before := k.Show(t, v)
	start := v.Chain()
	for _, step := range []string{"write tracked 2", "remove cache/x", "write new/a/b.txt b"} {
		k.Act(t, v, step)
	}
	reset(t, v, start)
	sameSnapshot(t, "after rollback of an open layer", k.Show(t, v), before, layertest.Options{})
	k.Act(t, v, "remove out")
	freeze(t, v)
	reset(t, v, start)
	sameSnapshot(t, "after rollback of a closed layer", k.Show(t, v), before, layertest.Options{})
}

func testCaseA2LaterCyclesKeepTheirWork(t *testing.T, k Kind) {
	v := filled(t, k, func(dir string) { must(t, layertest.Write(dir, "keep", "k")) })
	k.Act(t, v, "write f 1")
	first := freeze(t, v)
	k.Act(t, v, "write f 2")
	second := freeze(t, v)
	reset(t, v, first)
	k.Act(t, v, "write g 3")
	third := freeze(t, v)
	for i, want := range []struct {
		chain layer.Chain
		files []string
		f     int64
	}{{third, []string{"f", "g", "keep"}, 1}, {first, []string{"f", "keep"}, 1}, {second, []string{"f", "keep"}, 2}, {third, []string{"f", "g", "keep"}, 1}} {
		reset(t, v, want.chain)
		got := k.Show(t, v)
		for _, name := range want.files {
			if got[name].Kind != "file" || len(got) != len(want.files)+1 {
				t.Fatalf("round %d: got %d paths, want %v", i, len(got), want.files)
			}
		}
		if digest, err := digestOf(strings.NewReader(fmt.Sprint(want.f))); err != nil || got["f"].Digest != digest {
			t.Fatalf("round %d: f has digest %s, want %s (%d)", i, got["f"].Digest, digest, want.f)
		}
	}
}

func testCaseA5KindsAreNotFollowed(t *testing.T, k Kind) {
	v := filled(t, k, func(dir string) {
		must(t, os.Mkdir(dir+"/logs", 0o750))
		must(t, layertest.Write(dir, "v1/in", "in"))
		must(t, os.Symlink("v1/", dir+"/cur"))
		must(t, os.Symlink("nowhere", dir+"/x"))
		must(t, layertest.Write(dir, "script", "#!"))
		must(t, os.Chmod(dir+"/script", 0o755))
	})
	before, start := k.Show(t, v), v.Chain()
	for _, name := range []string{"logs", "cur", "x", "script"} {
		k.Act(t, v, "remove "+name)
		k.Act(t, v, "write "+name+" file")
	}
	freeze(t, v)
	reset(t, v, start)
	sameSnapshot(t, "after rollback", k.Show(t, v), before, layertest.Options{})
}

func testChainOf60Layers(t *testing.T, k Kind) {
	v := filled(t, k, func(dir string) { must(t, layertest.Write(dir, "d/0", "0")) })
	var shown layertest.Snapshot
	var chains []layer.Chain
	var snaps []layertest.Snapshot
	for i := range 60 {
		step := fmt.Sprintf("write d/%d %d", i, i)
		if i%3 == 1 {
			step = "remove d" // the next round makes it again: nothing old may come back
		}
		shown = k.Act(t, v, step)
		chains, snaps = append(chains, freeze(t, v)), append(snaps, shown)
	}
	for _, i := range []int{59, 30, 1} {
		o := k.Ignore
		reset(t, v, chains[i])
		sameSnapshot(t, fmt.Sprintf("view of layer %d", i), k.Show(t, v), snaps[i], o)
		checkTree(t, chains[i], snaps[i], o)
	}
}

// Case B2: directories without write permission, made, changed, rolled back and removed by their owner.
func testCaseB2ReadOnlyDirectories(t *testing.T, k Kind) {
	v := filled(t, k, func(dir string) {
		must(t, layertest.Write(dir, "ro/f", "f"))
		must(t, os.Chmod(dir+"/ro/f", 0o444))
		must(t, os.Chmod(dir+"/ro", 0o555))
	})
	before, start := k.Show(t, v), v.Chain()
	k.Act(t, v, "EditInReadOnly")
	freeze(t, v)
	reset(t, v, start)
	sameSnapshot(t, "after rollback", k.Show(t, v), before, layertest.Options{})
}

func testResetForgetsFailedWork(t *testing.T, k Kind) {
	v := filled(t, k, func(dir string) { must(t, layertest.Write(dir, "a", "a")) })
	k.Act(t, v, "write b b")
	gone := slices.Clone(v.Chain())
	gone = append(gone, layer.Layer{ID: "01AAAAAAAAAAAAAAAAAAAAAAAA", Dir: "/nonexistent/fs"})
	if err := v.Reset(t.Context(), gone); err == nil {
		t.Fatal("Reset to a layer that is not there gave no error")
	}
	if got := k.Show(t, v); got["b"].Kind != "file" {
		t.Fatal("a failed Reset dropped the open layer")
	}
}

// What a driver fills in bulk is the lowest layer's; that of higher layers must win even where nothing but its content
// differs.
func testOpensOnAChain(t *testing.T, k Kind) {
	c, dir := k.Cache(t), k.Dir(t)
	layertest.Seed(t, dir)
	v := k.View(t, c, dir)
	for _, step := range []string{"RecreateDir", "write h1 x", "remove odd", "SameSizeSameTime"} {
		k.Act(t, v, step)
		freeze(t, v)
	}
	want := k.Show(t, v)
	sameSnapshot(t, "another view of the chain", k.Show(t, k.OnChain(t, c, v.Chain())), want, k.Ignore)
	if k.Driver != layer.Overlay || k.Trusted {
		cp, err := c.Open(t.Context(), layer.Copy, v.Chain())
		must(t, err)
		defer func() { must(t, cp.Close()) }()
		sameSnapshot(t, "copy of the chain", take(t, cp.Mount().Bind), want, k.Ignore)
	}
}
