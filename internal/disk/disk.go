// Package disk makes disks: file systems of a fixed size, each for what one sandbox writes, in a
// sparse image behind a loop device. What does not fit is refused by the kernel, whatever writes it.
//
// Nothing of a disk has a name on the host: its image is unlinked before it is used, its mount is
// a descriptor, and the kernel frees the loop device with it. So a worker that is killed leaves
// nothing. The package must not know layers, sandboxes or what is written.
package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/mountfd"
)

// ErrAbsent is wrapped by what Open returns where no disks can be made.
var ErrAbsent = errors.New("disk: none can be made here")

const (
	// inodeEvery is how many bytes of a disk there are for each of its files: small ones run out of room, not of number.
	inodeEvery = 4096
	// overhead is what a file system of size bytes needs beside them, inodes of 256 bytes (mke2fs.conf) included: never more
	// than an eighth and minimum.
	overhead = 8
	minimum  = 16 << 20 // bytes
	// slack is how much more than its size a disk takes before anything is refused. The kernel refuses a write for which it
	// wants one large folio (2 MiB) as a whole, and whatever is refused is to be beyond the size.
	slack = 4 << 20 // bytes
	// spareRoom is kept back at least, for closing a layer when the disk is full.
	spareRoom = 1 << 20 // bytes
	// spareFiles is how many files can be made then.
	spareFiles = 32
	// suspectRoom of the host's file system, in bytes: with less the kernel may have failed to write an image.
	suspectRoom = 64 << 20
)

// Maker makes disks whose images lie on the file system of one directory. Safe for concurrent use.
type Maker struct {
	dir  string
	mkfs string

	mu    sync.Mutex
	disks map[*Disk]bool // those in use
}

// Open tries whether disks can be made in dir, a private directory, by making one, which takes some 30 ms.
func Open(ctx context.Context, dir string) (*Maker, error) {
	m, err := find(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	d, err := m.Make(ctx, spareRoom)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	err = d.tryOverlay()
	if err := errors.Join(err, d.Close()); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	return m, nil
}

func find(dir string) (*Maker, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("only root mounts images")
	}
	if err := unix.Access(loopControl, unix.W_OK); err != nil {
		return nil, fmt.Errorf("no loop devices: %s: %w", loopControl, err)
	}
	for _, name := range []string{"mkfs.ext4", "/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"} {
		if path, err := exec.LookPath(name); err == nil {
			return &Maker{dir: dir, mkfs: path, disks: map[*Disk]bool{}}, nil
		}
	}
	return nil, errors.New("no mkfs.ext4: install e2fsprogs")
}

// Fits tells whether the host's file system is larger than a disk of size bytes: else that is the bound.
func (m *Maker) Fits(size int64) bool {
	var st unix.Statfs_t
	return unix.Statfs(m.dir, &st) == nil && size < int64(st.Blocks)*st.Bsize
}

