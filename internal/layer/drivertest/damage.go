package drivertest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// testDamagedLayersChangeNothing rolls back to a checkpoint whose layer was lost here and comes back damaged: whatever is
// wrong with it, the view stays as it is, open work included, until the layer is sound (cases B4, I1).
func testDamagedLayersChangeNothing(t *testing.T, k Kind) {
	c, dir := k.Cache(t), k.Dir(t)
	layertest.Seed(t, dir)
	v := k.View(t, c, dir)
	base := v.Chain()
	want := k.Act(t, v, "RecreateDir")
	l, _, err := v.Freeze(t.Context())
	must(t, err)
	var packed bytes.Buffer
	p, err := c.Pack(t.Context(), nil, l, &packed)
	must(t, err)
	reset(t, v, base)
	before := k.Act(t, v, "write open work")
	same := func(what string) {
		t.Helper()
		sameSnapshot(t, "view after "+what, k.Show(t, v), before, k.Ignore)
	}
	chain := append(v.Chain(), l)
	for what, file := range map[string]string{"its record": "../layer.json", "its tree": "."} {
		at := filepath.Join(l.Dir, file)
		must(t, os.Rename(at, at+".away"))
		if err := v.Reset(t.Context(), chain); err == nil {
			t.Fatalf("Reset to a layer without %s gave no error", what)
		}
		same("a Reset to a layer without " + what)
		must(t, os.Rename(at+".away", at))
	}
	must(t, c.Remove(l.ID))
	testDamagedArchives(t, c, archive{p.Name, packed.Bytes()}, func(what string) {
		t.Helper()
		if err := v.Reset(t.Context(), chain); err == nil {
			t.Fatalf("Reset after %s gave no error", what)
		}
		same(what)
	})
	l, err = c.Unpack(t.Context(), nil, p.Name, bytes.NewReader(packed.Bytes()))
	must(t, err)
	reset(t, v, append(base[:1:1], l))
	sameSnapshot(t, "view of the layer that came back", k.Show(t, v), want, k.Ignore)
}

type archive struct {
	name string
	b    []byte
}

func testDamagedArchives(t *testing.T, c *layer.Cache, good archive, after func(what string)) {
	t.Helper()
	flipped := bytes.Clone(good.b)
	flipped[len(flipped)/2] ^= 0x10
	for what, bad := range map[string]archive{
		"a truncated layer":   {good.name, good.b[:len(good.b)/2]},
		"an empty layer":      {good.name, nil},
		"a flipped bit":       {good.name, flipped},
		"trailing garbage":    {good.name, append(bytes.Clone(good.b), "garbage"...)},
		"two frames":          {good.name, append(bytes.Clone(good.b), good.b...)},
		"an entry outside":    hostile(t, tar.Header{Name: "../canary", Typeflag: tar.TypeReg, Mode: 0o644, Format: tar.FormatPAX}),
		"an absolute name":    hostile(t, tar.Header{Name: "/canary", Typeflag: tar.TypeReg, Mode: 0o644, Format: tar.FormatPAX}),
		"a hard link outside": hostile(t, tar.Header{Name: "h", Linkname: "../../etc/hostname", Typeflag: tar.TypeLink, Format: tar.FormatPAX}),
		"an entry below a link": hostile(t,
			tar.Header{Name: "a", Linkname: "/tmp", Typeflag: tar.TypeSymlink, Format: tar.FormatPAX},
			tar.Header{Name: "a/canary", Typeflag: tar.TypeReg, Mode: 0o644, Format: tar.FormatPAX}),
	} {
		if _, err := c.Unpack(t.Context(), nil, bad.name, bytes.NewReader(bad.b)); !errors.Is(err, layer.ErrCorrupt) {
			t.Errorf("unpacking %s: %v, want ErrCorrupt", what, err)
		}
		after(what)
	}
}

// hostile is a layer of these entries under its proper name.
func hostile(t *testing.T, entries ...tar.Header) archive {
	t.Helper()
	var plain, packed bytes.Buffer
	w := tar.NewWriter(&plain)
	for _, h := range entries {
		must(t, w.WriteHeader(&h))
	}
	must(t, w.Close())
	z, err := zstd.NewWriter(&packed)
	must(t, err)
	_, err = z.Write(plain.Bytes())
	must(t, errors.Join(err, z.Close()))
	return archive{fmt.Sprintf("sha256-%x.tar.zst", sha256.Sum256(plain.Bytes())), packed.Bytes()}
}
