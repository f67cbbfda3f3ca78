package modeltest

import (
	"strings"

	"golang.org/x/sys/unix"
)

// sizes meet the borders of blocks and buffers.
var sizes = []int64{0, 1, 5, 100, 511, 512, 4095, 4096, 4097, 20_000, 65_536, 1 << 20, 1<<20 + 4097}

func (g *generator) create() []Op {
	return []Op{{Do: Create, Path: g.free(), N: sizes[g.IntN(len(sizes))], Seed: g.Uint64() % 8, Mode: g.fileMode()}}
}

func (g *generator) fileMode() uint32 {
	modes := []uint32{0o644, 0o644, 0o644, 0o600, 0o755, 0o444, 0}
	if g.profile.Setuid {
		modes = append(modes, 0o4755, 0o2755)
	}
	return modes[g.IntN(len(modes))]
}

func (g *generator) dirMode() uint32 {
	modes := []uint32{0o755, 0o755, 0o755, 0o755, 0o700, 0o1777, 0o555, 0}
	if g.profile.Setuid {
		modes = append(modes, 0o2755)
	}
	return modes[g.IntN(len(modes))]
}

func (g *generator) edit() []Op {
	p, ok := g.pick("file")
	if !ok {
		return nil
	}
	// Most files are small. A write beyond the end makes them longer; one inside leaves the size.
	return []Op{{Do: Edit, Path: p, At: g.Int64N(64), N: 1 + g.Int64N(40), Seed: g.Uint64() % 64, Keep: g.IntN(3) == 0}}
}

func (g *generator) resize() []Op {
	p, ok := g.pick("file")
	if !ok {
		return nil
	}
	switch g.IntN(5) {
	case 0:
		return []Op{{Do: Open, Path: p}}
	case 1, 2:
		return []Op{{Do: Truncate, Path: p, N: sizes[g.IntN(len(sizes))]}}
	}
	return []Op{{Do: Append, Path: p, N: 1 + g.Int64N(5000), Seed: g.Uint64() % 64}}
}

func (g *generator) mmap() []Op {
	p, ok := g.pick("file")
	if !ok {
		return nil
	}
	o := Op{Do: MMap, Path: p, N: 1, At: g.Int64N(3), Seed: g.Uint64() % 64, Mode: g.Uint32N(2)}
	switch g.IntN(3) {
	case 0:
		o.Keep = true
	case 1:
		o.Time = g.time()
	}
	return []Op{o}
}

func (g *generator) holes() []Op {
	if p, ok := g.pick("file"); ok && g.IntN(2) == 0 {
		return []Op{{Do: Punch, Path: p, At: 4096 * g.Int64N(8), N: 4096 * (1 + g.Int64N(4)), Keep: g.IntN(4) == 0}}
	}
	n := []int64{100_000, 1 << 20, 12 << 20}[g.IntN(3)]
	return []Op{{Do: Sparse, Path: g.free(), N: n, At: g.Int64N(n/4096) / 2 * 4096, Seed: g.Uint64() % 64, Mode: 0o644}}
}

func (g *generator) mkdir() []Op { return []Op{{Do: Mkdir, Path: g.free(), Mode: g.dirMode()}} }

func (g *generator) rename() []Op {
	p, ok := g.pick("file", "symlink", "fifo")
	if !ok {
		return nil
	}
	to := g.fresh()
	if other, ok := g.pick("file", "symlink"); ok && g.IntN(3) == 0 {
		to = other
	}
	return []Op{{Do: Rename, Path: p, To: to}}
}

func (g *generator) renameDir() []Op {
	p, ok := g.pick("dir")
	if !ok {
		return nil
	}
	to := g.free()
	if other, ok := g.pick("dir"); ok && g.IntN(4) == 0 {
		to = other
		if g.IntN(2) == 0 {
			return []Op{{Do: Remove, Path: to}, {Do: Rename, Path: p, To: to}}
		}
	}
	if strings.HasPrefix(to+"/", p+"/") {
		return nil
	}
	return []Op{{Do: Rename, Path: p, To: to}}
}

func (g *generator) exchange() []Op {
	a, okA := g.pick()
	b, okB := g.pick()
	if !okA || !okB || a == b || strings.HasPrefix(a, b+"/") || strings.HasPrefix(b, a+"/") {
		return nil
	}
	return []Op{{Do: Exchange, Path: a, To: b}}
}

func (g *generator) link() []Op {
	p, ok := g.pick("file", "file", "symlink", "fifo")
	if !ok {
		return nil
	}
	ops := []Op{{Do: Link, Path: p, To: g.free()}}
	if g.IntN(4) == 0 {
		ops = append(ops, Op{Do: Unlink, Path: p})
	}
	return ops
}

