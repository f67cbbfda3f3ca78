package gitrepo

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"os"
)

// Layout of an index of version 2 (git's Documentation/gitformat-index): a header of signature,
// version and entry count; entries of ctime, mtime, dev, ino, mode, uid, gid, size, object name,
// flags and a path, padded with NULs to a multiple of eight bytes; extensions; a checksum.
const (
	indexHeader   = 12
	indexStat     = 40 // bytes before the object name
	indexModeAt   = 24
	indexSizeAt   = 36
	indexExtended = 0x4000 // flag of an entry that only version 3 has
)

var errIndexForm = errors.New("the index is not of version 2")

// stampIndex makes the index at path independent of the disk it was written on: device, inode,
// owner and ctime become zero, which core.checkStat=minimal does not compare, and the mtime of each
// path for which seconds has an answer becomes that. All others keep theirs.
func stampIndex(path, format string, seconds func(name string) (uint32, bool)) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("gitrepo: stamp index: %w", err)
	}
	var sum hash.Hash = sha1.New()
	if format == "sha256" {
		sum = sha256.New()
	}
	if err := stampEntries(b, sum.Size(), seconds); err != nil {
		return fmt.Errorf("gitrepo: stamp index %q: %w", path, err)
	}
	body := b[:len(b)-sum.Size()]
	sum.Write(body)
	if err := os.WriteFile(path, sum.Sum(body), 0o644); err != nil {
		return fmt.Errorf("gitrepo: stamp index: %w", err)
	}
	return nil
}

func stampEntries(b []byte, hashLen int, seconds func(string) (uint32, bool)) error {
	if len(b) < indexHeader+hashLen || string(b[:4]) != "DIRC" || binary.BigEndian.Uint32(b[4:]) != 2 {
		return errIndexForm
	}
	at := indexHeader
	for range binary.BigEndian.Uint32(b[8:]) {
		nameAt := at + indexStat + hashLen + 2
		if nameAt >= len(b) {
			return errIndexForm
		}
		n := bytes.IndexByte(b[nameAt:], 0)
		if n < 0 || binary.BigEndian.Uint16(b[nameAt-2:])&indexExtended != 0 {
			return errIndexForm
		}
		stampEntry(b[at:at+indexStat], string(b[nameAt:nameAt+n]), seconds)
		size := nameAt + n - at
		at += size + 8 - size%8
	}
	return nil
}

func stampEntry(stat []byte, name string, seconds func(string) (uint32, bool)) {
	mtime := binary.BigEndian.Uint32(stat[8:])
	if s, ok := seconds(name); ok {
		mtime = s
	}
	clear(stat[:indexModeAt])
	clear(stat[indexModeAt+4 : indexSizeAt])
	binary.BigEndian.PutUint32(stat[8:], mtime)
}
