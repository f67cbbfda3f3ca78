package layer

import (
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What a stat says about a file that did not change stays the same. The other direction has to be earned: a file
// system may not stamp every change, a stamp may be as coarse as two changes, a clock may be set back, and a store
// through a shared mapping stamps only the moment in which a clean page becomes dirty. This file decides which
// stamps are trusted; every other path is read again at the next capture.

const (
	// racyWindow is how far back a change may lie and still share its time stamp with a later one. Linux before
	// 6.13 stamps files with the time of the last timer tick, at most 10 ms old; twice that is the margin.
	racyWindow = 20 * time.Millisecond
	// wholeSecond is the grain of a time that has no nanoseconds, as on an ext4 with small inodes.
	wholeSecond = time.Second
)

// stamping are the file systems (statfs(2), f_type) that change the time of change with every change of a file, the
// first store to a clean page through a mapping included. Memory file systems do not, network and FUSE ones leave it
// to others; what is not known to do it is not listed. An overlay is what lies below it: see writtenOut.
var stamping = [...]int64{
	unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.OVERLAYFS_SUPER_MAGIC,
}

// Stamps tells whether the file system at dir stamps every change of its files, so that a stat is enough to see
// that a file is as it was. The answer for an overlay holds only for files that are not in memory.
func Stamps(dir string) (bool, error) {
	f, err := openFolder(dir, needRead)
	if err != nil {
		return false, err
	}
	defer f.close()
	fs, err := fsOf(f.fd)
	return fs.stamps, err
}

// fsKind is what counts about a file system.
type fsKind struct {
	stamps  bool
	overlay bool
}

// fsAt is the file system that name in the directory dir lies on.
func fsAt(dir int, name string) (fsKind, error) {
	fd, err := openRetry(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fsKind{}, err
	}
	defer unix.Close(fd)
	return fsOf(fd)
}

func fsOf(fd int) (fsKind, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return fsKind{}, err
	}
	kind := fsKind{overlay: st.Type == unix.OVERLAYFS_SUPER_MAGIC}
	for _, t := range stamping {
		kind.stamps = kind.stamps || t == st.Type
	}
	return kind, nil
}

// clock is what two readings of the time of day need to tell whether it was set back between them.
type clock struct {
	wall   int64 // nanoseconds since 1970
	uptime int64 // nanoseconds since the machine started, suspended time included
}

func readClock() clock {
	var up unix.Timespec
	wall := time.Now().UnixNano()
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return clock{wall: wall}
	}
	return clock{wall: wall, uptime: up.Nano()}
}

// slew is how far the clocks may drift apart without a step: adjtimex(2) corrects by 500 ppm at most, over any time
// that an index is kept. A step that is smaller than the racy window is no danger.
func slew(elapsed int64) int64 { return elapsed/1000 + int64(racyWindow) }

// trustedBefore is the time of change up to which stamps of an index that was made at then are trusted now. It is
// below then when the time of day was set back since: it may have passed, and stamped, the same moments twice.
func (now clock) trustedBefore(then clock) int64 {
	limit := min(now.wall, then.wall) - int64(racyWindow)
	elapsed := now.uptime - then.uptime
	if elapsed < 0 {
		return limit // the machine restarted; its clock went on from a battery
	}
	if back := elapsed - (now.wall - then.wall); back > slew(elapsed) {
		limit = min(limit, then.wall-back-int64(racyWindow))
	}
	return limit
}

// racyAt tells whether a change from the scan's start on could leave the stamp as it is.
func (s *scan) racyAt(st stamp) bool {
	grain := int64(0)
	if st.ctime%int64(wholeSecond) == 0 {
		grain = int64(wholeSecond)
	}
	return st.ctime+grain >= s.clock.wall-int64(racyWindow)
}

// trusts tells whether the stamp of an indexed path, found again, proves that the path is as it was.
func (s *scan) trusts(old *indexed) bool { return !old.racy && old.ctime < s.trusted }

// settled tells whether a change of an open file that is yet to come will change its stamp. It has to be asked
// after the stamp was taken and before the file is read: then whatever is not in the stamp is in what is read.
func (s *scan) settled(f *os.File) (bool, error) {
	if s.quiet {
		return true, nil
	}
	fs, err := fsOf(int(f.Fd()))
	if err != nil || !fs.stamps {
		return false, err
	}
	if fs.overlay {
		return writtenOut(f), nil
	}
	return clean(f)
}

// manyFiles is how many files of an overlay are cheaper to write out with all that is dirty than one by one.
const manyFiles = 32

// writeOut writes out what is dirty on overlays from which many files are about to be read. It only spares
// writtenOut its work.
func (s *scan) writeOut() error {
	many := map[uint64]int{}
	for _, f := range s.found {
		if f.known() || f.Type != File || s.quiet || !s.devices[f.dev].overlay {
			continue
		}
		if many[f.dev]++; many[f.dev] != manyFiles {
			continue
		}
		dir, _, err := openIn(s.root, f.Path, needRead)
		if gone(err) {
			continue
		}
		if err == nil {
			err = errors.Join(unix.Syncfs(dir.fd), dir.close())
		}
		if err != nil {
			return fmt.Errorf("write out %q: %w", f.Path, err)
		}
	}
	return nil
}

// clean tells whether the file has no dirty pages, which could be stored to through a mapping without a trace. Where
// the kernel does not say, its pages are written out, which makes them clean.
func clean(f *os.File) (bool, error) {
	var st cachestat
	all := struct{ off, len uint64 }{}
	_, _, errno := unix.Syscall6(unix.SYS_CACHESTAT, f.Fd(), uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&st)), 0, 0, 0)
	if errno == 0 {
		return st.dirty == 0 && st.writeback == 0, nil
	}
	const wait = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	err := unix.SyncFileRange(int(f.Fd()), 0, 0, wait)
	if err != nil && !errors.Is(err, unix.EIO) && !errors.Is(err, unix.ENOSPC) {
		return false, os.NewSyscallError("sync_file_range", err)
	}
	return err == nil, nil
}

// cachestat is struct cachestat of cachestat(2), Linux 6.5: counts of pages.
type cachestat struct{ cache, dirty, writeback, evicted, recentlyEvicted uint64 }

// writtenOut makes the pages of an overlay's file clean: they belong to the file system below, so that nothing about
// the overlay's own file tells whether they are. It fails for a file in memory, which has no blocks.
func writtenOut(f *os.File) bool {
	m := fiemap{length: ^uint64(0), flags: fiemapSync}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fsIocFiemap, uintptr(unsafe.Pointer(&m)))
	return errno == 0
}

const (
	// fsIocFiemap is FS_IOC_FIEMAP of linux/fs.h: _IOWR('f', 11, struct fiemap).
	fsIocFiemap = 0xc020660b
	// fiemapSync is FIEMAP_FLAG_SYNC of linux/fiemap.h: write the file's data out first.
	fiemapSync = 1
)

// fiemap is struct fiemap of linux/fiemap.h without extents, which asks for their number only.
type fiemap struct {
	start, length                uint64
	flags, mapped, count, unused uint32
}
