package isolate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

// FileWrite is a file to make or to replace.
type FileWrite struct {
	Path    string // relative to the workspace
	Content []byte // at most 64 MiB
	// From, if set, is the content instead, whatever its size, from its present position to its end. It is a regular file, open for reading.
	From     *os.File
	Mode     uint32 // twelve permission bits; 0 keeps those of an existing file, else 0644
	MkdirAll bool   // make missing parents, 0755
}

// FileInfo describes a path of the workspace; links are not followed.
type FileInfo struct {
	Name    string
	Mode    fs.FileMode
	Size    int64 // bytes
	ModTime time.Time
}

// File calls happen inside the sandbox with a command's rights. A path has the workspace
// as its root: neither "..", an absolute path nor a link leads out. errors.Is finds
// fs.ErrNotExist, fs.ErrPermission and the like.

// ReadFile reads a regular file of at most max bytes; ErrTooLarge when it is larger.
func (i *Init) ReadFile(ctx context.Context, path string, max int64) ([]byte, fs.FileMode, error) {
	if max > wire.MaxContent {
		max = wire.MaxContent
	}
	frame, err := i.fileCall(ctx, wire.KindRead, "read", &wire.File{Path: path, Max: max})
	if err != nil {
		return nil, 0, err
	}
	var m wire.Content
	if err := frame.Decode(&m); err != nil {
		return nil, 0, err
	}
	return m.Data, fileMode(m.Mode), nil
}

// WriteFile replaces a file in one step: a reader sees the old content or the new.
func (i *Init) WriteFile(ctx context.Context, w FileWrite) error {
	if len(w.Content) > wire.MaxContent {
		return fmt.Errorf("isolate: write %q: %w", w.Path, ErrTooLarge)
	}
	var fds []int
	if w.From != nil {
		fds = append(fds, int(w.From.Fd()))
	}
	_, err := i.fileCall(ctx, wire.KindWrite, "write", &wire.File{
		Path: w.Path, Content: w.Content, Mode: uint64(w.Mode & 0o7777), MkdirAll: w.MkdirAll, From: w.From != nil,
	}, fds...)
	return err
}

// FilePart is a part of a file.
type FilePart struct {
	Data []byte
	Mode fs.FileMode
	Size int64 // of the whole file, in bytes
	// Stamp is another after each change of the file.
	Stamp string
}

// ReadPart reads a part of a regular file. Where at names the stamp of an earlier part, the file must not have changed since: else
// ErrChanged.
func (i *Init) ReadPart(ctx context.Context, path string, at PartAt) (FilePart, error) {
	frame, err := i.fileCall(ctx, wire.KindRead, "read", &wire.File{
		Path: path, Part: true, Offset: at.Offset, Max: min(at.Max, wire.MaxContent), Stamp: at.Stamp,
	})
	if errors.Is(err, unix.ESTALE) {
		err = fmt.Errorf("isolate: read %q: %w", path, ErrChanged)
	}
	if err != nil {
		return FilePart{}, err
	}
	var m wire.Content
	if err := frame.Decode(&m); err != nil {
		return FilePart{}, err
	}
	return FilePart{Data: m.Data, Mode: fileMode(m.Mode), Size: m.Size, Stamp: m.Stamp}, nil
}

// PartAt says which part of a file: at most Max bytes from Offset, of the file that Stamp is of if that is not "".
type PartAt struct {
	Offset, Max int64
	Stamp       string
}

// LookAt reads a regular file, or the text of a symbolic link, of at most max bytes. Links are not followed, on the way
// to it neither: that is syscall.ELOOP.
func (i *Init) LookAt(ctx context.Context, path string, max int64) ([]byte, fs.FileMode, error) {
	frame, err := i.fileCall(ctx, wire.KindLook, "look at", &wire.File{Path: path, Max: min(max, wire.MaxContent)})
	if err != nil {
		return nil, 0, err
	}
	var m wire.Content
	if err := frame.Decode(&m); err != nil {
		return nil, 0, err
	}
	return m.Data, fileMode(m.Mode), nil
}

// FileChange is one path of the workspace as it is to be.
type FileChange struct {
	Path string // clean, relative to the workspace
	// Remove: nothing is to be there, and the rest is not read. A directory that it leaves empty goes too.
	Remove bool
	// Link: Content is the text of a symbolic link.
	Link    bool
	Content []byte
	Mode    uint32 // permission bits of a file
}

