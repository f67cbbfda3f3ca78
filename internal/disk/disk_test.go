package disk_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/disk"
)

func maker(t *testing.T) *disk.Maker {
	t.Helper()
	m, err := disk.Open(t.Context(), t.TempDir())
	if errors.Is(err, disk.ErrAbsent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// What is beyond the size is refused, and the room kept back serves whoever it is lent to.
func TestDisk_HoldsItsSize(t *testing.T) {
	const size = 20 << 20
	d, err := maker(t).Make(t.Context(), size)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	file := filepath.Join(d.Dir(), "f")
	err = os.WriteFile(file, make([]byte, size+(8<<20)), 0o600)
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("more than its size: got %v, want %v", err, unix.ENOSPC)
	}
	if fi, err := os.Stat(file); err != nil || fi.Size() > size+(4<<20) || fi.Size() < size {
		t.Errorf("got %v, %v; want about %d bytes", fi, err, size)
	}
	if got, full := d.Usage(); got > size+(4<<20) || got < size || !full {
		t.Errorf("usage is %d, full %t; want about %d, full", got, full, size)
	}
	err = d.Lend(func() error { return os.WriteFile(filepath.Join(d.Dir(), "more"), make([]byte, 2<<20), 0o600) })
	if err != nil {
		t.Errorf("write what was lent: %v", err)
	}
	if err := errors.Join(os.Remove(file), d.Sound()); err != nil {
		t.Fatal(err)
	}
	err = d.Lend(func() error { return os.Remove(filepath.Join(d.Dir(), "more")) })
	if err != nil {
		t.Error(err)
	}
	if got, full := d.Usage(); got > 64<<10 || full {
		t.Errorf("after all is removed usage is %d, full %t", got, full)
	}
}
