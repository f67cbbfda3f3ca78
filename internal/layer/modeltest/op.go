package modeltest

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// Op is one change of a tree. What its fields mean is with each kind.
type Op struct {
	Do       Kind
	Path, To string
	Mode     uint32
	// At and N are an offset and a number of bytes.
	At, N int64
	// Seed makes the bytes that are written.
	Seed uint64
	// Name is an attribute, or the text of a symbolic link; Value is an attribute's.
	Name, Value string
	// Time is a time of change in nanoseconds. With Keep the time of before is put back after a write.
	Time int64
	Keep bool
	ID   int
}

// Kind says what an Op does.
type Kind string

// The kinds of changes.
const (
	Create   Kind = "create"   // a file of N bytes, Mode
	Sparse   Kind = "sparse"   // a file of N bytes, data only in a block at At
	Edit     Kind = "edit"     // N bytes at At, Keep
	Append   Kind = "append"   // N bytes
	Truncate Kind = "truncate" // to N bytes, also longer
	Punch    Kind = "punch"    // a hole of N bytes at At
	MMap     Kind = "mmap"     // store N bytes at At through a shared mapping; Mode 1: msync; Keep or Time
	Open     Kind = "open"     // for writing, without a write
	Mkdir    Kind = "mkdir"    // Mode
	Symlink  Kind = "symlink"  // Name
	Fifo     Kind = "fifo"     // Mode
	Device   Kind = "device"   // Mode with its type, N the number
	Link     Kind = "link"     // To becomes another name of Path
	Rename   Kind = "rename"   // Path to To; a directory that can't be renamed is moved by copying, as mv does
	Exchange Kind = "exchange" // Path and To
	Unlink   Kind = "unlink"
	Rmdir    Kind = "rmdir"
	Remove   Kind = "remove" // with all that is in it
	Chmod    Kind = "chmod"  // Mode
	Chown    Kind = "chown"  // to ID
	SetXattr Kind = "setxattr"
	RmXattr  Kind = "rmxattr"
	Utimes   Kind = "utimes"
)

// String is a short form for people.
func (o Op) String() string {
	s := fmt.Sprintf("%s %q", o.Do, o.Path)
	if o.To != "" {
		s += fmt.Sprintf(" to %q", o.To)
	}
	if o.Mode != 0 || o.Do == Chmod {
		s += fmt.Sprintf(" mode %#o", o.Mode)
	}
	if o.Name != "" {
		s += fmt.Sprintf(" %q", o.Name)
	}
	if o.Value != "" {
		s += fmt.Sprintf("=%q", o.Value)
	}
	if o.At != 0 || o.N != 0 {
		s += fmt.Sprintf(" at %d n %d", o.At, o.N)
	}
	if o.Time != 0 {
		s += fmt.Sprintf(" time %d", o.Time)
	}
	if o.Keep {
		s += " keep time"
	}
	return s
}

// Result is how an operation ended. The same operation has to end the same way on a plain copy, which is told what
// the tree under test is allowed to do otherwise: give a file of several names another inode when it is written to
// (Split, an overlay without an index), or refuse to rename a directory (Copied, or Err EXDEV).
type Result struct {
	Err    string
	Copied bool
	// Split says of Path and To whether the file there lost its other names.
	Split [2]bool
}

// apply does o below root. hint, if not nil, is how it went elsewhere.
func (o Op) apply(root *layertest.Folder, hint *Result) Result {
	if hint != nil && hint.Err == unix.EXDEV.Error() {
		return *hint
	}
	f, name, err := root.Parent(o.Path)
	if err != nil {
		return Result{Err: errno(err)}
	}
	defer f.Close()
	to, toName := f, name
	if o.To != "" {
		if to, toName, err = root.Parent(o.To); err != nil {
			return Result{Err: errno(err)}
		}
		defer to.Close()
	}
	r := Result{}
	if hint != nil {
		r.Split, r.Copied = hint.Split, hint.Copied
		for i, at := range []spot{{f, name}, {to, toName}} {
			if hint.Split[i] {
				err = errors.Join(err, at.split())
			}
		}
	}
	if err != nil {
		return Result{Err: "split: " + err.Error()}
	}
	before := [2]uint64{names(f, name), names(to, toName)}
	if hint != nil && hint.Copied {
		err = move(f, name, to, toName)
	} else {
		err = o.do(f, name, to, toName)
	}
	if hint == nil && o.Do == Rename && errors.Is(err, unix.EXDEV) {
		r.Copied, err = true, move(f, name, to, toName)
	}
	r.Err = errno(err)
	if hint == nil {
		r.Split = o.splits(before, err == nil, spot{f, name}, spot{to, toName})
	}
	return r
}

