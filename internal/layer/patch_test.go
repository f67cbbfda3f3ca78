package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// patched keeps a directory as layers of one cache and, packed and unpacked, of another.
type patched struct {
	t        *testing.T
	dir      string
	from, to *Cache
	idx      *Index
	chain    Chain // of from
	arrived  Chain // of to
	sources  []Source
}

var longAgo = time.Unix(1_500_000_000, 123_456_789)

func newPatched(t *testing.T) *patched {
	return &patched{t: t, dir: scratch(t), from: openTestCache(t, testOptions(t)), to: openTestCache(t, testOptions(t))}
}

// keep captures what changed, carries it over, and returns the size of its stored form in bytes.
func (p *patched) keep() int64 {
	p.t.Helper()
	ctx := context.Background()
	l, idx, changed, err := p.from.Capture(ctx, p.dir, p.idx)
	must(p.t, err)
	p.idx = idx
	if !changed {
		return 0
	}
	var b bytes.Buffer
	packed, err := p.from.Pack(ctx, p.chain, l, &b)
	must(p.t, err)
	arrived, err := p.to.Unpack(ctx, p.arrived, packed.Name, bytes.NewReader(b.Bytes()))
	must(p.t, err)
	p.chain, p.arrived = append(p.chain, l), append(p.arrived, arrived)
	p.sources = append(p.sources, Source{Name: packed.Name, Open: func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b.Bytes())), nil
	}})
	return packed.Size
}

// check compares what arrived, and the export of what was stored, with the directory.
func (p *patched) check() {
	p.t.Helper()
	v, err := p.to.Open(context.Background(), Copy, p.arrived)
	must(p.t, err)
	layertest.Compare(p.t, v.Mount().Bind, p.dir, layertest.Options{NoOwners: true})
	must(p.t, v.Close())
	out := scratch(p.t)
	tar := exec.Command("tar", "--xattrs", "-xpSf", "-", "-C", out)
	tar.Stdin = bytes.NewReader(mustExport(p.t, p.sources))
	if msg, err := tar.CombinedOutput(); err != nil || len(msg) > 0 {
		p.t.Fatalf("tar: %v: %s", err, msg)
	}
	// Of holes tar makes what it finds, in blocks of its own.
	layertest.Compare(p.t, out, p.dir, layertest.Options{NoOwners: true, NoDirTimes: true, NoHoles: true})
}

func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(b) // never fails
	return b
}

func writeAt(t testing.TB, name string, b []byte, off int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o644)
	must(t, err)
	_, err = f.WriteAt(b, off)
	must(t, errors.Join(err, f.Close()))
}

// A large file costs what changed in it, and comes back whole.
func TestPatch_CostsWhatChanged(t *testing.T) {
	t.Parallel()
	p := newPatched(t)
	big := filepath.Join(p.dir, "big")
	writeAt(t, big, noise(1, 16<<20), 0)
	if got := p.keep(); got < 16<<20 {
		t.Fatalf("the first layer takes %d bytes, less than its noise", got)
	}
	tests := []struct {
		what   string
		change func()
		most   int64
	}{
		{"one byte", func() { writeAt(t, big, []byte("x"), 5<<20) }, 8 << 10},
		{"a MiB in 64 places", func() {
			for i := range int64(64) {
				writeAt(t, big, noise(uint64(i)+2, 16<<10), i*200_000)
			}
		}, 3 << 19},
		{"mode and time alone", func() { must(t, os.Chmod(big, 0o600)); must(t, os.Chtimes(big, longAgo, longAgo)) }, 1 << 10},
		{"appended", func() { writeAt(t, big, noise(99, 1<<20), 16<<20) }, 1<<20 + 8<<10},
		{"a hole made", func() {
			f, err := os.OpenFile(big, os.O_RDWR, 0)
			must(t, err)
			err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 1<<20, 1<<20)
			if !errors.Is(err, unix.EOPNOTSUPP) { // some file systems have no holes
				must(t, err)
			}
			must(t, f.Close())
		}, 20 << 20},
		{"cut short", func() { must(t, os.Truncate(big, 10<<20+123)) }, 1 << 10},
		{"renamed over it with the same content", func() {
			b, err := os.ReadFile(big)
			must(t, err)
			writeAt(t, big+".new", b, 0)
			must(t, os.Rename(big+".new", big))
		}, 1 << 10},
	}
	for _, tt := range tests {
		tt.change()
		if got := p.keep(); got > tt.most {
			t.Errorf("%s: stored %d bytes, want at most %d", tt.what, got, tt.most)
		}
		p.check()
	}
}

// Whatever is done to large files with holes and aliases, what arrives is what was there.
func TestPatch_RandomChanges(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			p := newPatched(t)
			for round := range 4 {
				for i := range 3 {
					changeLarge(t, r, filepath.Join(p.dir, fmt.Sprint("d/f", r.IntN(2)+i)))
				}
				if round == 2 {
					must(t, os.Link(filepath.Join(p.dir, "d/f1"), filepath.Join(p.dir, fmt.Sprint("alias", round))))
				}
				p.keep()
				p.check()
			}
		})
	}
}

