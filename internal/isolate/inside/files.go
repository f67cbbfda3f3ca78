package inside

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"sort"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

const (
	maxLinks   = 40 // as the kernel's own limit
	maxEntries = 100_000
)

// fileCall is a request together with the workspace it was made for.
type fileCall struct {
	frame wire.Frame
	dir   string
}

// files answers requests for files of the workspace, on a thread that is as powerless as
// a command. The thread is made with the first request.
type files struct {
	conn *wire.Conn
	spec wire.Spec
	once sync.Once
	jobs chan fileCall
	busy sync.WaitGroup
}

func newFiles(conn *wire.Conn, spec wire.Spec) *files {
	return &files{conn: conn, spec: spec, jobs: make(chan fileCall, 8)}
}

func (f *files) submit(j fileCall) {
	f.once.Do(func() { go f.serve() })
	f.busy.Add(1)
	f.jobs <- j
}

// wait returns when every submitted request is answered.
func (f *files) wait() { f.busy.Wait() }

func (f *files) serve() {
	runtime.LockOSThread()
	broken := confine(f.spec)
	for j := range f.jobs {
		err := broken
		if err == nil {
			err = f.answer(j)
		}
		j.frame.Close()
		if err != nil {
			f.conn.Send(j.frame.ID, wire.KindFailed, failure(err))
		}
		f.busy.Done()
	}
}

func (f *files) answer(j fileCall) error {
	if j.dir == "" {
		return errNoWorkspace
	}
	root, err := unix.Open(j.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	if j.frame.Kind == wire.KindChange {
		return f.change(root, j.frame)
	}
	var m wire.File
	if err := j.frame.Decode(&m); err != nil {
		return err
	}
	switch j.frame.Kind {
	case wire.KindLook:
		content, err := lookAt(root, m)
		if err != nil {
			return err
		}
		return f.conn.Send(j.frame.ID, wire.KindContent, &content)
	case wire.KindRead:
		content, err := readFile(root, m)
		if err != nil {
			return err
		}
		return f.conn.Send(j.frame.ID, wire.KindContent, &content)
	case wire.KindStat:
		info, err := statPath(root, m.Path)
		if err != nil {
			return err
		}
		return f.conn.Send(j.frame.ID, wire.KindInfo, &info)
	case wire.KindList:
		infos, err := listDir(root, m.Path)
		if err != nil {
			return err
		}
		return f.conn.Send(j.frame.ID, wire.KindInfos, &infos)
	}
	if f.spec.NoSetuid && m.Mode&setidBits != 0 {
		return unix.EPERM
	}
	var content io.Reader = bytes.NewReader(m.Content)
	if m.From {
		if len(j.frame.Files) != 1 {
			return fmt.Errorf("write from %d descriptors", len(j.frame.Files))
		}
		content = j.frame.Files[0]
	}
	if err := writeFile(root, m, content); err != nil {
		return err
	}
	return f.conn.Send(j.frame.ID, wire.KindDone, nil)
}

func readFile(root int, m wire.File) (wire.Content, error) {
	// Non-blocking: a fifo must not hold this thread.
	fd, err := openIn(root, m.Path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return wire.Content{}, err
	}
	file := os.NewFile(uintptr(fd), m.Path)
	defer file.Close()
	if m.Part {
		return partOf(file, m)
	}
	return contentOf(file, m.Max)
}

// partOf reads a part of a file, which must not change between the parts: what a reader puts together was there at one moment.
func partOf(file *os.File, m wire.File) (wire.Content, error) {
	before, err := stampOf(file)
	if err != nil {
		return wire.Content{}, err
	}
	if m.Stamp != "" && m.Stamp != before.Stamp {
		return wire.Content{}, unix.ESTALE
	}
	buf := make([]byte, max(0, min(m.Max, before.Size-m.Offset)))
	n, err := file.ReadAt(buf, m.Offset)
	if err != nil && err != io.EOF {
		return wire.Content{}, err
	}
	after, err := stampOf(file)
	if err == nil && after.Stamp != before.Stamp {
		err = unix.ESTALE
	}
	before.Data = buf[:n]
	return before, err
}

// stampOf describes a regular file. Its time of change can't be set back, as that of its content can. A checkpoint mounts the
// workspace anew, so the device says nothing.
func stampOf(file *os.File) (wire.Content, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return wire.Content{}, err
	}
	stamp := fmt.Sprintf("%d-%d-%d", st.Ino, st.Size, st.Ctim.Nano())
	return wire.Content{Mode: uint64(st.Mode), Size: st.Size, Stamp: stamp}, regular(st)
}