// ChangeFiles makes several changes, all or none: after an error the workspace is as before. Each path may occur
// once; what is there now is replaced, unless it is a directory. No link is followed. All contents together are at most
// 64 MiB, else ErrTooLarge.
func (i *Init) ChangeFiles(ctx context.Context, list []FileChange) error {
	var m wire.Changes
	size := 0
	for _, c := range list {
		f := wire.File{Path: c.Path}
		switch {
		case c.Remove:
		case c.Link:
			f.Mode, f.Content = unix.S_IFLNK|0o777, c.Content
		default:
			f.Mode, f.Content = unix.S_IFREG|uint64(c.Mode&0o7777), c.Content
		}
		m.List = append(m.List, f)
		size += len(f.Content)
	}
	if size > wire.MaxContent {
		return fmt.Errorf("isolate: change files: %w", ErrTooLarge)
	}
	if _, err := i.fileRequest(ctx, wire.KindChange, &m); err != nil {
		return fmt.Errorf("isolate: change files: %w", err)
	}
	return nil
}

// Stat describes a path.
func (i *Init) Stat(ctx context.Context, path string) (FileInfo, error) {
	frame, err := i.fileCall(ctx, wire.KindStat, "stat", &wire.File{Path: path})
	if err != nil {
		return FileInfo{}, err
	}
	var m wire.Info
	if err := frame.Decode(&m); err != nil {
		return FileInfo{}, err
	}
	return fileInfo(m), nil
}

// List describes the entries of a directory in byte order; ErrTooLarge beyond 100,000.
func (i *Init) List(ctx context.Context, path string) ([]FileInfo, error) {
	frame, err := i.fileCall(ctx, wire.KindList, "list", &wire.File{Path: path})
	if err != nil {
		return nil, err
	}
	var m wire.Infos
	if err := frame.Decode(&m); err != nil {
		return nil, err
	}
	infos := make([]FileInfo, 0, len(m.Entries))
	for _, e := range m.Entries {
		infos = append(infos, fileInfo(e))
	}
	return infos, nil
}

func (i *Init) fileCall(ctx context.Context, kind wire.Kind, verb string, m *wire.File, fds ...int) (wire.Frame, error) {
	frame, err := i.fileRequest(ctx, kind, m, fds...)
	if err != nil {
		return wire.Frame{}, fmt.Errorf("isolate: %s %q: %w", verb, m.Path, err)
	}
	return frame, nil
}

// fileRequest makes one file call at a time.
func (i *Init) fileRequest(ctx context.Context, kind wire.Kind, m wire.Body, fds ...int) (wire.Frame, error) {
	select {
	case i.fileUse <- struct{}{}:
		defer func() { <-i.fileUse }()
	case <-ctx.Done():
		return wire.Frame{}, ctx.Err()
	}
	frame, err := i.call(ctx, kind, m, fds...)
	if errors.Is(err, unix.EFBIG) {
		err = ErrTooLarge
	}
	return frame, err
}

func fileInfo(m wire.Info) FileInfo {
	return FileInfo{Name: m.Name, Mode: fileMode(m.Mode), Size: m.Size, ModTime: time.Unix(0, m.ModTimeNs)}
}

// fileMode turns st_mode into Go's.
func fileMode(st uint64) fs.FileMode {
	mode := fs.FileMode(st & 0o777)
	for bit, is := range map[uint64]fs.FileMode{
		unix.S_IFDIR: fs.ModeDir, unix.S_IFLNK: fs.ModeSymlink, unix.S_IFIFO: fs.ModeNamedPipe,
		unix.S_IFSOCK: fs.ModeSocket, unix.S_IFBLK: fs.ModeDevice, unix.S_IFCHR: fs.ModeDevice | fs.ModeCharDevice,
	} {
		if st&unix.S_IFMT == bit {
			mode |= is
		}
	}
	for bit, is := range map[uint64]fs.FileMode{
		unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid, unix.S_ISVTX: fs.ModeSticky,
	} {
		if st&bit != 0 {
			mode |= is
		}
	}
	return mode
}
