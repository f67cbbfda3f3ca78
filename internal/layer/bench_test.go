package layer

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// benchTree makes a source tree of 15,000 files in 600 directories.
func benchTree(b *testing.B) string {
	b.Helper()
	dir := scratch(b)
	content := bytes.Repeat([]byte("some text of a source file\n"), 150)
	for d := range 600 {
		sub := filepath.Join(dir, fmt.Sprintf("pkg%02d/mod%d", d/20, d%20))
		must(b, os.MkdirAll(sub, 0o755))
		for f := range 25 {
			p := filepath.Join(sub, fmt.Sprintf("file%02d.go", f))
			must(b, os.WriteFile(p, content[:100+f*140], 0o644))
			must(b, os.Chtimes(p, time.Time{}, time.Unix(1_700_000_000, int64(f))))
		}
	}
	return dir
}

func BenchmarkCache_CaptureFirst(b *testing.B) {
	dir, c := benchTree(b), openTestCache(b, testOptions(b))
	for b.Loop() {
		l, _, _, err := c.Capture(context.Background(), dir, nil)
		must(b, err)
		must(b, c.Remove(l.ID))
	}
}

func BenchmarkCache_CaptureUnchanged(b *testing.B) {
	dir, c := benchTree(b), openTestCache(b, testOptions(b))
	_, idx, _, err := c.Capture(context.Background(), dir, nil)
	must(b, err)
	_, idx, _, err = c.Capture(context.Background(), dir, idx) // whatever was racy is settled now
	must(b, err)
	for b.Loop() {
		_, _, changed, err := c.Capture(context.Background(), dir, idx)
		must(b, err)
		if changed {
			b.Fatal("capture found a change")
		}
	}
}

func BenchmarkIndex_Decode(b *testing.B) {
	dir, c := benchTree(b), openTestCache(b, testOptions(b))
	_, idx, _, err := c.Capture(context.Background(), dir, nil)
	must(b, err)
	var buf bytes.Buffer
	must(b, idx.Encode(&buf))
	for b.Loop() {
		_, err := DecodeIndex(bytes.NewReader(buf.Bytes()))
		must(b, err)
	}
}

func BenchmarkCache_OpenCopy(b *testing.B) {
	dir, c := benchTree(b), openTestCache(b, testOptions(b))
	l, _, _, err := c.Capture(context.Background(), dir, nil)
	must(b, err)
	for b.Loop() {
		v, err := c.Open(context.Background(), Copy, Chain{l})
		must(b, err)
		must(b, v.Close())
	}
}

// BenchmarkView_FreezeOverlay closes a layer with 1 MB in one file; nothing has to be mounted for that.
func BenchmarkView_FreezeOverlay(b *testing.B) {
	dir, c := benchTree(b), openTestCache(b, testOptions(b))
	l, _, _, err := c.Capture(context.Background(), dir, nil)
	must(b, err)
	v, err := c.Open(context.Background(), Overlay, Chain{l})
	must(b, err)
	content := bytes.Repeat([]byte("x"), 1<<20)
	for b.Loop() {
		b.StopTimer()
		must(b, v.Reset(context.Background(), Chain{l}))
		must(b, os.WriteFile(v.Mount().Upper+"/new", content, 0o644))
		b.StartTimer()
		closed, _, err := v.Freeze(context.Background())
		must(b, err)
		b.StopTimer()
		must(b, v.Reset(context.Background(), Chain{l}))
		must(b, c.Remove(closed.ID))
		b.StartTimer()
	}
}
