package layer

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

func TestCache_Persist(t *testing.T) {
	c := openTestCache(t, testOptions(t))
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	l, _, _, err := c.CaptureAgain(context.Background(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	before, err := readMeta(filepath.Join(c.dir, l.ID))
	if err != nil || before.Boot == "" {
		t.Fatalf("a layer that can be captured again has boot %q, %v, want this boot's id", before.Boot, err)
	}
	if err := c.Persist(context.Background(), Chain{l}); err != nil {
		t.Fatal(err)
	}
	after, err := readMeta(filepath.Join(c.dir, l.ID))
	if err != nil || after.Boot != "" {
		t.Errorf("a persisted layer has boot %q, %v, want none", after.Boot, err)
	}
	if got, err := c.Get(l.ID); err != nil || got.ID != l.ID {
		t.Errorf("got %+v, %v", got, err)
	}
}
