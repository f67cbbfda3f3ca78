package checkpoint

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

func newTestSpool(t *testing.T) *spool {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "spool"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return newSpool(f)
}

// A reader that is faster than the writer gets every byte once, and again after a rewind.
func TestSpool_ReadWhileWriting(t *testing.T) {
	s := newTestSpool(t)
	r := s.reader()
	want := bytes.Repeat([]byte("0123456789abcdef"), 40_000)
	go func() {
		for rest := want; len(rest) > 0; {
			n := min(len(rest), 7919)
			if _, err := s.Write(rest[:n]); err != nil {
				s.finish(err)
				return
			}
			rest = rest[n:]
		}
		s.finish(nil)
	}()
	for _, from := range []int64{0, 12345, 0} {
		if _, err := r.Seek(from, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, want[from:]) {
			t.Errorf("from %d: got %d other bytes and %v, want %d", from, len(got), err, len(want[from:]))
		}
	}
}

func TestSpool_WriterFails(t *testing.T) {
	s := newTestSpool(t)
	failure := errors.New("disk on fire")
	if _, err := s.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	s.finish(failure)
	got, err := io.ReadAll(s.reader())
	if string(got) != "half" || !errors.Is(err, failure) {
		t.Errorf("got %q and %v, want %q and %v", got, err, "half", failure)
	}
}

func TestSpoolReader_Seek(t *testing.T) {
	s := newTestSpool(t)
	if _, err := s.Write([]byte("12345")); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		offset int64
		whence int
		want   int64
		err    error
	}{
		{3, io.SeekStart, 3, nil},
		{0, io.SeekCurrent, 3, nil},
		{1, io.SeekCurrent, 4, nil},
		{-9, io.SeekCurrent, 4, errSeek},
		{-1, io.SeekStart, 4, errSeek},
		{0, io.SeekEnd, 4, errSeek},
	}
	r := s.reader()
	for _, tt := range tests {
		if got, err := r.Seek(tt.offset, tt.whence); got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("Seek(%d, %d): got %d and %v, want %d and %v", tt.offset, tt.whence, got, err, tt.want, tt.err)
		}
	}
}
