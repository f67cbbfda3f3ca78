package gitcommit

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Layout of an index of version 2 or 3 (git's Documentation/gitformat-index): a header of signature, version and entry count;
// entries of ctime, mtime, dev, ino, mode, uid, gid, size, object name, flags, in version 3 more flags, and a path, padded with NULs to a
// multiple of eight bytes; extensions; a checksum.
const (
	indexHeader   = 12
	indexStat     = 40 // bytes before the object name
	indexModeAt   = 24
	indexExtended = 0x4000 // flag of an entry that has more flags
)

// stamp notes in the new index when the files that the commit brought were written, as git does after a checkout: so that it takes
// them for unchanged without reading them. A file that is not what was brought gets no stamp, and an index of another form none at all.
func (l *IndexLock) stamp(paths map[string]string) error {
	if len(paths) == 0 {
		return nil
	}
	f, err := openAt(l.dir, slotName, unix.O_RDONLY)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	b, err := io.ReadAll(f)
	if err == nil {
		err = unix.Fstat(int(f.Fd()), &st)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("gitcommit: read the new index: %w", err)
	}
	root, err := os.OpenRoot(l.repo.info.Root)
	if err != nil {
		return fmt.Errorf("gitcommit: open the work tree: %w", err)
	}
	defer root.Close()
	var sum hash.Hash = sha1.New()
	if strings.Contains(l.repo.format, "256") {
		sum = sha256.New()
	}
	if !stampEntries(b, sum.Size(), func(path string, stat []byte) { stampFile(root, path, paths[path], stat) }) {
		return nil
	}
	body := b[:len(b)-sum.Size()]
	sum.Write(body)
	err = l.write(slotTmp, st.Mode&0o777, func(w io.Writer) error {
		_, err := w.Write(sum.Sum(body))
		return err
	})
	if err != nil {
		return err
	}
	fd := int(l.dir.Fd())
	return l.synced(unix.Renameat(fd, slotTmp, fd, slotName))
}

// stampEntries calls do for the stat data of every entry; false means that the index has another form.
func stampEntries(b []byte, hashLen int, do func(path string, stat []byte)) bool {
	if len(b) < indexHeader+hashLen || string(b[:4]) != "DIRC" {
		return false
	}
	if v := binary.BigEndian.Uint32(b[4:]); v != 2 && v != 3 {
		return false
	}
	at := indexHeader
	for range binary.BigEndian.Uint32(b[8:]) {
		nameAt := at + indexStat + hashLen + 2
		if nameAt+2 >= len(b) {
			return false
		}
		if binary.BigEndian.Uint16(b[nameAt-2:])&indexExtended != 0 {
			nameAt += 2
		}
		n := bytes.IndexByte(b[nameAt:], 0)
		if n < 0 {
			return false
		}
		do(string(b[nameAt:nameAt+n]), b[at:at+indexStat])
		size := nameAt + n - at
		at += size + 8 - size%8
	}
	return true
}

// stampFile fills in an entry's stat data from its file, if that holds what was brought, before and after the look at it.
func stampFile(root *os.Root, path, digest string, stat []byte) {
	if digest == "" {
		return
	}
	first, err := lstat(root, path)
	if err != nil || first.Mode&unix.S_IFMT != unix.S_IFREG {
		return
	}
	if now, err := digestIn(root, path); err != nil || now != digest {
		return
	}
	second, err := lstat(root, path)
	if err != nil || second != first {
		return
	}
	for i, v := range []uint32{
		uint32(first.Ctim.Sec), uint32(first.Ctim.Nsec), uint32(first.Mtim.Sec), uint32(first.Mtim.Nsec), uint32(first.Dev), uint32(first.Ino),
	} {
		binary.BigEndian.PutUint32(stat[4*i:], v)
	}
	for i, v := range []uint32{first.Uid, first.Gid, uint32(first.Size)} {
		binary.BigEndian.PutUint32(stat[indexModeAt+4+4*i:], v)
	}
}

func lstat(root *os.Root, path string) (unix.Stat_t, error) {
	var st unix.Stat_t
	dir, err := root.Open(filepath.Dir(path))
	if err != nil {
		return st, err
	}
	defer dir.Close()
	err = unix.Fstatat(int(dir.Fd()), filepath.Base(path), &st, unix.AT_SYMLINK_NOFOLLOW)
	st.Atim = unix.Timespec{} // reading it may change that
	return st, err
}

func digestIn(root *os.Root, path string) (string, error) {
	f, err := root.OpenFile(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", fs.ErrInvalid
	}
	return digestOf(f)
}
