package layer

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// copyContent copies size bytes of src to the empty file dst and keeps the holes. On file systems that can share
// blocks between files they are shared.
func copyContent(dst, src *os.File, size int64) error {
	if size == 0 {
		return nil
	}
	err := unix.IoctlFileClone(int(dst.Fd()), int(src.Fd()))
	if err == nil {
		return hasSize(dst, size)
	}
	if !noClone(err) {
		return err
	}
	return copyBytes(dst, src, size)
}

// noClone tells whether FICLONE says that these two files cannot share blocks: it knows no such thing (EOPNOTSUPP,
// ENOTTY, ENOSYS), they lie on two file systems (EXDEV), or it cannot with files of their kind (EINVAL; EPERM for a
// swap file). See ioctl_ficlone(2).
func noClone(err error) bool {
	for _, known := range []error{unix.EOPNOTSUPP, unix.ENOTTY, unix.ENOSYS, unix.EXDEV, unix.EINVAL, unix.EPERM} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// hasSize refuses a file that was cloned at a moment when the source had another size.
func hasSize(f *os.File, want int64) error {
	st, err := statFile(f)
	if err == nil && st.Size != want {
		err = fmt.Errorf("got %d bytes, want %d: %w", st.Size, want, errChanged)
	}
	return err
}

// copyBytes copies the parts of src that are not holes.
func copyBytes(dst, src *os.File, size int64) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(src.Fd()), &st); err != nil {
		return err
	}
	if st.Blocks*512 >= max(st.Size, size) { // stat counts in units of 512 bytes everywhere
		return copyRange(dst, src, 0, size)
	}
	for at := int64(0); at < size; {
		start, end, err := nextData(src, at, size)
		if err != nil {
			return err
		}
		if start >= size {
			break
		}
		if err := copyRange(dst, src, start, end-start); err != nil {
			return err
		}
		at = end
	}
	return dst.Truncate(size)
}

// nextData finds the next range of src that is not a hole, from at on; start is size when there is none.
func nextData(src *os.File, at, size int64) (start, end int64, err error) {
	start, err = src.Seek(at, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return size, size, nil
	}
	if errors.Is(err, unix.EINVAL) {
		return at, size, nil // a file system that cannot tell
	}
	if err != nil {
		return 0, 0, err
	}
	end, err = src.Seek(start, unix.SEEK_HOLE)
	if err != nil {
		return 0, 0, err
	}
	return start, min(end, size), nil
}

func copyRange(dst, src *os.File, at, n int64) error {
	if n == 0 {
		return nil
	}
	if _, err := src.Seek(at, io.SeekStart); err != nil {
		return err
	}
	if _, err := dst.Seek(at, io.SeekStart); err != nil {
		return err
	}
	got, err := io.Copy(dst, io.LimitReader(src, n))
	if err != nil {
		return err
	}
	if got != n {
		return fmt.Errorf("got %d bytes, want %d: %w", got, n, errChanged)
	}
	return nil
}

// copyOf copies size bytes of name in f to dst, and closes dst.
func copyOf(f *folder, name string, dst *os.File, size int64) error {
	src, err := f.open(name)
	if err != nil {
		return errors.Join(err, dst.Close())
	}
	return errors.Join(copyContent(dst, src, size), dst.Close(), src.Close())
}
