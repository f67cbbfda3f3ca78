package drivertest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// traps are sequences of steps with a checkpoint after each, in which a layer that is right by itself is wrong on top of or
// below another.
func traps() map[string][]string {
	return map[string][]string{
		"DirRenamedAndBack":      {"rename dir moved", "rename moved dir", "write dir/x edited"},
		"DirRenamedThenEdited":   {"rename dir moved", "write moved/sub/z edited", "rename moved dir", "write dir/sub/z again", "remove dir/x"},
		"DirRenamedIntoSibling":  {"rename dir other/in", "write other/in/x edited", "rename other/in dir", "rename other moved"},
		"TwoDirsSwapNames":       {"rename dir t", "rename other dir", "rename t other", "write other/x edited"},
		"RenamedOverWhiteout":    {"remove other", "rename dir other", "write other/new new", "rename other dir"},
		"DeletedThenMadeAgain":   {"remove dir", "mkdir dir", "write dir/only only", "remove dir", "write dir/x another"},
		"DeletedDeepMadeAgain":   {"remove dir/sub", "write dir/sub/z new", "remove dir", "write dir/sub/deep/w new"},
		"FileAndDirTakeTurns":    {"remove dir", "write dir file", "remove dir", "write dir/in in", "remove dir", "write dir file"},
		"WhiteoutNames":          {"write odd/.wh.y y", "remove odd/.wh.x", "write odd/.wh..wh..opq o", "remove odd", "write odd/.wh.odd o"},
		"WhiteoutThenSameName":   {"remove a.txt", "write a.txt alpha", "remove a.txt", "mkdir a.txt"},
		"AliasWrittenEachLayer":  {"append h1", "append h2", "append dir/h3", "remove h1", "append h2"},
		"AliasOfARenamedDir":     {"rename dir moved", "append h1", "append moved/h3", "rename moved dir"},
		"AliasRemovedAndRelink":  {"remove h1", "link h2 h1", "append h1", "remove h2", "link h1 dir/h2"},
		"LinkAcrossLayers":       {"link a.txt dir/a2", "append dir/a2", "remove a.txt", "link dir/a2 a.txt"},
		"OpaqueBelowMetadata":    {"RecreateDir", "chmod dir", "write dir/new new", "rename dir moved"},
		"EmptiedDirStays":        {"remove dir/x", "remove dir/h3", "remove dir/sub", "chmod dir"},
		"SymlinkWhereADirWas":    {"DirToLink", "remove dir", "write dir/sub/z z"},
		"ReadOnlyDirEachLayer":   {"EditInReadOnly", "EditReadOnlyAgain", "RemoveReadOnly"},
		"HolesCopiedUp":          {"append holes", "chmod holes", "append holes"},
		"NestedRenames":          {"rename dir/sub up", "rename dir up/dir", "rename up/dir/x up/x", "append up/x"},
		"RenameOntoItsOwnRemove": {"rename dir moved", "write dir/fresh fresh", "remove moved", "rename dir moved"},
	}
}

// testTraps compares a view with a plain directory in which the same is done, and then every checkpoint with what the
// directory was at that time.
func testTraps(t *testing.T, k Kind) {
	for name, steps := range traps() {
		t.Run(name, func(t *testing.T) {
			if k.Driver == layer.Overlay && !k.Trusted && (hasRename(steps) || strings.Contains(name, "Alias") || strings.Contains(name, "Link")) {
				return // no redirects, no index: EXDEV, and the names of a file part when it is written
			}
			testTrap(t, k, steps)
		})
	}
}

