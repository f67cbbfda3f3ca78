package doctor

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// lowSpace is when free room is worth a warning, in bytes.
const lowSpace = 1 << 30

// StateDir is where layers and bases would be kept.
type StateDir struct {
	Path       string `json:"path"`
	FileSystem string `json:"file_system"`
	FreeBytes  int64  `json:"free_bytes"`
	FreeFiles  int64  `json:"free_files"` // 0 where the file system has no count of them
	// Warning says what speaks against keeping state there.
	Warning string `json:"warning,omitempty"`
}

func (e *examination) stateDir() (StateDir, error) {
	s := StateDir{Path: e.options.StateDir}
	var st unix.Statfs_t
	if err := unix.Statfs(s.Path, &st); err != nil {
		return s, fmt.Errorf("doctor: examine %s: %w", s.Path, err)
	}
	s.FileSystem = fileSystem(int64(st.Type))
	s.FreeBytes, s.FreeFiles = int64(st.Bavail)*st.Bsize, int64(st.Ffree)
	switch {
	case s.FileSystem == "tmpfs":
		s.Warning = "it is in memory: state is gone with the next start of the machine"
	case s.FileSystem == "nfs" || s.FileSystem == "9p" || s.FileSystem == "fuse" || s.FileSystem == "cifs":
		s.Warning = "a file system of another host or program: slow, and locks may not hold: use --state-dir to name a local one"
	case s.FreeBytes < lowSpace:
		s.Warning = fmt.Sprintf("only %d MB are free: plans fail with cause disk when it is full", s.FreeBytes>>20)
	case st.Files > 0 && st.Ffree*100 < st.Files:
		s.Warning = "hardly any files can be made any more"
	}
	return s, nil
}

// fileSystem names a type of statfs(2), linux/magic.h.
func fileSystem(kind int64) string {
	names := map[int64]string{
		0xef53: "ext4", 0x58465342: "xfs", 0x9123683e: "btrfs", 0x01021994: "tmpfs", 0x794c7630: "overlay", 0x6969: "nfs",
		0x2fc12fc1: "zfs", 0xf2f52010: "f2fs", 0x65735546: "fuse", 0x01021997: "9p", 0xff534d42: "cifs", 0xca451a4e: "bcachefs",
	}
	if name, ok := names[kind&0xffffffff]; ok {
		return name
	}
	return fmt.Sprintf("0x%x", kind)
}

func pointer(p *uint32) uintptr { return uintptr(unsafe.Pointer(p)) }
