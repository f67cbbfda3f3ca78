package worker

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/client"
)

// brokenOff ends with an error after what it is made of.
type brokenOff struct{ io.Reader }

func (f brokenOff) Read(b []byte) (int, error) {
	n, err := f.Reader.Read(b)
	if err == io.EOF {
		err = errors.New("no more")
	}
	return n, err
}

// Files beyond what one message or one call to the sandbox takes are written whole or not at all, and read as they were at one moment.
func TestSession_LargeFiles(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := sessions(t, r)
	r.worker(t, "w1")
	s := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost})
	const size = 80<<20 + 7
	sent, got := sha256.New(), sha256.New()
	from := io.TeeReader(io.LimitReader(rand.New(rand.NewSource(1)), size), sent)
	if err := c.WriteFile(t.Context(), s.ID, "d/large", 0o640, from); err != nil {
		t.Fatal(err)
	}
	if err := c.ReadFile(t.Context(), s.ID, api.SessionRead{Path: "d/large"}, got); err != nil {
		t.Fatal(err)
	}
	if a, b := fmt.Sprintf("%x", got.Sum(nil)), fmt.Sprintf("%x", sent.Sum(nil)); a != b {
		t.Errorf("read %s, written %s", a, b)
	}
	if out, _, _ := run1(t, c, s.ID, "sh", "-c", "stat -c '%s %a' d/large; ls -A d"); out != fmt.Sprintf("%d 640\nb\nlarge\n", size) {
		t.Errorf("got %q, want nothing beside it", out)
	}
	for _, part := range []api.SessionRead{{Offset: size - 3}, {Offset: size - 3, Limit: 100}, {Offset: size}, {Offset: size + 5, Limit: 1}, {Offset: 9 << 20, Limit: 9 << 20}} {
		part.Path = "d/large"
		var b bytes.Buffer
		want := min(max(size-part.Offset, 0), 9<<20)
		if err := c.ReadFile(t.Context(), s.ID, part, &b); err != nil || int64(b.Len()) != want {
			t.Errorf("part %+v: got %d bytes, %v; want %d", part, b.Len(), err, want)
		}
	}
	if err := c.WriteFile(t.Context(), s.ID, "d/large", 0, brokenOff{bytes.NewReader(make([]byte, 3*api.SessionChunk))}); err == nil {
		t.Error("an upload that broke off: got no error")
	}
	if err := c.WriteFile(t.Context(), s.ID, "d", 0, bytes.NewReader(make([]byte, 3*api.SessionChunk))); err == nil {
		t.Error("a file in the place of a directory: got no error")
	}
	if out, _, _ := run1(t, c, s.ID, "sh", "-c", "stat -c %s d/large; ls -A . d"); out != fmt.Sprintf("%d\n.:\na\nd\n\nd:\nb\nlarge\n", size) {
		t.Errorf("after two that failed: got %q", out)
	}
	changing := &changes{t: t, c: c, id: s.ID}
	var refused *client.Error
	if err := c.ReadFile(t.Context(), s.ID, api.SessionRead{Path: "d/large"}, changing); !errors.As(err, &refused) || refused.Code != api.CodeConflict {
		t.Errorf("a file that changes between its parts: got %v, want a conflict", err)
	}
}

// A checkpoint between two parts of a file, as they are taken beside the use, is no change of it.
func TestSession_ReadAcrossACheckpoint(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := sessions(t, r)
	r.worker(t, "w1")
	s := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost})
	const size = 20 << 20
	if err := c.WriteFile(t.Context(), s.ID, "large", 0o640, bytes.NewReader(make([]byte, size))); err != nil {
		t.Fatal(err)
	}
	between := &between{do: func() {
		if _, err := c.CheckpointSession(t.Context(), s.ID); err != nil {
			t.Error(err)
		}
	}}
	if err := c.ReadFile(t.Context(), s.ID, api.SessionRead{Path: "large"}, between); err != nil || between.n != size {
		t.Errorf("got %d bytes, %v, want all %d", between.n, err, size)
	}
}

// between does something once the first part is there.
type between struct {
	do func()
	n  int
}

func (w *between) Write(b []byte) (int, error) {
	if w.n == 0 {
		w.do()
	}
	w.n += len(b)
	return len(b), nil
}

// changes changes the file of which it gets the first part, keeping its size and time.
type changes struct {
	t    *testing.T
	c    *client.Client
	id   string
	done bool
}

func (w *changes) Write(b []byte) (int, error) {
	if !w.done {
		w.done = true
		run1(w.t, w.c, w.id, "sh", "-c", "touch -r d/large ref && printf x | dd of=d/large bs=1 seek=70000000 conv=notrunc 2>/dev/null && touch -r ref d/large && rm ref")
	}
	return len(b), nil
}
