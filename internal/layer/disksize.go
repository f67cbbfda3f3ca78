package layer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Count says what of a file counts as its size on disk.
type Count int

const (
	// Allocated is what stat says, holes left out.
	Allocated Count = iota
	// Exclusive leaves out extents that other files have too, as those of a reflinked copy: what would be free
	// if the layer went. It is as Allocated where the file system cannot say.
	Exclusive
)

// DiskSize is what a layer takes on disk, in bytes; a file with several names counts once. A file that goes
// meanwhile takes nothing.
func (l Layer) DiskSize(count Count) (int64, error) {
	var size int64
	seen := map[inode]bool{}
	err := filepath.WalkDir(l.Dir, func(path string, d fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || seen[inode{st.Dev, st.Ino}] {
			return err
		}
		if st.Nlink > 1 && !d.IsDir() {
			seen[inode{st.Dev, st.Ino}] = true
		}
		own := st.Blocks * 512 // st_blocks counts in 512 bytes, stat(2)
		if count == Exclusive && d.Type().IsRegular() && own > 0 {
			own -= sharedBytes(path)
		}
		size += max(own, 0)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("layer: measure %q: %w", l.ID, err)
	}
	return size, nil
}

// extentsAtOnce is how many extents one question is answered with.
const extentsAtOnce = 64

// extents is struct fiemap of linux/fiemap.h with room for an answer.
type extents struct {
	fiemap
	extent [extentsAtOnce]struct {
		logical, physical, length uint64
		_                         [2]uint64
		flags                     uint32
		_                         [3]uint32
	}
}

// Flags of an extent in linux/fiemap.h.
const (
	extentLast   = 1
	extentShared = 0x2000
)

// sharedBytes is how much of a file's data other files share, 0 where that cannot be told.
func sharedBytes(path string) int64 {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return 0
	}
	defer f.Close()
	var shared, at uint64
	for {
		m := &extents{fiemap: fiemap{start: at, length: ^uint64(0) - at, count: extentsAtOnce}}
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fsIocFiemap, uintptr(unsafe.Pointer(m))); errno != 0 {
			return 0
		}
		for _, e := range m.extent[:min(m.mapped, extentsAtOnce)] {
			if at = e.logical + e.length; e.flags&extentShared != 0 {
				shared += e.length
			}
			if e.flags&extentLast != 0 {
				return int64(shared)
			}
		}
		if m.mapped == 0 {
			return int64(shared)
		}
	}
}
