package objectstore_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/pkg/objectstore"
	"github.com/warmfleet/warmfleet/pkg/objectstore/objectstoretest"
)

func openDir(t *testing.T, dir string) *objectstore.Dir {
	t.Helper()
	s, err := objectstore.NewDir(dir)
	must(t, err)
	return s
}

func TestDir(t *testing.T) {
	objectstoretest.Run(t, func(t *testing.T) objectstore.Store { return openDir(t, t.TempDir()) })
}

func TestDir_SurvivesReopen(t *testing.T) {
	dir := t.TempDir()
	data := objectstoretest.Bytes(1, 100_000)
	objectstoretest.Put(t, openDir(t, dir), "a/b", data)
	objectstoretest.Check(t, openDir(t, dir), "a/b", data)
}

func TestDir_Corrupt(t *testing.T) {
	data := objectstoretest.Bytes(1, 100_000)
	tests := []struct {
		name   string
		damage func(file string) error
		stat   bool
	}{
		{"Gone", os.Remove, true},
		{"Cut", func(f string) error { return os.Truncate(f, 99_999) }, true},
		{"Longer", func(f string) error { return os.WriteFile(f, append(bytes.Clone(data), 'x'), 0o600) }, true},
		{"ByteFlipped", func(f string) error {
			other := bytes.Clone(data)
			other[500] ^= 1
			return os.WriteFile(f, other, 0o600)
		}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			s := openDir(t, dir)
			objectstoretest.Put(t, s, "x", data)
			files, err := filepath.Glob(filepath.Join(dir, "data", "x@*"))
			if err != nil || len(files) != 1 {
				t.Fatalf("data files: %v, %v", files, err)
			}
			must(t, tt.damage(files[0]))
			if _, err := objectstoretest.ReadAll(t.Context(), s, "x"); !errors.Is(err, objectstore.ErrCorrupt) {
				t.Errorf("Get: got %v, want ErrCorrupt", err)
			}
			if _, err := s.Stat(t.Context(), "x"); errors.Is(err, objectstore.ErrCorrupt) != tt.stat {
				t.Errorf("Stat: got %v, want ErrCorrupt %v", err, tt.stat)
			}
			if !tt.stat {
				must(t, s.Delete(t.Context(), "x"))
			}
			objectstoretest.Put(t, s, "x", data)
			objectstoretest.Check(t, s, "x", data)
		})
	}
}

func TestDir_Sweep(t *testing.T) {
	dir := t.TempDir()
	s := openDir(t, dir)
	data := objectstoretest.Bytes(1, 1000)
	objectstoretest.Put(t, s, "live", data)
	left := []string{filepath.Join(dir, "data", "dead@01"), filepath.Join(dir, "data", "live@01"), filepath.Join(dir, "info", "tmp-01")}
	old := time.Now().Add(-2 * time.Hour)
	for _, file := range left {
		must(t, os.WriteFile(file, data, 0o600))
		must(t, os.Chtimes(file, old, old))
	}
	if n, err := s.Sweep(t.Context(), 3*time.Hour); n != 0 || err != nil {
		t.Errorf("Sweep of 3 hours: got %d, %v, want nothing", n, err)
	}
	if n, err := s.Sweep(t.Context(), time.Hour); n != len(left) || err != nil {
		t.Errorf("Sweep of an hour: got %d, %v, want %d", n, err, len(left))
	}
	objectstoretest.Check(t, s, "live", data)
}

// smallDisk mounts a file system of size bytes.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("reason: only root can mount a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("reason: cannot mount a small file system here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestDir_DiskFull(t *testing.T) {
	s := openDir(t, smallDisk(t, "1m"))
	_, err := s.Put(t.Context(), "big", bytes.NewReader(objectstoretest.Bytes(1, 2<<20)))
	if !errors.Is(err, objectstore.ErrFull) {
		t.Errorf("Put: got %v, want ErrFull", err)
	}
	data := objectstoretest.Bytes(2, 500_000)
	objectstoretest.Put(t, s, "fits", data)
	objectstoretest.Check(t, s, "fits", data)
}
