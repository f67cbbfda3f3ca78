package layer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzUnpack unpacks tars under their proper names, so that nothing but the decoder stands between them and the
// disk. Header checksums are put right first, else nearly every mutation ends there.
func FuzzUnpack(f *testing.F) {
	for _, tar := range hostileTars(f) {
		f.Add(tar)
	}
	f.Add(richTar(f))
	f.Fuzz(func(t *testing.T, tar []byte) {
		fixChecksums(tar)
		canary := newCanary(t)
		c, err := OpenCache(filepath.Join(canary.dir, "cache"), tarOptions())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		before := canary.look()
		name, packed := storedAs(t, tar)
		l, err := c.unpackNew(context.Background(), nil, tarInput{Name: name, R: bytes.NewReader(packed), Limits: Limits{Entries: 1000, Bytes: 1 << 20}})
		if err == nil {
			if err := c.Remove(l.ID); err != nil {
				t.Fatal(err)
			}
		} else if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrLimit) {
			t.Logf("neither corrupt nor a limit: %v", err)
		}
		if diff := cmp.Diff(before, canary.look()); diff != "" {
			t.Errorf("something outside the layer changed (-before +after):\n%s", diff)
		}
		wantEmpty(t, c)
	})
}

// FuzzReadTar feeds the compressed form as it is.
func FuzzReadTar(f *testing.F) {
	for _, tar := range hostileTars(f) {
		_, packed := storedAs(f, tar)
		f.Add(packed)
	}
	f.Fuzz(func(t *testing.T, packed []byte) {
		c := newTarCache(t)
		if _, err := c.Unpack(context.Background(), nil, namePrefix+string(bytes.Repeat([]byte("0"), 64))+nameSuffix, bytes.NewReader(packed)); err == nil {
			t.Error("content of any digest was taken")
		}
		wantEmpty(t, c)
	})
}

func fixChecksums(tar []byte) {
	for ; len(tar) >= blockSize; tar = tar[blockSize:] {
		b := tar[:blockSize]
		if binary.BigEndian.Uint32(b[257:]) != 0x75737461 { // "usta"
			continue
		}
		copy(b[148:156], "        ")
		var sum int64
		for _, c := range b {
			sum += int64(c)
		}
		octal(b[148:155], sum)
	}
}