// Make makes a disk that is full with size bytes; the kernel refuses more soon after. Its image takes what is written to it.
func (m *Maker) Make(ctx context.Context, size int64) (*Disk, error) {
	d := &Disk{maker: m, size: size}
	if err := m.build(ctx, d); err != nil {
		return nil, fmt.Errorf("disk: make one of %d bytes: %w", size, errors.Join(err, d.Close()))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.disks[d] = true
	return d, nil
}

// Promised is how many bytes were written to disks for which their images do not take room yet.
func (m *Maker) Promised() int64 {
	if m == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var all int64
	for d := range m.disks {
		written, _ := d.Usage()
		if info, err := d.image.Stat(); err == nil {
			all += max(written-info.Sys().(*syscall.Stat_t).Blocks*512, 0) // st_blocks counts in 512 bytes, stat(2)
		}
	}
	return all
}

func (m *Maker) build(ctx context.Context, d *Disk) error {
	var err error
	if d.image, err = m.image(ctx, d.size+d.size/overhead+minimum); err != nil {
		return err
	}
	loop, err := attach(d.image)
	if err != nil {
		return err
	}
	defer loop.Close() // the mount holds it from now on
	// nobarrier: nothing of a disk outlives the machine, so nobody has to wait for its disk. noinit_itable: no thread
	// fills in inodes nobody uses.
	fd, err := mountfd.New("ext4", mountfd.Safe, mountfd.Option("source="+loop.Name()), "nobarrier", "discard", "noinit_itable", "errors=remount-ro")
	if err != nil {
		return err
	}
	d.mount = os.NewFile(uintptr(fd), "disk")
	if d.root, err = os.Open(d.Dir()); err != nil {
		return err
	}
	if err := d.root.Chmod(0o711); err != nil {
		return err
	}
	return d.keepSpare()
}

// image makes the file system in a file without a name.
func (m *Maker) image(ctx context.Context, bytes int64) (*os.File, error) {
	f, err := os.CreateTemp(m.dir, "disk-")
	if err == nil {
		err = os.Remove(f.Name())
	}
	if err == nil {
		err = f.Truncate(bytes)
	}
	if err != nil {
		return nil, err
	}
	// No journal and no time spent on what is zero already: the image is gone with the sandbox.
	cmd := exec.CommandContext(ctx, m.mkfs, "-q", "-F", "-b", "4096", "-O", "^has_journal,^resize_inode", "-m", "0",
		"-i", fmt.Sprint(inodeEvery), "-E", "lazy_itable_init=1,nodiscard", "/proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{f}
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w: %s", filepath.Base(m.mkfs), err, strings.TrimSpace(string(out))), f.Close())
	}
	return f, nil
}

// Disk is one file system. Its methods are safe for concurrent use, but Lend and Close.
type Disk struct {
	size  int64
	spare int64 // kept back
	maker *Maker
	image *os.File
	mount *os.File // the mount lives as long as this
	root  *os.File // open from the start: syncfs tells it of all that could not be written since
}

// Dir is the root of the file system, a path for this process alone, until Close.
func (d *Disk) Dir() string { return fmt.Sprintf("/proc/self/fd/%d", d.mount.Fd()) }

// keepSpare takes all room beyond the disk's size and slack, so that the kernel refuses what is beyond that.
func (d *Disk) keepSpare() error {
	free, err := d.free()
	if err != nil {
		return err
	}
	if d.spare = free - d.size - slack; d.spare < spareRoom {
		return fmt.Errorf("its file system leaves %d bytes of %d", free, d.size)
	}
	return d.fillSpare()
}

func (d *Disk) free() (int64, error) {
	var st unix.Statfs_t
	err := unix.Fstatfs(int(d.root.Fd()), &st)
	return int64(st.Bavail) * st.Bsize, os.NewSyscallError("fstatfs", err)
}

// fillSpare keeps room back, as far as there is any.
func (d *Disk) fillSpare() error {
	free, err := d.free()
	if err != nil {
		return err
	}
	if err := d.takeSpare(min(free, d.spare)); !errors.Is(err, unix.ENOSPC) {
		return err
	}
	return nil
}

func (d *Disk) takeSpare(room int64) error {
	if err := os.MkdirAll(d.spareDir(), 0o700); err != nil {
		return err
	}
	for i := range spareFiles {
		if err := os.WriteFile(filepath.Join(d.spareDir(), strconv.Itoa(i)), nil, 0o600); err != nil {
			return err
		}
	}
	if room <= 0 {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(d.spareDir(), "0"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(os.NewSyscallError("fallocate", unix.Fallocate(int(f.Fd()), 0, 0, room)), f.Close())
}

func (d *Disk) spareDir() string { return filepath.Join(d.Dir(), "spare") }

// Lend gives do the room that is kept back, so that it can work on a disk that is full. Nothing else may write meanwhile.
func (d *Disk) Lend(do func() error) error {
	if err := os.RemoveAll(d.spareDir()); err != nil {
		return fmt.Errorf("disk: lend what is kept back: %w", err)
	}
	failed := do()
	if err := d.fillSpare(); err != nil && failed == nil {
		return fmt.Errorf("disk: keep room back: %w", err)
	}
	return failed
}

// Usage is what was written, in bytes, and whether the disk is full: of bytes, or of files.
func (d *Disk) Usage() (written int64, full bool) {
	var st unix.Statfs_t
	if unix.Fstatfs(int(d.root.Fd()), &st) != nil {
		return 0, false
	}
	free := int64(st.Bavail) * st.Bsize
	return max(d.size+slack-free, 0), free <= slack || st.Ffree == 0
}

// Sound is an error when the kernel could not write to the image what was written to the disk, since the host's file system
// was full: then files may have lost bytes. It waits for that only where there is reason to doubt.
func (d *Disk) Sound() error {
	var st unix.Statfs_t
	if err := unix.Statfs(d.maker.dir, &st); err != nil {
		return fmt.Errorf("disk: look at %q: %w", d.maker.dir, err)
	}
	if int64(st.Bavail)*st.Bsize >= suspectRoom {
		return nil
	}
	if err := unix.Syncfs(int(d.root.Fd())); err != nil {
		return fmt.Errorf("disk: what was written may be damaged: the file system of %q was full: %w (%w)", d.maker.dir, unix.ENOSPC, err)
	}
	return nil
}

// Close gives the disk up with all that is on it. A mount made of it goes on until it ends.
func (d *Disk) Close() error {
	d.maker.mu.Lock()
	delete(d.maker.disks, d)
	d.maker.mu.Unlock()
	var errs []error
	for _, f := range []*os.File{d.root, d.mount, d.image} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
