package layer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

// smallTree has one of each kind of entry that is decoded in its own way.
func smallTree() []tarSpec {
	return []tarSpec{
		dirSpec(".", 0o755),
		fileSpec("f", strings.Repeat("content of f\n", 60)),
		fileSpec("holes", "12345678").with(func(s *tarSpec) { s.Size, s.Segs = 1<<20, []segment{{4096, 8}} }),
		linkSpec("link", "f"),
		symlinkSpec("s", "f"),
		goneSpec("x"),
	}
}

func TestCache_UnpackOfFlippedBytes(t *testing.T) {
	t.Parallel()
	from, to := newTarCache(t), newTarCache(t)
	l := mustLayer(t, from, smallTree())
	want := layerOnDisk(t, from, l)
	p, packed := mustPack(t, from, l)
	same := 0
	for i := range packed {
		for _, bit := range []byte{1, 0xff} {
			bad := bytes.Clone(packed)
			bad[i] ^= bit
			l, err := to.Unpack(context.Background(), nil, p.Name, bytes.NewReader(bad))
			if err != nil {
				if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrLimit) {
					t.Errorf("byte %d of %d changed by %#x: %v, want ErrCorrupt", i, len(packed), bit, err)
				}
				continue
			}
			// Some bits of zstd, as the window's size, can change without another meaning.
			same++
			if diff := diffTrees(layerOnDisk(t, to, l), want); diff != "" || l.Digest == p.Digest {
				t.Errorf("byte %d of %d changed by %#x was taken as %s (-want +got):\n%s", i, len(packed), bit, l.Digest, diff)
			}
			if err := to.Remove(l.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	if same > len(packed)/10 {
		t.Errorf("%d of %d changes made no difference", same, 2*len(packed))
	}
	wantEmpty(t, to)
}

func TestCache_UnpackOfTruncated(t *testing.T) {
	t.Parallel()
	from, to := newTarCache(t), newTarCache(t)
	p, packed := mustPack(t, from, mustLayer(t, from, smallTree()))
	for n := range packed {
		if _, err := to.Unpack(context.Background(), nil, p.Name, bytes.NewReader(packed[:n])); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%d of %d bytes: %v, want ErrCorrupt", n, len(packed), err)
		}
	}
	wantEmpty(t, to)
}

func TestCache_UnpackOfTrailing(t *testing.T) {
	from, to := newTarCache(t), newTarCache(t)
	p, packed := mustPack(t, from, mustLayer(t, from, smallTree()))
	_, empty := storedAs(t, nil)
	for name, tail := range map[string]string{
		"OneByte":        "x",
		"ThreeBytes":     "(\xb5/",
		"Zeros":          string(make([]byte, 512)),
		"Text":           "garbage after the end",
		"SkippableFrame": "\x50\x2a\x4d\x18\x04\x00\x00\x00evil",
		"EmptyFrame":     "\x28\xb5\x2f\xfd\x00\x58\x01\x00\x00" + string(empty),
		"Again":          string(packed),
	} {
		if _, err := to.Unpack(context.Background(), nil, p.Name, strings.NewReader(string(packed)+tail)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", name, err)
		}
		if _, err := to.Unpack(context.Background(), nil, p.Name, strings.NewReader(tail+string(packed))); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s in front: %v, want ErrCorrupt", name, err)
		}
	}
	wantEmpty(t, to)
}

func TestCache_UnpackUnderAnotherName(t *testing.T) {
	from, to := newTarCache(t), newTarCache(t)
	p, packed := mustPack(t, from, mustLayer(t, from, smallTree()))
	zero := namePrefix + strings.Repeat("0", 64) + nameSuffix
	for _, name := range []string{
		zero, "", "x", strings.ToUpper(p.Name), p.Name + "x", "../" + p.Name, namePrefix + nameSuffix,
		strings.Replace(p.Name, nameSuffix, "0"+nameSuffix, 1),
	} {
		if _, err := to.Unpack(context.Background(), nil, name, bytes.NewReader(packed)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("as %q: %v, want ErrCorrupt", name, err)
		}
	}
	wantEmpty(t, to)
}

func TestCache_UnpackTwiceIsOnce(t *testing.T) {
	from, to := newTarCache(t), newTarCache(t)
	p, packed := mustPack(t, from, mustLayer(t, from, smallTree()))
	want, err := to.Unpack(context.Background(), nil, p.Name, iotest.OneByteReader(bytes.NewReader(packed)))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*Cache{to, mustReopen(t, to)} {
		got, err := c.Unpack(context.Background(), nil, p.Name, iotest.ErrReader(errTarTest))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("second Unpack differs (-want +got):\n%s", diff)
		}
	}
}

