package isolate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/mountfd"
	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

// busyWait bounds the wait for an upper directory that a dying sandbox still holds.
const busyWait = time.Second

// Mounter makes workspaces as detached mounts: descriptors that no mount namespace shows
// until Init.Attach, and that vanish when the last copy is closed. The caller closes what
// it gets after it was attached: an open copy keeps the mount busy (EBUSY at Detach).
// All mounts are nosuid and nodev. Safe for concurrent use.
type Mounter interface {
	// Overlay merges layers. Reads of the result do not need access to the paths.
	Overlay(ctx context.Context, o Overlay) (*os.File, error)
	// Bind shows a directory with all that is mounted below it.
	Bind(ctx context.Context, b Bind) (*os.File, error)
	Close() error
}

// Overlay says what to merge.
type Overlay struct {
	Lowers []string // closed layers, top first
	Upper  string   // takes the changes; "" for a read-only view
	Work   string   // empty directory on the upper's file system
	// Volatile skips the syncfs at unmount. The caller syncs what it keeps; the work
	// directory can't be used again.
	Volatile bool
	// Live: the last of Lowers is a directory of its real owner, who is shown as the sandbox; files of others belong to
	// nobody and can't be changed. It is only read, whoever else changes it. A file with several names that is
	// written to through one keeps its content under the others.
	Live bool
}

// ErrLive is wrapped by a failure to show a directory live: the kernel or its file system can't.
var ErrLive = errors.New("isolate: cannot show a directory as the lowest layer")

// Bind says which directory to show.
type Bind struct {
	Dir string
	// IDMap shows files of the directory's owner as the sandbox's own; files of others
	// belong to nobody and can't be changed. RungRoot only, ignored elsewhere.
	IDMap bool
}

// NewMounter returns the mounter of a rung: in this process as real root (trusted.overlay
// marks, directories can be renamed); a process in a user namespace otherwise
// (user.overlay marks; renaming a directory of a lower layer fails with EXDEV).
func NewMounter(r Rung) (Mounter, error) {
	switch r.namespaced() {
	case RungRoot:
		return &rootMounter{owners: map[owner]*os.File{}}, nil
	case RungUser:
		return &userMounter{turn: make(chan struct{}, 1)}, nil
	}
	return nil, fmt.Errorf("isolate: make mounter for %q: %w", r, ErrBare)
}

type owner struct{ uid, gid uint32 }

type rootMounter struct {
	mu     sync.Mutex
	owners map[owner]*os.File // user namespaces that map an owner to HostID
}

func (m *rootMounter) Overlay(ctx context.Context, o Overlay) (*os.File, error) {
	if !o.Live {
		return mountOverlay(ctx, mountfd.Overlay{Lowers: o.Lowers, Upper: o.Upper, Work: o.Work, Volatile: o.Volatile})
	}
	last := len(o.Lowers) - 1
	mapped, err := m.Bind(ctx, Bind{Dir: o.Lowers[last], IDMap: true})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLive, err)
	}
	defer mapped.Close()
	lowers := append(slices.Clone(o.Lowers[:last]), fmt.Sprintf("/proc/self/fd/%d", mapped.Fd()))
	f, err := mountOverlay(ctx, mountfd.Overlay{Lowers: lowers, Upper: o.Upper, Work: o.Work, Volatile: o.Volatile, Live: true})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLive, err)
	}
	return f, nil
}

func (m *rootMounter) Bind(_ context.Context, b Bind) (*os.File, error) {
	fd, err := mountfd.Tree(b.Dir, mountfd.Safe)
	if err != nil {
		return nil, fmt.Errorf("isolate: bind %q: %w", b.Dir, err)
	}
	file := os.NewFile(uintptr(fd), b.Dir)
	if !b.IDMap {
		return file, nil
	}
	var st unix.Stat_t
	err = unix.Fstatat(fd, "", &st, unix.AT_EMPTY_PATH)
	if err == nil {
		err = m.mapOwner(fd, owner{st.Uid, st.Gid})
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("isolate: bind %q: %w", b.Dir, err)
	}
	return file, nil
}

func (m *rootMounter) mapOwner(fd int, o owner) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	ns, ok := m.owners[o]
	if !ok {
		var err error
		if ns, err = mappingNamespace(o); err != nil {
			return err
		}
		m.owners[o] = ns
	}
	err := mountfd.SetAttr(fd, unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())})
	if err != nil {
		return fmt.Errorf("map owner %d:%d (does the file system allow mapped mounts?): %w", o.uid, o.gid, err)
	}
	return nil
}

func (m *rootMounter) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for o, ns := range m.owners {
		ns.Close()
		delete(m.owners, o)
	}
	return nil
}

// mappingNamespace makes a user namespace that maps an owner on disk to HostID. It lives
// as long as its descriptor; the process that is needed to make it does not.
func mappingNamespace(o owner) (*os.File, error) {
	p, err := spawn(modeHolder, "", &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: int(o.uid), HostID: HostID, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: int(o.gid), HostID: HostID, Size: 1}},
	})
	if err != nil {
		return nil, err
	}
	defer p.release()
	defer p.end()
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", p.os.Pid))
	if err != nil {
		return nil, fmt.Errorf("open user namespace: %w", err)
	}
	return ns, nil
}