// changeLarge does a few random things to the file name, which need not exist.
func changeLarge(t *testing.T, r *rand.Rand, name string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(name), 0o755))
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	must(t, err)
	defer f.Close()
	for range 1 + r.IntN(4) {
		off, n := r.Int64N(4<<20), 1+r.Int64N(300_000)
		switch r.IntN(6) {
		case 0:
			must(t, f.Truncate(1<<20+r.Int64N(4<<20)))
		case 1:
			err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
			if !errors.Is(err, unix.EOPNOTSUPP) {
				must(t, err)
			}
		case 2:
			_, err := f.WriteAt(make([]byte, n), off)
			must(t, err)
		default:
			_, err := f.WriteAt(noise(r.Uint64(), int(n)), off)
			must(t, err)
		}
	}
}

// A directory that hides what was below it has no patches: an export could not find what they change.
func TestPatch_NotBelowOpaque(t *testing.T) {
	c := newTarCache(t)
	content := noise(1, 2<<20)
	dir := func(p Path, opaque bool) tarSpec {
		sp := tarSpec{}
		sp.Path, sp.Type, sp.Mode, sp.MTime, sp.UID, sp.GID, sp.Opaque = p, Dir, 0o755, longAgo, Self, Self, opaque
		return sp
	}
	file := func(p Path, b []byte) tarSpec {
		sp := tarSpec{}
		sp.Path, sp.Type, sp.Mode, sp.MTime, sp.UID, sp.GID, sp.Data = p, File, 0o644, longAgo, Self, Self, string(b)
		return sp
	}
	base := mustLayer(t, c, []tarSpec{dir("d", false), dir("d/e", false), file("d/e/big", content), file("f", content)})
	changed := slices.Clone(content)
	changed[5000]++
	top := mustLayer(t, c, []tarSpec{dir("d", true), dir("d/e", true), file("d/e/big", changed), file("f", changed)})
	below, first := mustPack(t, c, base)
	var second bytes.Buffer
	packed, err := c.Pack(context.Background(), Chain{base}, top, &second)
	must(t, err)
	var patches []Path
	_, err = readTar(context.Background(), tarInput{R: bytes.NewReader(second.Bytes())}, func(e *tarEntry, _ io.Reader) error {
		if e.below != "" {
			patches = append(patches, e.Path)
		}
		return nil
	})
	must(t, err)
	if d := cmp.Diff(patches, []Path{"f"}); d != "" {
		t.Errorf("patches (-got +want):\n%s", d)
	}
	open := func(b []byte) func() (io.ReadCloser, error) {
		return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
	}
	must(t, Export(context.Background(), []Source{{below.Name, open(first)}, {packed.Name, open(second.Bytes())}}, io.Discard))
}

func TestPatch_RefusedOnOtherLayers(t *testing.T) {
	p := newPatched(t)
	big := filepath.Join(p.dir, "big")
	writeAt(t, big, noise(1, 4<<20), 0)
	p.keep()
	writeAt(t, big, []byte("changed"), 2<<20)
	p.keep()
	base, top := p.sources[0], p.sources[1]
	other := newPatched(t)
	writeAt(t, filepath.Join(other.dir, "big"), noise(2, 4<<20), 0)
	other.keep()
	c := openTestCache(t, testOptions(t))
	for what, below := range map[string]Chain{"none": nil, "another file": other.chain, "an empty layer": {mustLayer(t, newTarCache(t), nil)}} {
		r, err := top.Open()
		must(t, err)
		if _, err := c.Unpack(context.Background(), below, top.Name, r); !errors.Is(err, ErrCorrupt) {
			t.Errorf("on %s: got %v, want ErrCorrupt", what, err)
		}
		if left, err := os.ReadDir(c.staging); err != nil || len(left) > 0 {
			t.Errorf("on %s: left in staging: %v, %v", what, left, err)
		}
	}
	for what, sources := range map[string][]Source{"alone": {top}, "on another file": {other.sources[0], top}} {
		var b bytes.Buffer
		if err := Export(context.Background(), sources, &b); !errors.Is(err, ErrCorrupt) || b.Len() > 0 {
			t.Errorf("export %s: got %d bytes and %v, want none and ErrCorrupt", what, b.Len(), err)
		}
	}
	must(t, Export(context.Background(), []Source{base, top}, io.Discard))
}

func TestSegments_Algebra(t *testing.T) {
	const size = 40
	r := rand.New(rand.NewPCG(1, 2))
	draw := func() ([]segment, []bool) {
		set := make([]bool, size)
		for range r.IntN(5) {
			at := r.IntN(size)
			for i := at; i < min(size, at+r.IntN(9)); i++ {
				set[i] = true
			}
		}
		return segmentsFrom(set), set
	}
	for range 2000 {
		a, inA := draw()
		b, inB := draw()
		both, either, not := make([]bool, size), make([]bool, size), make([]bool, size)
		for i := range size {
			both[i], either[i], not[i] = inA[i] && inB[i], inA[i] || inB[i], !inA[i]
		}
		for what, c := range map[string]struct{ got, want []segment }{
			"overlap": {overlap(a, b), segmentsFrom(both)},
			"union":   {union(a, b), segmentsFrom(either)},
			"gaps":    {gaps(a, size), segmentsFrom(not)},
		} {
			if d := cmp.Diff(c.got, c.want, cmp.AllowUnexported(segment{})); d != "" {
				t.Fatalf("%s of %v and %v (-got +want):\n%s", what, a, b, d)
			}
		}
	}
}

func segmentsFrom(set []bool) []segment {
	var segs []segment
	for i := 0; i < len(set); i++ {
		n := slices.Index(append(slices.Clone(set[i:]), false), false)
		if n > 0 {
			segs = append(segs, segment{int64(i), int64(n)})
			i += n
		}
	}
	return segs
}