// splits tells which of the files that had several names has one now, though no name was taken away. linked: the
// operation succeeded.
func (o Op) splits(before [2]uint64, linked bool, at, to spot) [2]bool {
	switch o.Do {
	case Unlink, Remove, Rmdir:
		return [2]bool{}
	case Rename:
		return [2]bool{before[0] > 1 && names(to.f, to.name) == 1, false}
	case Exchange:
		return [2]bool{before[0] > 1 && names(to.f, to.name) == 1, before[1] > 1 && names(at.f, at.name) == 1}
	}
	left := uint64(1)
	if o.Do == Link && linked {
		left = 2
	}
	return [2]bool{before[0] > 1 && names(at.f, at.name) <= left, false}
}

// names counts the names of a file, 0 for none and for directories.
func names(f *layertest.Folder, name string) uint64 {
	st, err := f.Stat(name)
	if err != nil || st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return 0
	}
	return uint64(st.Nlink)
}

// spot is a name in a directory.
type spot struct {
	f    *layertest.Folder
	name string
}

// split gives a file that has several names an inode of its own, and leaves its directory's times alone.
func (s spot) split() error {
	if names(s.f, s.name) < 2 {
		return nil
	}
	var dir unix.Stat_t
	if err := unix.Fstat(s.f.FD(), &dir); err != nil {
		return err
	}
	mode := dir.Mode & 0o7777
	self := s.f.Path(".")
	err := unix.Chmod(self, mode|0o700)
	if err == nil {
		const temporary = ".warmfleet-split"
		err = (&copier{}).copy(s.f, temporary, s.f, s.name)
		if err == nil {
			err = unix.Renameat(s.f.FD(), temporary, s.f.FD(), s.name)
		}
	}
	return errors.Join(err, s.f.SetMTime(".", dir.Mtim.Nano()), unix.Chmod(self, mode))
}

// move is rename by copying. No hard links survive it: an overlay that cannot rename a directory gives the names of one
// file different inode numbers, so mv does not know them either.
func move(f *layertest.Folder, name string, to *layertest.Folder, toName string) error {
	if err := unix.Unlinkat(to.FD(), toName, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	if err := (&copier{}).copy(to, toName, f, name); err != nil {
		return err
	}
	return removeAll(f, name)
}

// errno is the part of an error that does not depend on where the tree lies.
func errno(err error) string {
	var no unix.Errno
	switch {
	case err == nil:
		return ""
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return unix.EEXIST.Error() // POSIX lets a file system choose
	case errors.As(err, &no):
		return no.Error()
	}
	return err.Error()
}

func (o Op) do(f *layertest.Folder, name string, to *layertest.Folder, toName string) error {
	switch o.Do {
	case Create, Sparse, Edit, Append, Truncate, Punch, MMap, Open:
		return o.write(f, name)
	case Mkdir:
		if err := unix.Mkdirat(f.FD(), name, 0o700); err != nil {
			return err
		}
		return o.mode(f, name)
	case Symlink:
		return unix.Symlinkat(o.Name, f.FD(), name)
	case Fifo:
		return o.node(f, name, unix.S_IFIFO)
	case Device:
		return o.node(f, name, o.Mode&unix.S_IFMT)
	case Link:
		return unix.Linkat(f.FD(), name, to.FD(), toName, 0)
	case Rename:
		return rename(f, name, to, toName)
	case Exchange:
		return unix.Renameat2(f.FD(), name, to.FD(), toName, unix.RENAME_EXCHANGE)
	case Unlink:
		return unix.Unlinkat(f.FD(), name, 0)
	case Rmdir:
		return unix.Unlinkat(f.FD(), name, unix.AT_REMOVEDIR)
	case Remove:
		return removeAll(f, name)
	case Chmod:
		return o.mode(f, name)
	case Chown:
		return unix.Fchownat(f.FD(), name, o.ID, o.ID, unix.AT_SYMLINK_NOFOLLOW)
	case SetXattr:
		return unix.Lsetxattr(f.Path(name), o.Name, []byte(o.Value), 0)
	case RmXattr:
		return unix.Lremovexattr(f.Path(name), o.Name)
	case Utimes:
		return f.SetMTime(name, o.Time)
	}
	return fmt.Errorf("no operation %q", o.Do)
}

// rename does nothing to two names of one file: so says POSIX, but an overlay without an index does not know them.
func rename(f *layertest.Folder, name string, to *layertest.Folder, toName string) error {
	a, errA := f.Stat(name)
	b, errB := to.Stat(toName)
	if errA == nil && errB == nil && a.Ino == b.Ino && a.Dev == b.Dev {
		return nil
	}
	return unix.Renameat(f.FD(), name, to.FD(), toName)
}

// mode changes the mode of anything but a link, which it would follow.
func (o Op) mode(f *layertest.Folder, name string) error {
	if st, err := f.Stat(name); err != nil || st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return errors.Join(err, unix.EINVAL)
	}
	return unix.Fchmodat(f.FD(), name, o.Mode&0o7777, 0)
}

func (o Op) node(f *layertest.Folder, name string, kind uint32) error {
	if err := unix.Mknodat(f.FD(), name, kind|0o600, int(o.N)); err != nil {
		return err
	}
	return o.mode(f, name)
}