func (g *generator) unlink() []Op {
	p, ok := g.pick("file", "symlink", "fifo", "device")
	if !ok {
		return nil
	}
	return []Op{{Do: Unlink, Path: p}}
}

func (g *generator) remove() []Op {
	p, ok := g.pick()
	if !ok {
		return nil
	}
	return []Op{{Do: Remove, Path: p}}
}

// swapKind puts something of another kind in the place of a path.
func (g *generator) swapKind() []Op {
	p, ok := g.pick()
	if !ok {
		return nil
	}
	other := []Op{
		{Do: Create, Path: p, N: 10, Seed: g.Uint64() % 8, Mode: g.fileMode()},
		{Do: Mkdir, Path: p, Mode: g.dirMode()},
		{Do: Symlink, Path: p, Name: g.target()},
		{Do: Fifo, Path: p, Mode: 0o600},
	}
	return []Op{{Do: Remove, Path: p}, other[g.IntN(len(other))]}
}

// opaque removes a directory and makes it again, with some of the old names in it.
func (g *generator) opaque() []Op {
	p, ok := g.pick("dir")
	if !ok {
		return nil
	}
	ops := []Op{{Do: Remove, Path: p}, {Do: Mkdir, Path: p, Mode: 0o755}}
	for _, old := range g.paths {
		name, inside := strings.CutPrefix(old, p+"/")
		if inside && !strings.Contains(name, "/") && g.IntN(2) == 0 {
			ops = append(ops, []Op{
				{Do: Create, Path: old, N: 7, Seed: g.Uint64() % 8, Mode: 0o644},
				{Do: Mkdir, Path: old, Mode: 0o755},
			}[g.IntN(2)])
		}
	}
	return ops
}

func (g *generator) chmod() []Op {
	p, ok := g.pick("file", "dir", "fifo")
	if !ok {
		return nil
	}
	if g.IntN(20) == 0 {
		return []Op{{Do: Chmod, Path: ".", Mode: []uint32{0o755, 0o700, 0o1777}[g.IntN(3)]}}
	}
	mode := g.fileMode()
	if g.kinds[p] == "dir" {
		mode = g.dirMode()
	}
	if g.profile.Owner && g.IntN(3) == 0 {
		return []Op{{Do: Chown, Path: p, ID: g.IntN(3)}, {Do: Chmod, Path: p, Mode: mode}}
	}
	return []Op{{Do: Chmod, Path: p, Mode: mode}}
}

func (g *generator) xattr() []Op {
	p, ok := g.pick("file", "dir", "dir")
	if !ok {
		return nil
	}
	if g.IntN(12) == 0 {
		p = "."
	}
	name := []string{"user.a", "user.b", "user.\xff", "user.overlay.opaque", "user.mime_type"}[g.IntN(5)]
	if g.IntN(3) == 0 {
		return []Op{{Do: RmXattr, Path: p, Name: name}}
	}
	value := []string{"", "y", "\x00\x01\xff", strings.Repeat("v", 100)}[g.IntN(4)]
	return []Op{{Do: SetXattr, Path: p, Name: name, Value: value}}
}

func (g *generator) utimes() []Op {
	p, ok := g.pick()
	if !ok {
		return nil
	}
	if g.IntN(10) == 0 {
		p = "."
	}
	return []Op{{Do: Utimes, Path: p, Time: g.time()}}
}

// time is between 1965 and 2020: never the time of a test.
func (g *generator) time() int64 { return (g.Int64N(55*365*86400)-5*365*86400)*1e9 + g.Int64N(1e9) }

func (g *generator) symlink() []Op { return []Op{{Do: Symlink, Path: g.free(), Name: g.target()}} }

func (g *generator) target() string {
	texts := []string{"nowhere", "/etc/passwd", "../..", "a", "\xfe\xff", strings.Repeat("long/", 200), "."}
	if p, ok := g.pick("dir"); ok && len(p) < unix.PathMax {
		texts = append(texts, p)
	}
	return texts[g.IntN(len(texts))]
}

func (g *generator) special() []Op {
	if g.profile.Owner && g.IntN(2) == 0 {
		return []Op{{Do: Device, Path: g.free(), Mode: unix.S_IFCHR | 0o620, N: int64(unix.Mkdev(1, 3+g.Uint32N(6)))}}
	}
	return []Op{{Do: Fifo, Path: g.free(), Mode: 0o640}}
}

// deep makes a path that no system call takes whole.
func (g *generator) deep() []Op {
	if !g.profile.Deep || g.IntN(4) > 0 {
		return nil
	}
	p := g.free()
	var ops []Op
	for len(p) < unix.PathMax+300 {
		ops = append(ops, Op{Do: Mkdir, Path: p, Mode: 0o755})
		p += "/" + strings.Repeat("d", 250)
	}
	return append(ops, Op{Do: Create, Path: p, N: 5, Mode: 0o644})
}
