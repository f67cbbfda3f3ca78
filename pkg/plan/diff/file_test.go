package diff

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// memory is content by path that counts what is read of it.
type memory struct {
	files map[layer.Path]string
	read  *atomic.Int64
}

func (m memory) Open(p layer.Path) (io.ReadCloser, error) {
	c, ok := m.files[p]
	if !ok {
		return nil, fmt.Errorf("no content of %q", p)
	}
	return io.NopCloser(counting{bytes.NewReader([]byte(c)), m.read}), nil
}

type counting struct {
	r io.Reader
	n *atomic.Int64
}

func (c counting) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// texts makes the request for files of those contents; a path without content on a side is not there.
func texts(before, after map[layer.Path]string) (Request, *atomic.Int64) {
	read := &atomic.Int64{}
	req := Request{Base: memory{before, read}, Ours: memory{after, read}}
	entry := func(p layer.Path, files map[layer.Path]string) *layer.Entry {
		c, ok := files[p]
		if !ok {
			return nil
		}
		return &layer.Entry{Path: p, Type: layer.File, Mode: 0o644, UID: layer.Self, GID: layer.Self, Size: int64(len(c)), Digest: "sha256:" + digest(c)}
	}
	for p := range before {
		if before[p] != after[p] || entry(p, after) == nil {
			req.Changes = append(req.Changes, layer.Change{Path: p, Before: entry(p, before), After: entry(p, after)})
		}
	}
	for p := range after {
		if _, there := before[p]; !there {
			req.Changes = append(req.Changes, layer.Change{Path: p, After: entry(p, after)})
		}
	}
	return req, read
}

// digest stands for one: equal for equal contents only.
func digest(c string) string {
	if len(c) < 100 {
		return fmt.Sprintf("%x", c)
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(c)))
}

func lines(from, to int) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.String()
}