// regular refuses what has no content of its own.
func regular(st unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		return unix.EISDIR
	}
	return unix.EINVAL
}

func statPath(root int, name string) (wire.Info, error) {
	fd, err := openIn(root, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return wire.Info{}, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return wire.Info{}, err
	}
	return infoOf(name[strings.LastIndexByte(name, '/')+1:], st), nil
}

func infoOf(name string, st unix.Stat_t) wire.Info {
	return wire.Info{Name: name, Mode: uint64(st.Mode), Size: st.Size, ModTimeNs: st.Mtim.Nano()}
}

// listDir describes the entries of a directory in byte order.
func listDir(root int, name string) (wire.Infos, error) {
	fd, err := openIn(root, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return wire.Infos{}, err
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	names, err := dir.Readdirnames(maxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return wire.Infos{}, err
	}
	if len(names) > maxEntries {
		return wire.Infos{}, unix.EFBIG
	}
	sort.Strings(names)
	var out wire.Infos
	for _, n := range names {
		var st unix.Stat_t
		if err := unix.Fstatat(fd, n, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			continue // removed meanwhile
		}
		out.Entries = append(out.Entries, infoOf(n, st))
	}
	return out, nil
}

// writeFile replaces a file whole: readers see the old content or the new. A link as the
// last element is written through where it leads below the root.
func writeFile(root int, m wire.File, content io.Reader) error {
	dir, base, err := resolveParent(root, m)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	mode := uint32(m.Mode)
	var st unix.Stat_t
	switch err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case errors.Is(err, fs.ErrNotExist):
		if mode == 0 {
			mode = 0o644
		}
	case err != nil:
		return err
	default:
		if err := regular(st); err != nil {
			return err
		}
		if mode == 0 {
			mode = st.Mode & 0o7777
		}
	}
	return replace(dir, base, content, mode)
}

// resolveParent opens the directory that holds the file and names the file in it.
func resolveParent(root int, m wire.File) (int, string, error) {
	name := m.Path
	for range maxLinks {
		parent, base := "", name
		if i := strings.LastIndexByte(name, '/'); i >= 0 {
			parent, base = name[:i+1], name[i+1:]
		}
		if base == "" || base == "." || base == ".." {
			return -1, "", unix.EISDIR
		}
		dir, err := openDir(root, parent, m.MkdirAll)
		if err != nil {
			return -1, "", err
		}
		target := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dir, base, target)
		if err != nil { // no link, or nothing there
			return dir, base, nil
		}
		unix.Close(dir)
		name = string(target[:n])
		if !strings.HasPrefix(name, "/") {
			name = parent + name
		}
	}
	return -1, "", unix.ELOOP
}

// openDir opens a directory below root, making it and its parents if asked to.
func openDir(root int, name string, make bool) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY
	fd, err := openIn(root, name, flags, 0)
	if err != unix.ENOENT || !make {
		return fd, err
	}
	trimmed := strings.TrimRight(name, "/")
	i := strings.LastIndexByte(trimmed, '/')
	parent, err := openDir(root, trimmed[:i+1], true)
	if err != nil {
		return -1, err
	}
	err = unix.Mkdirat(parent, trimmed[i+1:], 0o755)
	unix.Close(parent)
	if err != nil && err != unix.EEXIST {
		return -1, err
	}
	return openIn(root, name, flags, 0)
}

func replace(dir int, base string, content io.Reader, mode uint32) error {
	temp := fmt.Sprintf(".%s.%d.tmp", base[:min(len(base), 200)], os.Getpid()) // at most 255 bytes
	unix.Unlinkat(dir, temp, 0)                                                // of a crash
	fd, err := unix.Openat(dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), temp)
	_, err = io.Copy(file, content)
	if err == nil {
		err = unix.Fchmod(fd, mode)
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = unix.Renameat(dir, temp, dir, base)
	}
	if err != nil {
		unix.Unlinkat(dir, temp, 0)
	}
	return err
}
