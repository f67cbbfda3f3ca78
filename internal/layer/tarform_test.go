package layer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestFormatTime_ParsesBack(t *testing.T) {
	for _, tc := range []struct {
		sec, ns int64
		want    string
	}{
		{0, 0, "0"},
		{1, 500000000, "1.5"},
		{1e9, 1, "1000000000.000000001"},
		{-1, 0, "-1"},
		{-1, 500000000, "-0.5"},
		{-2, 999999999, "-1.000000001"},
		{-62135596800, 0, "-62135596800"},
		{1 << 40, 100, "1099511627776.0000001"},
	} {
		want := time.Unix(tc.sec, tc.ns)
		got := formatTime(want)
		if got != tc.want {
			t.Errorf("formatTime(%d, %d) = %q, want %q", tc.sec, tc.ns, got, tc.want)
		}
		if back, ok := parseTime(got); !ok || !back.Equal(want) {
			t.Errorf("parseTime(%q) = %v, %v, want %v", got, back, ok, want)
		}
	}
}

func TestParseTime_Refuses(t *testing.T) {
	for _, s := range []string{"", "-", ".5", "1.", "1.0000000001", "1e3", "+1", "--1", "1 ", "0x1", "9999999999999999999"} {
		if got, ok := parseTime(s); ok {
			t.Errorf("parseTime(%q) = %v, want it refused", s, got)
		}
	}
}

func TestRecord_CountsItsOwnLength(t *testing.T) {
	for n := range 1100 {
		value := strings.Repeat("v", n)
		got, err := parseRecords([]byte(record("k", value)))
		if err != nil {
			t.Fatalf("a value of %d bytes: %v", n, err)
		}
		if got["k"] != value {
			t.Fatalf("a value of %d bytes came back with %d", n, len(got["k"]))
		}
	}
}

func TestParseRecords_Refuses(t *testing.T) {
	for _, s := range []string{"5 a=b", "0 a=b\n", "99 a=b\n", "6 a=b\n6 a=c\n", "4 =\n\n", "6  a=b", "x a=b\n", "-6 a=b\n", "5 ab\n", "\n"} {
		if got, err := parseRecords([]byte(s)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("parseRecords(%q) = %v, %v, want ErrCorrupt", s, got, err)
		}
	}
}

func TestEscapePath(t *testing.T) {
	for _, tc := range []struct {
		path Path
		want string
	}{
		{"a/b", "a/b"},
		{"a.wh.b/c", "a.wh.b/c"},
		{".wh.a", ".warmfleet..wh.a"},
		{".wh./.wh..wh..opq", ".warmfleet..wh./.warmfleet..wh..wh..opq"},
		{".warmfleet..wh.a", ".warmfleet..warmfleet..wh.a"},
		{".warmfleet-apply", ".warmfleet-apply"},
		{".wha", ".wha"},
	} {
		if got := escapePath(tc.path); got != tc.want {
			t.Errorf("escapePath(%q) = %q, want %q", tc.path, got, tc.want)
		}
	}
}

// TestTarWriter_ItemReadsBack covers what no file system here would hold.
func TestTarWriter_ItemReadsBack(t *testing.T) {
	at := tarTime(5, 5)
	root := tarEntry{item: item{Entry: Entry{Path: ".", Type: Dir, UID: Self, GID: Self, MTime: at}}}
	for name, want := range map[string]tarEntry{
		"LargestID":   {item: item{Entry: Entry{Path: "f", Type: Fifo, UID: math.MaxUint32 - 1, GID: 1 << 21, MTime: at}}},
		"IDsOfRoot":   {item: item{Entry: Entry{Path: "f", Type: Fifo, MTime: at}}},
		"Char":        {item: item{Entry: Entry{Path: "c", Type: Char, Mode: 0o666, UID: Self, GID: Self, Rdev: 0x103, MTime: at}}},
		"Block":       {item: item{Entry: Entry{Path: "c", Type: Block, UID: Self, GID: Self, Rdev: unix.Mkdev(0xfff, 0xfffff), MTime: at}}},
		"Capability":  {item: item{Entry: Entry{Path: "f", Type: File, Xattrs: map[string][]byte{"security.capability": {1, 0}}, MTime: at}}},
		"EmptyXattr":  {item: item{Entry: Entry{Path: "f", Type: File, Xattrs: map[string][]byte{"user.x": {}}, MTime: at}}},
		"HugeHole":    {item: item{Entry: Entry{Path: "f", Type: File, Size: 1 << 60, UID: Self, GID: Self, MTime: at}}},
		"LinkTo.wh.":  {item: item{Entry: Entry{Path: "s", Type: Symlink, Link: ".wh.x/../é", UID: Self, GID: Self, MTime: at}}},
		"Whiteout":    {item: item{Entry: Entry{Path: ".wh..wh..opq"}, Whiteout: true}},
		"RootOpaque":  {item: item{Entry: Entry{Path: "."}, Opaque: true}},
		"ZeroTime":    {item: item{Entry: Entry{Path: "f", Type: Fifo, MTime: time.Time{}}}},
		"AncientTime": {item: item{Entry: Entry{Path: "f", Type: Fifo, MTime: tarTime(-1<<50, 1)}}},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			w := &tarWriter{w: &b}
			for _, e := range []tarEntry{root, want} {
				if err := w.item(&e); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.close(); err != nil {
				t.Fatal(err)
			}
			r := newTarReader(&b, Limits{}.withDefaults())
			if _, err := r.next(); err != nil {
				t.Fatal(err)
			}
			got, err := r.next()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&want, got, cmp.AllowUnexported(tarEntry{}, item{}, segment{})); diff != "" {
				t.Errorf("entry differs (-want +got):\n%s", diff)
			}
			if _, err := r.next(); !errors.Is(err, io.EOF) {
				t.Errorf("next at the end: %v, want io.EOF", err)
			}
		})
	}
}

func TestTarWriter_DataMustMatchHeader(t *testing.T) {
	header := func(w *tarWriter) error {
		return w.header(&tarHeader{name: "f", flag: flagFile, size: 3, mtime: tarTime(0, 0)})
	}
	w := &tarWriter{w: io.Discard}
	if err := header(w); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, "four"); err == nil {
		t.Error("more data than the header says was taken")
	}
	if err := w.close(); err == nil {
		t.Error("an archive with less data than its header says was ended")
	}
	if err := w.header(&tarHeader{name: "f", flag: flagFile, uid: -2}); err == nil {
		t.Error("a negative owner was written")
	}
}

func TestJoinSegments_KeepsNearestFirst(t *testing.T) {
	segs := []segment{{0, 10}, {12, 8}, {120, 10}, {131, 1}, {500, 1}}
	got := joinSegments(segs, 2)
	want := []segment{{0, 20}, {120, 12}, {500, 1}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(segment{})); diff != "" {
		t.Errorf("segments differ (-want +got):\n%s", diff)
	}
}

// TestTarWriter_FormIsFixed fails when the same layer would get another name than it had: then every
// stored layer would be uploaded anew, and no worker of the build before would find it.
func TestTarWriter_FormIsFixed(t *testing.T) {
	const want = "f17b795f3edd07b0bac7109f8533e6928cd99204f0bc8616919886dc8791c015"
	tar := richTar(t)
	if got := fmt.Sprintf("%x", sha256.Sum256(tar)); got != want {
		t.Errorf("digest of the tar is %s, want %s", got, want)
	}
	name, packed := storedAs(t, tar)
	if _, err := newTarCache(t).Unpack(context.Background(), nil, name, bytes.NewReader(packed)); err != nil {
		t.Error(err)
	}
}