func mustReopen(t *testing.T, c *Cache) *Cache {
	t.Helper()
	again, err := OpenCache(c.dir, c.opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { again.Close() })
	return again
}

func TestCache_UnpackKeepsErrorsOfTheReader(t *testing.T) {
	t.Parallel()
	from, to := newTarCache(t), newTarCache(t)
	p, packed := mustPack(t, from, mustLayer(t, from, smallTree()))
	for n := range packed {
		r := io.MultiReader(bytes.NewReader(packed[:n]), iotest.ErrReader(errTarTest))
		if _, err := to.Unpack(context.Background(), nil, p.Name, r); !errors.Is(err, errTarTest) || errors.Is(err, ErrCorrupt) {
			t.Errorf("a reader that fails after %d bytes: %v, want its error", n, err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := to.Unpack(ctx, nil, p.Name, bytes.NewReader(packed)); !errors.Is(err, context.Canceled) {
		t.Errorf("Unpack with an ended context: %v", err)
	}
	wantEmpty(t, to)
}

func TestCache_UnpackListsWhatItCannotKeep(t *testing.T) {
	tar := rawTar(t,
		tarHeader{name: "./", flag: flagDir, mode: 0o755},
		tarHeader{name: "dev", flag: flagChar, rdev: 0x103},
		tarHeader{name: "dev2", flag: flagLink, link: "dev"},
		tarHeader{name: "theirs", flag: flagFile, uid: 4711, gid: 42, records: map[string]string{recUID: "4711", recGID: "42"}})
	name, packed := storedAs(t, tar)
	c := newTarCache(t)
	l, err := c.Unpack(context.Background(), nil, name, bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	var want []Lost
	if os.Getuid() != 0 {
		want = []Lost{{"dev", "device"}, {"dev2", "device"}, {"theirs", "owner 4711:42"}}
	}
	if diff := cmp.Diff(want, l.Lost); diff != "" {
		t.Errorf("Lost differs (-want +got):\n%s", diff)
	}
}

func TestCache_UnpackWithinLimits(t *testing.T) {
	from := newTarCache(t)
	specs := append(smallTree()[:5:5], dirSpec("t", 0o755), dirSpec("t/t", 0o755), goneSpec("x"))
	p, packed := mustPack(t, from, mustLayer(t, from, specs))
	entries, names := int64(len(specs)), int64(len(".fholeslinkstt/t"))
	for name, tc := range map[string]struct{ enough, less Limits }{
		"Entries": {Limits{Entries: entries}, Limits{Entries: entries - 1}},
		"Bytes":   {Limits{Bytes: p.TarSize}, Limits{Bytes: p.TarSize - 1}},
		"Depth":   {Limits{Depth: 2}, Limits{Depth: 1}},
		"Names":   {Limits{Names: names}, Limits{Names: names - 1}},
		"Header":  {Limits{Header: 1000}, Limits{Header: 10}},
		"Window":  {Limits{Window: 8 << 20}, Limits{Window: 1 << 10}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTarCache(t)
			if _, err := c.unpackNew(context.Background(), nil, tarInput{Name: p.Name, R: bytes.NewReader(packed), Limits: tc.less}); !errors.Is(err, ErrLimit) {
				t.Errorf("with less than needed: %v, want ErrLimit", err)
			}
			wantEmpty(t, c)
			if _, err := c.unpackNew(context.Background(), nil, tarInput{Name: p.Name, R: bytes.NewReader(packed), Limits: tc.enough}); err != nil {
				t.Errorf("with enough: %v", err)
			}
		})
	}
}

func TestBoundReader_Ratio(t *testing.T) {
	limits := Limits{Ratio: 100}.withDefaults()
	for _, tc := range []struct {
		decoded, packed int64
		want            error
	}{
		{ratioFloor, 1, nil},
		{ratioFloor + 200, ratioFloor/100 + 10, nil},
		{ratioFloor + 200, ratioFloor/100 - 10, ErrLimit},
	} {
		plain, src := newMeter(bytes.NewReader(nil)), newMeter(nil)
		plain.n, src.n = tc.decoded, tc.packed
		b := boundReader{plain: plain, src: src, limits: limits}
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, tc.want) && !(tc.want == nil && errors.Is(err, io.EOF)) {
			t.Errorf("%d bytes from %d: %v, want %v", tc.decoded, tc.packed, err, tc.want)
		}
	}
}
