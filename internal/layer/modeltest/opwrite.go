package modeltest

import (
	"errors"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// write does what takes an open regular file.
func (o Op) write(f *layertest.Folder, name string) error {
	flags := os.O_RDWR
	if o.Do == Create || o.Do == Sparse {
		flags |= unix.O_CREAT | unix.O_EXCL
	} else if st, err := f.Stat(name); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errors.Join(err, unix.EINVAL)
	}
	fd, err := unix.Openat(f.FD(), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), name)
	var before, after unix.Stat_t
	err = unix.Fstat(fd, &before)
	if err == nil {
		err = o.writeTo(file, before.Size)
	}
	switch {
	case err != nil:
	case o.Keep:
		err = f.SetMTime(name, before.Mtim.Nano())
	case o.Do == MMap && o.Time != 0:
		err = f.SetMTime(name, o.Time)
	case o.Do == MMap:
		// A store through a mapping need not show in the time on every file system.
		if err = unix.Fstat(fd, &after); err == nil && after.Mtim == before.Mtim {
			err = f.SetMTime(name, time.Now().UnixNano())
		}
	}
	if err == nil && (o.Do == Create || o.Do == Sparse) {
		err = o.mode(f, name)
	}
	return errors.Join(err, file.Close())
}

func (o Op) writeTo(file *os.File, size int64) error {
	var err error
	switch o.Do {
	case Create:
		_, err = file.WriteAt(o.bytes(o.N), 0)
	case Sparse:
		if err = file.Truncate(o.N); err == nil {
			_, err = file.WriteAt(o.bytes(4096), o.At)
		}
	case Edit:
		_, err = file.WriteAt(o.bytes(o.N), o.At)
	case Append:
		_, err = file.WriteAt(o.bytes(o.N), size)
	case Truncate:
		err = file.Truncate(o.N)
	case Punch:
		err = unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, o.At, o.N)
	case MMap:
		err = o.store(file, size)
	}
	return err
}

// bytes are n bytes that only the seed decides.
func (o Op) bytes(n int64) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(o.Seed), byte(o.Seed >> 8), byte(o.Seed >> 16), byte(o.Seed >> 24)}).Read(b)
	return b
}

// store writes through a shared mapping of the file.
func (o Op) store(file *os.File, size int64) error {
	if o.At+o.N > size || o.N == 0 {
		return unix.EINVAL
	}
	m, err := unix.Mmap(int(file.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	copy(m[o.At:], o.bytes(o.N))
	if o.Mode == 1 {
		err = unix.Msync(m, unix.MS_SYNC)
	}
	return errors.Join(err, unix.Munmap(m))
}
