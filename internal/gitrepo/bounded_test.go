package gitrepo

import (
	"io"
	"strings"
	"testing"
)

// What is copied to them is bounded as what is written is: os/exec copies.
func TestBounded_Copy(t *testing.T) {
	endless := func() io.Reader { return struct{ io.Reader }{strings.NewReader(strings.Repeat("x", 1<<20))} }
	fails := &boundedBuffer{max: 10}
	if _, err := io.Copy(fails, endless()); err == nil || len(fails.Bytes()) > 10 {
		t.Errorf("boundedBuffer: got %d bytes, %v, want an error", len(fails.Bytes()), err)
	}
	begins := &boundedWriter{left: 10}
	if _, err := io.Copy(begins, endless()); err != nil || begins.buf.Len() != 10 {
		t.Errorf("boundedWriter: got %d bytes, %v, want 10", begins.buf.Len(), err)
	}
}
