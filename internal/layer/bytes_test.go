package layer

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// Names, links' texts and attributes' names are bytes, in JSON as well.
func TestEntry_JSONKeepsBytes(t *testing.T) {
	for name, e := range map[string]Entry{
		"Text":  {Path: "a/\u00e9", Type: Symlink, Link: "../b", Xattrs: Xattrs{"user.a": {0xff, 0}}, HardLink: "h"},
		"Bytes": {Path: "\xff", Type: Symlink, Link: "\xfe/\x80", Xattrs: Xattrs{"user.\xff": []byte("1"), "user.\xfe": []byte("2")}, HardLink: "\xf0"},
		"None":  {Path: ".", Type: Dir},
	} {
		t.Run(name, func(t *testing.T) {
			e.MTime = time.Unix(1, 2).UTC()
			b, err := json.Marshal(Change{Path: e.Path, After: &e})
			must(t, err)
			var got Change
			must(t, json.Unmarshal(b, &got))
			if d := cmp.Diff(got, Change{Path: e.Path, After: &e}); d != "" {
				t.Fatalf("(-got +want):\n%s\n%s", d, b)
			}
		})
	}
	for _, bad := range []string{`{"link":"\u0000b64:!"}`, `{"path":"\u0000b64:!"}`, `{"xattrs":{"\u0000b64:!":""}}`, `{"xattrs":[]}`} {
		if err := json.Unmarshal([]byte(bad), &Entry{}); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}

// A link whose text is not UTF-8 comes back from a capture, the stored form, an index and a difference as it was.
func TestCache_LinkTextIsBytes(t *testing.T) {
	const text = "\xff\xfe/not UTF-8\n"
	c, dir := openTestCache(t, testOptions(t)), scratch(t)
	must(t, os.Symlink(text, dir+"/l"))
	must(t, write(dir, "f", "f"))
	must(t, unix.Setxattr(dir+"/f", "user.\xff", []byte("1"), 0))
	must(t, unix.Setxattr(dir+"/f", "user.\xfe", []byte("2"), 0))
	l, idx, _, err := c.Capture(context.Background(), dir, nil)
	must(t, err)
	var packed, index bytes.Buffer
	p, err := c.Pack(context.Background(), nil, l, &packed)
	must(t, err)
	must(t, idx.Encode(&index))
	again, err := DecodeIndex(&index)
	must(t, err)
	if _, _, changed, err := c.Capture(context.Background(), dir, again); err != nil || changed {
		t.Fatalf("capture by a stored index: changed %v, %v", changed, err)
	}
	other := openTestCache(t, testOptions(t))
	l, err = other.Unpack(context.Background(), nil, p.Name, &packed)
	must(t, err)
	changes, err := Changes(nil, Chain{l})
	must(t, err)
	if got := changes[len(changes)-1].After; got.Link != text {
		t.Fatalf("difference has link %q, want %q", got.Link, text)
	}
	to := scratch(t)
	_, err = other.Restore(context.Background(), to, nil, Chain{l})
	must(t, err)
	layertest.Compare(t, to, dir, layertest.Options{})
}
