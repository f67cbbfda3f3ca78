package modeltest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// Profile says which operations a tree allows.
type Profile struct {
	// Owner: files may be given away, and devices be made.
	Owner bool
	// Setuid: setuid and setgid may be set.
	Setuid bool
	// Deep: paths may be longer than PATH_MAX.
	Deep bool
}

// generator makes operations that mostly succeed in a tree.
type generator struct {
	*rand.Rand
	profile Profile
	kinds   map[string]string // path to kind
	paths   []string          // sorted
}

func newGenerator(rng *rand.Rand, p Profile, tree layertest.Snapshot) *generator {
	g := &generator{Rand: rng, profile: p, kinds: map[string]string{}}
	for path, n := range tree {
		g.kinds[path] = n.Kind
	}
	g.sort()
	return g
}

func (g *generator) sort() { g.paths = slices.Sorted(maps.Keys(g.kinds)) }

// weighted are the ways to change a tree with how often each is taken.
var weighted = []struct {
	weight int
	make   func(g *generator) []Op
}{
	{10, (*generator).create},
	{8, (*generator).edit},
	{3, (*generator).resize},
	{4, (*generator).mmap},
	{4, (*generator).holes},
	{7, (*generator).mkdir},
	{9, (*generator).rename},
	{7, (*generator).renameDir},
	{2, (*generator).exchange},
	{7, (*generator).link},
	{6, (*generator).unlink},
	{3, (*generator).remove},
	{4, (*generator).swapKind},
	{4, (*generator).opaque},
	{6, (*generator).chmod},
	{6, (*generator).xattr},
	{5, (*generator).utimes},
	{3, (*generator).symlink},
	{1, (*generator).special},
	{1, (*generator).deep},
}

// maxPaths keeps a tree small enough to look at often.
const maxPaths = 120

// batch gives the next few operations.
func (g *generator) batch(n int) []Op {
	total := 0
	for _, w := range weighted {
		total += w.weight
	}
	var ops []Op
	for len(ops) < n {
		if len(g.paths) > maxPaths {
			ops = append(ops, g.note(g.remove()...)...)
			continue
		}
		at := g.IntN(total)
		for _, w := range weighted {
			if at -= w.weight; at < 0 {
				ops = append(ops, g.note(w.make(g)...)...)
				break
			}
		}
	}
	return ops
}

// note follows what the operations make of the tree.
func (g *generator) note(ops ...Op) []Op {
	for _, o := range ops {
		switch o.Do {
		case Create, Sparse:
			g.kinds[o.Path] = "file"
		case Mkdir:
			g.kinds[o.Path] = "dir"
		case Symlink, Fifo, Device:
			g.kinds[o.Path] = string(o.Do)
		case Link:
			g.kinds[o.To] = g.kinds[o.Path]
		case Unlink, Rmdir, Remove:
			g.take(o.Path)
		case Rename:
			for rest, kind := range g.take(o.Path) {
				g.kinds[o.To+rest] = kind
			}
		}
	}
	if len(ops) > 0 {
		g.sort()
	}
	return ops
}

// take removes a path and what is below it, and gives the kinds by what follows the path.
func (g *generator) take(path string) map[string]string {
	taken := map[string]string{}
	for p, kind := range g.kinds {
		if rest, below := strings.CutPrefix(p, path); below && path != "." && (rest == "" || rest[0] == '/') {
			taken[rest] = kind
			delete(g.kinds, p)
		}
	}
	return taken
}

// pick gives a random path of one of the kinds, of any if there is none, but not the root.
func (g *generator) pick(kinds ...string) (string, bool) {
	var fit []string
	for _, p := range g.paths {
		if p != "." && (len(kinds) == 0 || slices.Contains(kinds, g.kinds[p])) {
			fit = append(fit, p)
		}
	}
	if len(fit) == 0 {
		return "", false
	}
	return fit[g.IntN(len(fit))], true
}

// oddNames are names that trees have and tools stumble over.
var oddNames = []string{
	".wh.x", ".wh..wh..opq", ".wh.a", "-rf", "new\nline", "\xff\xfe", "a b", "a-b", "a.b", "e\u0301", "\u00e9", "\\", "\x01", "*",
	strings.Repeat("n", 255),
}

// maxDepth bounds how deep a new path lies.
const maxDepth = 6

// fresh gives a path in a random directory, which may be taken already.
func (g *generator) fresh() string {
	dir := "."
	if d, ok := g.pick("dir"); ok && g.IntN(3) > 0 && strings.Count(d, "/") < maxDepth {
		dir = d
	}
	name := string(rune('a' + g.IntN(12)))
	switch g.IntN(8) {
	case 0:
		name = oddNames[g.IntN(len(oddNames))]
	case 1:
		name += fmt.Sprint(g.IntN(100))
	}
	return below(dir, name)
}

func below(dir, name string) string {
	if dir == "." {
		return name
	}
	return dir + "/" + name
}

// free is fresh that is not taken, as far as a few tries find one.
func (g *generator) free() string {
	p := g.fresh()
	for range 8 {
		if g.kinds[p] == "" {
			break
		}
		p = g.fresh()
	}
	return p
}