func testTrap(t *testing.T, k Kind, steps []string) {
	c, dir, plain := k.Cache(t), k.Dir(t), k.Dir(t)
	layertest.Seed(t, dir)
	v := k.View(t, c, dir)
	_, err := c.Restore(t.Context(), plain, nil, v.Chain())
	must(t, err)
	// Times of what both do differ, and so do holes that one of them copied.
	o := k.Ignore
	o.NoTimes, o.NoOwners, o.NoHoles = true, true, true
	chains, wants := []layer.Chain{v.Chain()}, []layertest.Snapshot{take(t, plain)}
	for _, step := range steps {
		must(t, layertest.RunStep(step, plain))
		sameSnapshot(t, "view after "+step, k.Act(t, v, step), take(t, plain), o)
		_, _, err := v.Freeze(t.Context())
		must(t, err)
		chains, wants = append(chains, v.Chain()), append(wants, take(t, plain))
	}
	testSquashes(t, k, c, v.Chain())
	for i, chain := range chains {
		reset(t, v, chain)
		sameSnapshot(t, fmt.Sprintf("view rolled back to %d", i), k.Show(t, v), wants[i], o)
	}
}

// testSquashes replaces runs of layers of a chain by one, and compares what is left with the chain, in everything.
func testSquashes(t *testing.T, k Kind, c *layer.Cache, chain layer.Chain) {
	t.Helper()
	whole := k.Dir(t)
	_, err := c.Restore(t.Context(), whole, nil, chain)
	must(t, err)
	for _, run := range [][2]int{{0, len(chain)}, {0, 2}, {1, len(chain)}, {1, 3}, {2, len(chain)}} {
		from, to := run[0], run[1]
		one, err := c.Squash(t.Context(), chain[:from], chain[from:to])
		must(t, err)
		short := slices.Concat(chain[:from], layer.Chain{one}, chain[to:])
		sameSnapshot(t, fmt.Sprintf("layers %d to %d squashed", from, to), k.Show(t, k.OnChain(t, c, short)), take(t, whole), k.Ignore)
	}
}

func hasRename(steps []string) bool {
	return slices.ContainsFunc(steps, func(s string) bool { return strings.HasPrefix(s, "rename ") })
}

// longChain is more layers than an overlay can be mounted of (500, OVL_MAX_STACK).
const longChain = 520

// testLongChain makes a chain that no overlay can show as it is, works on it, and rolls back.
func testLongChain(t *testing.T, k Kind) {
	c, dir, plain := k.Cache(t), k.Dir(t), k.Dir(t)
	layertest.Seed(t, dir)
	l, _, _, err := c.Capture(t.Context(), dir, nil)
	must(t, err)
	chain := layer.Chain{l}
	for i := range longChain {
		l, err := c.Build(func(b *layer.Builder) error {
			name := layer.Path(fmt.Sprintf("made/%d", i%50))
			if i%3 == 2 {
				return b.Remove(name)
			}
			e := layer.Entry{Path: name, Type: layer.Dir, Mode: 0o755, UID: layer.Self, GID: layer.Self}
			if err := b.Put(e, nil); err != nil {
				return err
			}
			e.Path, e.Type = name+"/in", layer.Symlink
			e.Link = layer.LinkText(fmt.Sprint(i))
			return b.Put(e, nil)
		})
		must(t, err)
		chain = append(chain, l)
	}
	_, err = c.Restore(t.Context(), plain, nil, chain)
	must(t, err)
	v := k.OnChain(t, c, chain)
	sameSnapshot(t, "view of a long chain", k.Show(t, v), take(t, plain), k.Ignore)
	o := k.Ignore
	o.NoTimes, o.NoHoles = true, true
	written := "append h1"
	if k.Driver == layer.Overlay && !k.Trusted {
		written = "append a.txt" // without an index the names of a file part
	}
	for _, step := range []string{written, "remove made/7", "write made/8/new new", "RecreateDir"} {
		must(t, layertest.RunStep(step, plain))
		sameSnapshot(t, "long chain after "+step, k.Act(t, v, step), take(t, plain), o)
		freeze(t, v)
	}
	if n := len(v.Chain()); n != len(chain)+4 {
		t.Fatalf("chain has %d layers, want %d: a checkpoint names what it was made of", n, len(chain)+4)
	}
	sameSnapshot(t, "long chain after checkpoints", k.Show(t, v), take(t, plain), o)
	reset(t, v, chain[:1])
	sameSnapshot(t, "long chain rolled back to its base", k.Show(t, v), take(t, dir), o)
	reset(t, v, v.Chain())
}
