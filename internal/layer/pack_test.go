package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
)

func TestCache_PackUnpackRoundTrip(t *testing.T) {
	from, to := newTarCache(t), newTarCache(t)
	l := mustLayer(t, from, oddTree())
	want := layerOnDisk(t, from, l)
	if len(want) != len(oddTree()) {
		t.Fatalf("the tree to start from has %d entries, want %d", len(want), len(oddTree()))
	}
	p, packed := mustPack(t, from, l)
	got, err := to.Unpack(context.Background(), nil, p.Name, bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	if diff := diffTrees(layerOnDisk(t, to, got), want); diff != "" {
		t.Errorf("tree differs (-want +got):\n%s", diff)
	}
	if found, ok := from.Find(p.Name); !ok || found.ID != l.ID || found.Digest != p.Digest || found.Size != p.Size {
		t.Errorf("Find after Pack = %+v, %v", found, ok)
	}
	wantLayer := Layer{ID: got.ID, Dir: got.Dir, Name: p.Name, TarSize: p.TarSize, Size: p.Size, Digest: p.Digest, Lost: got.Lost}
	if diff := cmp.Diff(wantLayer, got); diff != "" {
		t.Errorf("layer differs (-want +got):\n%s", diff)
	}
	again, repacked := mustPack(t, to, got)
	if diff := cmp.Diff(p, again); diff != "" || !bytes.Equal(packed, repacked) {
		t.Errorf("the unpacked layer packs differently (-first +second):\n%s", diff)
	}
}

func TestCache_PackIsTheSameWhateverTheOrderOfMaking(t *testing.T) {
	t.Parallel()
	var want Packed
	var wantBytes []byte
	for seed := range uint64(4) {
		specs := oddTree()
		rnd := rand.New(rand.NewPCG(seed, 0))
		rnd.Shuffle(len(specs), func(i, j int) { specs[i], specs[j] = specs[j], specs[i] })
		slices.SortStableFunc(specs, func(a, b tarSpec) int { return makingRank(a) - makingRank(b) })
		c := newTarCache(t)
		p, packed := mustPack(t, c, mustLayer(t, c, specs))
		if seed == 0 {
			want, wantBytes = p, packed
		}
		if diff := cmp.Diff(want, p); diff != "" || !bytes.Equal(packed, wantBytes) {
			t.Errorf("seed %d packs differently (-seed 0 +seed %d):\n%s", seed, seed, diff)
		}
	}
}

// makingRank puts parents before children and first names before aliases.
func makingRank(s tarSpec) int {
	rank := 2 * strings.Count(string(s.Path), "/")
	switch {
	case s.Path == ".":
		return -1
	case s.HardLink != "":
		return 1000
	case s.Type != Dir:
		return rank + 1
	}
	return rank
}

func TestCache_PackIsReadByOthers(t *testing.T) {
	c := newTarCache(t)
	_, packed := mustPack(t, c, mustLayer(t, c, oddTree()))
	dec, err := zstd.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	defer dec.Close()
	content := map[string]string{}
	for _, s := range oddTree() {
		if s.Type == File && s.HardLink == "" {
			content[tarName(&s.item)] = fileContentOf(s)
		}
	}
	tr := tar.NewReader(dec)
	n := 0
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		n++
		got, err := io.ReadAll(tr)
		if err != nil {
			t.Fatalf("%q: %v", h.Name, err)
		}
		if want, ok := content[h.Name]; ok && h.Typeflag == tar.TypeReg && string(got) != want {
			t.Errorf("archive/tar reads %d bytes of %q, want %d", len(got), h.Name, len(want))
		}
		delete(content, h.Name)
	}
	if len(content) > 0 || n != len(oddTree())+2 { // two opaque markers
		t.Errorf("archive/tar found %d entries and missed %d files", n, len(content))
	}
}

// fileContentOf is the content of a file with its holes as zeros.
func fileContentOf(s tarSpec) string {
	if s.Segs == nil {
		return s.Data
	}
	b, data := make([]byte, s.Size), s.Data
	for _, seg := range s.Segs {
		copy(b[seg.off:], data[:seg.len])
		data = data[seg.len:]
	}
	return string(b)
}

