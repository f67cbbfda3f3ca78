package layer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// FuzzDecodeIndex decodes what a state directory may hold after a crash: never more than an error, and what is taken
// is written and read again as it was.
func FuzzDecodeIndex(f *testing.F) {
	dir := f.TempDir()
	must(f, layertest.Write(dir, "d/f", "content"))
	must(f, os.Symlink("\xff", dir+"/l"))
	must(f, layertest.Socket(dir+"/s"))
	must(f, os.Link(dir+"/d/f", dir+"/h"))
	c := openTestCache(f, testOptions(f))
	_, idx, _, err := c.Capture(context.Background(), dir, nil)
	must(f, err)
	var b bytes.Buffer
	must(f, idx.Encode(&b))
	f.Add(b.Bytes())
	f.Add(b.Bytes()[:b.Len()/2])
	f.Add([]byte(indexMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := DecodeIndex(bytes.NewReader(b))
		if err != nil {
			if !errors.Is(err, ErrIndexForm) {
				t.Fatalf("error %v, want ErrIndexForm", err)
			}
			return
		}
		var first, second bytes.Buffer
		must(t, x.Encode(&first))
		again, err := DecodeIndex(bytes.NewReader(first.Bytes()))
		must(t, err)
		must(t, again.Encode(&second))
		if !bytes.Equal(first.Bytes(), second.Bytes()) {
			t.Fatal("an index changes when it is written and read")
		}
	})
}

// FuzzReadMeta reads the record of a layer: what is damaged counts as absent, and a tree is read by what is taken without
// leaving the layer.
func FuzzReadMeta(f *testing.F) {
	uid := 0
	whole := layerMeta{
		V: metaVersion, Layer: Layer{Name: "sha256-x.tar.zst", TarSize: 1, Lost: []Lost{{"\xff", lostSocket}}}, Trusted: true,
		Owners: []owned{{"a", 1, 2}}, Links: [][]Path{{"a", "b"}}, SelfUID: &uid, SelfGID: &uid,
	}
	b, err := json.Marshal(whole)
	must(f, err)
	f.Add(b)
	for _, s := range []string{"", "null", "{}", `{"v":1}`, `{"v":2}`, `{"v":1,"links":[[]]}`, `{"v":1,"links":[["../../x","/etc"]]}`, `{"v":1,"owners":[{"path":"\u0000b64:!"}]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		home := filepath.Join(t.TempDir(), "layer")
		must(t, layertest.Write(home, treeDir+"/a", "a"))
		must(t, os.WriteFile(filepath.Join(home, metaFile), b, 0o600))
		m, err := readMeta(home)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("error %v, want fs.ErrNotExist", err)
			}
			return
		}
		must(t, writeMeta(home, m))
		again, err := readMeta(home)
		must(t, err)
		if d := cmp.Diff(again, m); d != "" {
			t.Fatalf("a record changes when it is written and read (-got +want):\n%s", d)
		}
		tree := NewTree(Chain{m.Layer})
		must(t, tree.Walk(func(e Entry) error {
			_, err := tree.Lookup(e.Path)
			return err
		}))
	})
}