// mountOverlay waits for an upper directory that a sandbox still holds in its death.
func mountOverlay(ctx context.Context, o mountfd.Overlay) (*os.File, error) {
	pause := time.Millisecond
	for end := time.Now().Add(busyWait); ; pause *= 2 {
		fd, err := o.Mount()
		if err == nil {
			return os.NewFile(uintptr(fd), "overlay"), nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return nil, fmt.Errorf("isolate: mount overlay: %w", err)
		}
		if o.Volatile { // the try that just failed has left the mark of an unclean end
			if err := os.RemoveAll(filepath.Join(o.Work, "work", "incompat")); err != nil {
				return nil, fmt.Errorf("isolate: mount overlay: %w", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// userMounter asks a process that is root of its own user and mount namespace, started
// with the first request and again when it died.
type userMounter struct {
	turn    chan struct{} // holds a value while a request is under way
	process *process
}

func (m *userMounter) Overlay(ctx context.Context, o Overlay) (*os.File, error) {
	f, err := m.ask(ctx, wire.KindOverlay, &wire.Overlay{Lowers: o.Lowers, Upper: o.Upper, Work: o.Work, Volatile: o.Volatile, Live: o.Live})
	if err != nil && o.Live {
		err = fmt.Errorf("%w: %w", ErrLive, err)
	}
	return f, err
}

func (m *userMounter) Bind(ctx context.Context, b Bind) (*os.File, error) {
	return m.ask(ctx, wire.KindBind, &wire.Bind{Dir: b.Dir})
}

func (m *userMounter) ask(ctx context.Context, kind wire.Kind, body wire.Body) (*os.File, error) {
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if m.process == nil {
		p, err := spawn(modeMounter, "", namespaces(RungUser, unix.CLONE_NEWNS))
		if err != nil {
			return nil, err
		}
		m.process = p
	}
	// A request takes milliseconds; being killed is its only cancellation.
	kill := m.process.os.Kill
	stop := context.AfterFunc(ctx, func() { kill() })
	frame, err := m.exchange(kind, body)
	alive := stop()
	if err != nil {
		err = fmt.Errorf("%w: mounter: %w: %s", ErrLost, err, m.process.lastWords())
		m.drop()
		return nil, errors.Join(ctx.Err(), err)
	}
	if !alive {
		m.drop() // it was killed after its answer: the next request is another's
	}
	if frame.Kind == wire.KindMount && len(frame.Files) == 1 {
		return frame.Files[0], nil
	}
	frame.Close()
	var f wire.Failure
	if err := frame.Decode(&f); err != nil {
		return nil, err
	}
	return nil, &f
}

func (m *userMounter) exchange(kind wire.Kind, body wire.Body) (wire.Frame, error) {
	if err := m.process.conn.Send(1, kind, body); err != nil {
		return wire.Frame{}, err
	}
	return m.process.conn.Recv()
}

func (m *userMounter) drop() {
	m.process.end()
	m.process.release()
	m.process = nil
}

func (m *userMounter) Close() error {
	m.turn <- struct{}{}
	defer func() { <-m.turn }()
	if m.process != nil {
		m.drop()
	}
	return nil
}

// serveMounter is the mounter process.
func serveMounter(control *os.File) int {
	conn, err := wire.NewConn(control)
	if err != nil {
		return 1
	}
	for {
		frame, err := conn.Recv()
		if err != nil {
			return 0 // the worker is gone
		}
		mount, err := answerMount(frame)
		if err != nil {
			f := wire.Failure{Text: err.Error()}
			var errno syscall.Errno
			if errors.As(err, &errno) {
				f.Errno = uint64(errno)
			}
			conn.Send(frame.ID, wire.KindFailed, &f)
			continue
		}
		conn.Send(frame.ID, wire.KindMount, nil, int(mount.Fd()))
		mount.Close() // an own copy would keep the mount busy
	}
}

func answerMount(frame wire.Frame) (*os.File, error) {
	switch frame.Kind {
	case wire.KindOverlay:
		var m wire.Overlay
		if err := frame.Decode(&m); err != nil {
			return nil, err
		}
		return mountOverlay(context.Background(), mountfd.Overlay{
			Lowers: m.Lowers, Upper: m.Upper, Work: m.Work, Volatile: m.Volatile, UserXattr: true, Live: m.Live,
		})
	case wire.KindBind:
		var m wire.Bind
		if err := frame.Decode(&m); err != nil {
			return nil, err
		}
		fd, err := mountfd.Tree(m.Dir, mountfd.Safe)
		if err != nil {
			return nil, fmt.Errorf("isolate: bind %q: %w", m.Dir, err)
		}
		return os.NewFile(uintptr(fd), m.Dir), nil
	}
	return nil, fmt.Errorf("isolate: unexpected frame %d", frame.Kind)
}
