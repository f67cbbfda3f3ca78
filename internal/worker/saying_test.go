package worker

import (
	"io"
	"strings"
	"testing"
)

// What is copied to it is bounded as what is written is.
func TestSaying_Copy(t *testing.T) {
	var s saying
	if _, err := io.Copy(&s, struct{ io.Reader }{strings.NewReader(strings.Repeat("x", 1<<20))}); err != nil || len(s.String()) != maxGitSaid {
		t.Errorf("got %d bytes, %v, want %d", len(s.String()), err, maxGitSaid)
	}
}
