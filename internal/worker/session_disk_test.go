package worker

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/client"
	"github.com/warmfleet/warmfleet/pkg/events/eventstest"
)

// A session's files are held to the limit of disk: one beyond it is refused whole with the reason, however it comes, and before
// its parts take the worker's own disk.
func TestSession_FilesKeepToTheDiskLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := sessions(t, r)
	cfg := r.config(t, "w1")
	cfg.Limits.Disk = 20 << 20
	w, err := New(t.Context(), cfg, r.open(t, eventstest.Connect(t, r.server)), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	run(t, w)
	s := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost})
	write := func(name string, size int) error {
		return c.WriteFile(t.Context(), s.ID, name, 0, bytes.NewReader(make([]byte, size)))
	}
	if err := write("first", 15<<20); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int{"a": 60 << 20, "small": 6 << 20} {
		var refused *client.Error
		if err := write(name, size); !errors.As(err, &refused) || refused.Code != api.CodeRefused || !strings.Contains(err.Error(), "disk_gb") {
			t.Errorf("%d bytes more: got %v, want it refused for disk_gb", size, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(cfg.StateDir, "scratch", "upload-*")); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
	if out, _, _ := run1(t, c, s.ID, "sh", "-c", "cat a; ls -A"); out != "one\na\nd\nfirst\n" {
		t.Errorf("got %q, want nothing of what was refused", out)
	}
	if _, err := c.CheckpointSession(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	if err := write("second", 15<<20); err != nil {
		t.Errorf("after a checkpoint: %v", err)
	}
}