func TestCache_PackIsListedByTar(t *testing.T) {
	c := newTarCache(t)
	specs := []tarSpec{
		dirSpec(".", 0o755),
		dirSpec("d", 0o755).with(func(s *tarSpec) { s.Opaque = true }),
		fileSpec("d/f", "x"),
		fileSpec("holes", "12345678").with(func(s *tarSpec) { s.Size, s.Segs = 1<<20, []segment{{0, 8}} }),
		goneSpec("x"),
		fileSpec("z", strings.Repeat("z", 3000)),
	}
	p, packed := mustPack(t, c, mustLayer(t, c, specs))
	file := filepath.Join(t.TempDir(), p.Name)
	if err := os.WriteFile(file, packed, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("tar", "--zstd", "-tf", file).CombinedOutput()
	if got, want := string(out), "./\nd/\nd/.wh..wh..opq\nd/f\nholes\n.wh.x\nz\n"; err != nil || got != want {
		t.Errorf("tar -t printed %q, %v, want %q", got, err, want)
	}
	dir := t.TempDir()
	if out, err := exec.Command("tar", "--zstd", "-xf", file, "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("tar -x: %v: %s", err, out)
	}
	for _, name := range []string{"d/f", "holes", "z"} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(specs, func(s tarSpec) bool { return string(s.Path) == name })
		if want := fileContentOf(specs[i]); string(got) != want && name != "holes" || len(got) < len(want) {
			t.Errorf("tar -x made %d bytes of %q, want %d", len(got), name, len(want))
		}
	}
}

func TestCache_PackOfManyHolesStaysReadable(t *testing.T) {
	t.Parallel()
	const step, count = 8192, maxSegments + 100
	segs := make([]segment, count)
	for i := range segs {
		segs[i] = segment{int64(i) * step, 4096}
	}
	c := newTarCache(t)
	l := mustLayer(t, c, []tarSpec{dirSpec(".", 0o755), fileSpec("f", strings.Repeat("data", count*1024)).with(func(s *tarSpec) {
		s.Size, s.Segs = count*step, segs
	})})
	p, packed := mustPack(t, c, l)
	got, err := newTarCache(t).Unpack(context.Background(), nil, p.Name, bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	trees := [2][]tarSeenOnDisk{layerOnDisk(t, c, l), onDisk(t, got.Dir, c.opt, nil)}
	for _, tree := range trees {
		for i := range tree {
			tree[i].Segs = nil
		}
	}
	if diff := diffTrees(trees[1], trees[0]); diff != "" {
		t.Errorf("tree differs (-want +got):\n%s", diff)
	}
}

var errTarTest = errors.New("test")

type failingWriter struct{ left int }

func (w *failingWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		return 0, errTarTest
	}
	return len(p), nil
}

func TestCache_PackFailsWithTheWriter(t *testing.T) {
	c := newTarCache(t)
	noise := make([]byte, 8<<20)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	l := mustLayer(t, c, []tarSpec{dirSpec(".", 0o755), fileSpec("f", string(noise))})
	for _, after := range []int{0, 1000, 1 << 20, 8 << 20} {
		if _, err := c.Pack(context.Background(), nil, l, &failingWriter{left: after}); !errors.Is(err, errTarTest) {
			t.Errorf("a writer that fails after %d bytes: %v, want its error", after, err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := c.Pack(ctx, nil, l, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("Pack with an ended context: %v", err)
	}
	if l, err := c.Get(l.ID); err != nil || l.Name != "" {
		t.Errorf("after failed packs the layer is named %q, %v", l.Name, err)
	}
}

func TestCache_PackOfChangedLayerIsCorrupt(t *testing.T) {
	c := newTarCache(t)
	l := mustLayer(t, c, []tarSpec{dirSpec(".", 0o755), fileSpec("f", "x")})
	mustPack(t, c, l)
	if err := os.WriteFile(filepath.Join(l.Dir, "f"), []byte("y"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Pack(context.Background(), nil, l, io.Discard); !errors.Is(err, ErrCorrupt) {
		t.Errorf("Pack of a changed layer: %v, want ErrCorrupt", err)
	}
}

func TestCache_PackOfUnknownLayer(t *testing.T) {
	if _, err := newTarCache(t).Pack(context.Background(), nil, Layer{ID: "none"}, io.Discard); err == nil {
		t.Error("Pack of a layer that is not there succeeded")
	}
}

// TestCompress_ReadsBackWhatItWrote has an encoder that loses bytes, as zstd encoders have done.
func TestCompress_ReadsBackWhatItWrote(t *testing.T) {
	good := rawTar(t, tarHeader{name: "./", flag: flagDir}, tarHeader{name: "f", flag: flagFile, size: 1 << 20})
	for name, change := range map[string]func([]byte) []byte{
		"OtherByte": func(b []byte) []byte { return bytes.Replace(b, []byte("xx"), []byte("xy"), 1) },
		"Shorter":   func(b []byte) []byte { return b[:len(b)-blockSize] },
		"OtherTar":  func([]byte) []byte { return rawTar(t, tarHeader{name: "./", flag: flagDir}) },
		"Nothing":   func([]byte) []byte { return nil },
	} {
		_, err := compress(context.Background(), io.Discard, func(w io.Writer, r io.Reader) error {
			b, err := io.ReadAll(r)
			if err != nil {
				return err
			}
			return encode(w, bytes.NewReader(change(b)))
		}, func(_ context.Context, w io.Writer) error {
			_, err := w.Write(good)
			return err
		})
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", name, err)
		}
	}
}