func TestRender_Renames(t *testing.T) {
	for _, c := range []struct {
		name          string
		before, after map[layer.Path]string
		want          string
	}{
		{"SameBytes", map[layer.Path]string{"a": "x"}, map[layer.Path]string{"b": "x"}, "R100\ta\tb\n"},
		{"SameBaseFirst", map[layer.Path]string{"a/f": "x", "b/g": "x"}, map[layer.Path]string{"c/f": "x", "c/g": "x"}, "R100\ta/f\tc/f\nR100\tb/g\tc/g\n"},
		{"EachOnce", map[layer.Path]string{"a": "x"}, map[layer.Path]string{"b": "x", "c": "x"}, "R100\ta\tb\nA\tc\n"},
		{"EmptyIsNone", map[layer.Path]string{"a": ""}, map[layer.Path]string{"b": ""}, "D\ta\nA\tb\n"},
		{"Half", map[layer.Path]string{"a": lines(10, 30)}, map[layer.Path]string{"b": lines(20, 40)}, "R050\ta\tb\n"},
		{"LessThanHalf", map[layer.Path]string{"a": lines(10, 30)}, map[layer.Path]string{"b": lines(21, 41)}, "D\ta\nA\tb\n"},
		{"BestWins", map[layer.Path]string{"a": lines(10, 30), "b": lines(15, 35)}, map[layer.Path]string{"c": lines(16, 36)}, "D\ta\nR095\tb\tc\n"},
		{"BinaryOnlyWhole", map[layer.Path]string{"a": "\x00" + lines(0, 50), "b": "\x00b"}, map[layer.Path]string{"c": "\x00" + lines(0, 51), "d": "\x00b"}, "D\ta\nA\tc\nR100\tb\td\n"},
		{"StayedIsNone", map[layer.Path]string{"a": "x", "b": "y"}, map[layer.Path]string{"a": "y", "b": "x"}, "M\ta\nM\tb\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			req, _ := texts(c.before, c.after)
			d, err := Render(context.Background(), req)
			must(t, err)
			if diff := cmp.Diff(c.want, NameStatus(d.Files)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// What git has no form for is named, and a header of git's that changes nothing is not there.
func TestRender_Metadata(t *testing.T) {
	entry := func(change func(*layer.Entry)) *layer.Entry {
		e := &layer.Entry{Path: "f\n", Type: layer.File, Mode: 0o644, UID: layer.Self, GID: layer.Self, Size: 1, Digest: "sha256:aa"}
		change(e)
		return e
	}
	for _, c := range []struct {
		name   string
		change func(*layer.Entry)
		text   string
		words  []string
	}{
		{"Owner", func(e *layer.Entry) { e.UID = 0 }, "owner changed: \"f\\n\" (sandbox -> 0:self)\n", []string{"owner"}},
		{"Attributes", func(e *layer.Entry) { e.Xattrs = map[string][]byte{"user.b": {1}, "user.a\x1b": nil} }, "attributes changed: \"f\\n\" (\"user.a\\033\" added, user.b added)\n", []string{"attributes"}},
		{"Mode", func(e *layer.Entry) { e.Mode = 0o4755 }, "diff --git \"a/f\\n\" \"b/f\\n\"\nold mode 100644\nnew mode 104755\n", []string{"mode"}},
		{"ModeAndOwner", func(e *layer.Entry) { e.Mode, e.GID = 0o600, 7 }, "diff --git \"a/f\\n\" \"b/f\\n\"\nold mode 100644\nnew mode 100600\nowner changed: \"f\\n\" (sandbox -> self:7)\n", []string{"mode", "owner"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, err := Render(context.Background(), Request{Changes: []layer.Change{{Path: "f\n", Before: entry(func(*layer.Entry) {}), After: entry(c.change)}}})
			must(t, err)
			if diff := cmp.Diff(c.text, string(d.Text)); diff != "" {
				t.Errorf("text: (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(c.words, d.Files[0].Changed); diff != "" {
				t.Errorf("changed: (-want +got)\n%s", diff)
			}
		})
	}
}

func TestFile_JSON(t *testing.T) {
	req, _ := texts(map[layer.Path]string{"a": lines(0, 9), "\xff": "q"}, map[layer.Path]string{"b": lines(0, 10)})
	req.Changes = append(req.Changes, layer.Change{Path: "l", After: &layer.Entry{Path: "l", Type: layer.Symlink, Mode: 0o777, Link: "to", UID: 1, GID: 2}})
	d, err := Render(context.Background(), req)
	must(t, err)
	got, err := json.MarshalIndent(d.Files, "", " ")
	must(t, err)
	want := `[
 {
  "path": "b",
  "old_path": "a",
  "similarity": 90,
  "added": 1,
  "deleted": 0,
  "binary": false,
  "kind": "renamed",
  "changed": [
   "content"
  ],
  "old": {
   "type": "file",
   "mode": "0644",
   "size": 63,
   "sha256": "` + digest(lines(0, 9)) + `"
  },
  "new": {
   "type": "file",
   "mode": "0644",
   "size": 70,
   "sha256": "` + digest(lines(0, 10)) + `"
  }
 },
 {
  "path": "l",
  "added": 1,
  "deleted": 0,
  "binary": false,
  "kind": "added",
  "old": null,
  "new": {
   "type": "symlink",
   "mode": "0777",
   "size": 0,
   "target": "to",
   "owner": "1:2"
  }
 },
 {
  "path": "\u0000b64:/w==",
  "added": 0,
  "deleted": 1,
  "binary": false,
  "kind": "deleted",
  "old": {
   "type": "file",
   "mode": "0644",
   "size": 1,
   "sha256": "71"
  },
  "new": null
 }
]`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	var notes []Note
	for _, f := range d.Files {
		notes = append(notes, f.Note)
	}
	byPath := func(a, b File) int { return strings.Compare(string(a.Path), string(b.Path)) }
	joined := Join(req.Changes, notes)
	slices.SortFunc(joined, byPath)
	if diff := cmp.Diff(d.Files, joined); diff != "" {
		t.Errorf("joined: (-rendered +joined)\n%s", diff)
	}
}

// However much changed, what is read once the text is full stays bounded, and every path is described.
func TestRender_ManyFilesReadLittle(t *testing.T) {
	before, after := map[layer.Path]string{}, map[layer.Path]string{}
	text := lines(0, 3000)
	for i := range 20_000 {
		p := layer.Path(fmt.Sprintf("dir%d/f%d", i%100, i))
		before[p] = text[i:]
		if i%2 == 0 {
			after[p] = text[i:] + "new\n"
		} else if i%4 == 1 {
			after["moved"+p] = text[i:] + "new\n"
		}
	}
	req, read := texts(before, after)
	d, err := Render(context.Background(), req)
	must(t, err)
	if len(d.Files) < 15_000 || !d.Truncated || len(d.Text) > DefaultMax {
		t.Errorf("got %d files and %d bytes, truncated %t", len(d.Files), len(d.Text), d.Truncated)
	}
	// The text, the search for renames, the counting: each has a bound of its own.
	if most := int64(countRead + maxSimilarRead + 64*DefaultMax); read.Load() > most {
		t.Errorf("read %d bytes, want at most %d", read.Load(), most)
	}
	if last := d.Files[len(d.Files)-1]; last.Added != nil || !last.Omitted {
		t.Errorf("the last file: %+v, want it left out and not counted", last)
	}
	if !bytes.Contains(d.Text, []byte("left out, at least ")) {
		t.Errorf("note: got %s, want it to say that not all was counted", d.Text[len(d.Text)-300:])
	}
}
