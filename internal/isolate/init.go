package isolate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/mountfd"
	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

// startLimit bounds the start of an init, which takes milliseconds.
const startLimit = 10 * time.Second

// Config says how a sandbox is made.
type Config struct {
	Rung    Rung
	Network string   // NetworkNone (also ""), NetworkAllow or, where Rung.Mounts, NetworkProxy
	Expose  []string // absolute directories of the host, shown read-only at the same path
	Caches  []Cache
	// Scratch bounds /tmp, HOME and /dev/shm together, in bytes; 0: half of the memory.
	Scratch int64
	// Group, if set, bounds the commands. It is closed with the init, or when Start fails.
	Group Group
	// NoSetuid makes setting the setuid or setgid bit fail with EPERM.
	NoSetuid bool
	// Binary is the program that becomes init; "": warmfleet-init beside this
	// executable, or this executable.
	Binary string
	// Within is a directory of the worker's own: where AttachDir finds it, or directories below it, closed to the
	// sandbox's user, it lets that user's group pass. Only for a worker that is root.
	Within string
	// Log, if set, is told when an init dies on its own, with what it last wrote.
	Log func(message string)
}

// Init is a running sandbox. It is safe for concurrent use; one command runs at a time,
// others wait for their turn, and file calls go on beside it.
type Init struct {
	config  Config
	process *process
	private string   // made for a hosted init, "" else: it is or holds HOME
	secrets string   // where a hosted init keeps them, "" if it is private
	proxied *os.File // what Listener hands over; nil but with NetworkProxy
	turn    chan struct{}
	fileUse chan struct{}
	still   sync.RWMutex // held by Pause until Resume: no command is told to end meanwhile
	done    chan struct{}
	death   string // how it came; set before done is closed

	mu      sync.Mutex
	pending map[uint64]chan wire.Frame
	lastID  uint64
	closing bool
	holders atomic.Int32 // of its group: a start that succeeds, and the process
}

// Start makes a sandbox and returns when its init is ready. It has no workspace yet.
// ErrLost: the init died while starting; other errors name the step that failed.
func Start(ctx context.Context, c Config) (*Init, error) {
	i, err := start(ctx, c)
	if err != nil && c.Group != nil {
		err = errors.Join(err, c.Group.Close())
	}
	return i, err
}

func start(ctx context.Context, c Config) (*Init, error) {
	rung, err := c.validate()
	if err != nil {
		return nil, err
	}
	spec := wire.Spec{
		Version:  wire.Version,
		Network:  c.Network == NetworkAllow,
		Expose:   c.Expose,
		Scratch:  c.Scratch,
		NoSetuid: c.NoSetuid,
	}
	mounts, err := exposedMounts(c)
	defer closeAll(mounts)
	if err != nil {
		return nil, err
	}
	spec.Mounted = len(mounts) > 0
	for _, cache := range c.Caches {
		spec.Caches = append(spec.Caches, cache.Name)
	}
	spec.Doors = uint64(len(c.doors()))
	if c.Network == NetworkProxy {
		spec.Listen = ProxyPort
	}
	spec.Whole = c.Group != nil && c.Group.Whole()
	rung.tell(&spec)
	p, err := spawn(modeInit, c.Binary, rung.birth(spec.Network))
	if err != nil {
		return nil, err
	}
	i := &Init{
		config:  c,
		process: p,
		turn:    make(chan struct{}, 1),
		fileUse: make(chan struct{}, 1),
		done:    make(chan struct{}),
		pending: map[uint64]chan wire.Frame{},
	}
	if spec.Hosted {
		err = i.makePrivate() // before receive, which removes it
		spec.Private, spec.Secrets = i.private, i.secrets
	}
	i.holders.Store(2)
	go i.receive()
	if err == nil {
		err = i.prepare(ctx, &spec, mounts)
	}
	if err != nil {
		i.Close()
		return nil, fmt.Errorf("isolate: start init: %w", err)
	}
	i.leaveGroup()
	return i, nil
}

func (c Config) validate() (isolator, error) {
	rung, err := c.Rung.isolator()
	if err == nil {
		err = rung.check(c)
	}
	if err != nil {
		return nil, fmt.Errorf("isolate: start init: %w", err)
	}
	switch c.Network {
	case "", NetworkNone, NetworkAllow, NetworkProxy:
	default:
		return nil, fmt.Errorf("isolate: start init: unknown network %q", c.Network)
	}
	for _, dir := range c.Expose {
		if err := Exposable(dir); err != nil {
			return nil, fmt.Errorf("isolate: expose %q: %w", dir, err)
		}
	}
	for _, cache := range c.Caches {
		if err := ValidCache(cache.Name); err != nil {
			return nil, err
		}
	}
	return rung, nil
}

// Exposable refuses paths that are the sandbox's own.
func Exposable(dir string) error {
	if !path.IsAbs(dir) || path.Clean(dir) != dir || dir == "/" {
		return errors.New("want a clean absolute path below /")
	}
	if dir == "/run" || dir == "/home" {
		return fmt.Errorf("%s has directories of the sandbox's own: expose what is below it", dir)
	}
	for _, own := range []string{"/proc", "/sys", "/dev", Workspace, "/etc", SecretsDir, CachesDir, sandboxHome} {
		if dir == own || strings.HasPrefix(dir, own+"/") {
			return fmt.Errorf("%s is the sandbox's own", own)
		}
	}
	return nil
}

// exposedMounts takes the directories as real root, which may pass where the sandbox's id may not.
func exposedMounts(c Config) ([]*os.File, error) {
	if c.Rung.namespaced() != RungRoot {
		return nil, nil
	}
	exposed := c.Expose
	if c.Rung == RungStrong {
		runsc, err := FindRunsc()
		if err != nil {
			return nil, err
		}
		exposed = append(slices.Clone(exposed), runsc)
	}
	var mounts []*os.File
	for _, dir := range exposed {
		fd, err := mountfd.Tree(dir, mountfd.Safe|unix.MOUNT_ATTR_RDONLY)
		if err != nil {
			return mounts, fmt.Errorf("isolate: expose %q: %w", dir, err)
		}
		mounts = append(mounts, os.NewFile(uintptr(fd), dir))
	}
	return mounts, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

func (i *Init) prepare(ctx context.Context, spec *wire.Spec, mounts []*os.File) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	var fds []int
	for _, m := range mounts {
		fds = append(fds, int(m.Fd()))
	}
	for _, cache := range i.config.Caches {
		fds = append(fds, int(cache.Mount.Fd()))
	}
	fds = append(fds, i.config.doors()...)
	frame, err := i.call(ctx, wire.KindSpec, spec, fds...)
	if err != nil {
		return err
	}
	return i.takeReady(frame, spec.Listen != 0)
}

// receive hands answers to whoever waits, until the init is gone.
func (i *Init) receive() {
	var err error
	for {
		var frame wire.Frame
		if frame, err = i.process.conn.Recv(); err != nil {
			break
		}
		i.mu.Lock()
		answers, ok := i.pending[frame.ID]
		i.mu.Unlock()
		if !ok {
			frame.Close()
			continue
		}
		answers <- frame // never blocks: room for every answer of a request
	}
	if !errors.Is(err, io.EOF) {
		i.process.os.Kill()
	}
	i.death = fmt.Sprintf("%v, %s", err, i.process.reap())
	i.mu.Lock()
	unexpected := !i.closing
	i.mu.Unlock()
	if unexpected && i.config.Log != nil {
		i.config.Log(fmt.Sprintf("isolate: init %d died: %s", i.Pid(), i.death))
	}
	i.removePrivate()
	i.leaveGroup()
	close(i.done)
}

// leaveGroup closes the group if nobody else holds it.
func (i *Init) leaveGroup() {
	if i.config.Group == nil || i.holders.Add(-1) > 0 {
		return
	}
	if err := i.config.Group.Close(); err != nil && i.config.Log != nil {
		i.config.Log(err.Error())
	}
}

// maxAnswers is how many frames one request gets at most: started and exited.
const maxAnswers = 2

// send starts a request; drop must be called when its answers are not awaited any more.
func (i *Init) send(kind wire.Kind, body wire.Body, fds ...int) (id uint64, answers <-chan wire.Frame, err error) {
	ch := make(chan wire.Frame, maxAnswers)
	i.mu.Lock()
	i.lastID++
	id = i.lastID
	i.pending[id] = ch
	i.mu.Unlock()
	if err := i.process.conn.Send(id, kind, body, fds...); err != nil {
		i.drop(id)
		return 0, nil, fmt.Errorf("%w: %w", ErrLost, err)
	}
	return id, ch, nil
}

func (i *Init) drop(id uint64) {
	i.mu.Lock()
	delete(i.pending, id)
	i.mu.Unlock()
}

// call makes a request with one answer. A failure inside is the error.
func (i *Init) call(ctx context.Context, kind wire.Kind, body wire.Body, fds ...int) (wire.Frame, error) {
	id, answers, err := i.send(kind, body, fds...)
	if err != nil {
		return wire.Frame{}, err
	}
	defer i.drop(id)
	select {
	case frame := <-answers:
		return frame, failed(frame)
	case <-ctx.Done():
		return wire.Frame{}, ctx.Err()
	case <-i.done:
		select {
		case frame := <-answers: // it answered and died
			return frame, failed(frame)
		default:
			return wire.Frame{}, i.lost()
		}
	}
}

func failed(frame wire.Frame) error {
	if frame.Kind != wire.KindFailed {
		return nil
	}
	var f wire.Failure
	if err := frame.Decode(&f); err != nil {
		return err
	}
	return &f
}

// lost is for calls that found done closed.
func (i *Init) lost() error { return fmt.Errorf("%w: init: %s", ErrLost, i.death) }

// Attach shows a mount as the workspace. The mount stays the caller's to close, and must
// be closed before Detach.
func (i *Init) Attach(ctx context.Context, mount *os.File) error {
	if !i.config.Rung.Mounts() {
		return fmt.Errorf("isolate: attach a mount: %w", ErrBare)
	}
	if _, err := i.call(ctx, wire.KindAttach, &wire.Attach{}, int(mount.Fd())); err != nil {
		return fmt.Errorf("isolate: attach workspace: %w", err)
	}
	return nil
}

// AttachDir makes a directory the workspace, where workspaces are no mounts. It must be Rung.Owner's.
func (i *Init) AttachDir(ctx context.Context, dir string) error {
	if i.config.Rung.Mounts() {
		return fmt.Errorf("isolate: attach a directory: %w", ErrBare)
	}
	if err := i.letPass(dir); err != nil {
		return fmt.Errorf("isolate: attach workspace: %w", err)
	}
	if _, err := i.call(ctx, wire.KindAttach, &wire.Attach{Dir: dir}); err != nil {
		return fmt.Errorf("isolate: attach workspace: %w", err)
	}
	return nil
}

// Detach kills what runs (its Exec ends with CauseCancelled), what Start started too, and unmounts the workspace,
// never lazily: after success nothing can change its layers. EBUSY: a copy of the mount's
// descriptor is still open outside; the workspace stays attached.
func (i *Init) Detach(ctx context.Context) error {
	if _, err := i.call(ctx, wire.KindDetach, nil); err != nil {
		return fmt.Errorf("isolate: detach workspace: %w", err)
	}
	return nil
}

// Pid is the init's process id on the host.
func (i *Init) Pid() int { return i.process.os.Pid }

// Done is closed when the init and every process of its sandbox are dead.
func (i *Init) Done() <-chan struct{} { return i.done }

// Close kills the sandbox and returns when nothing of it is left, its mounts included.
// The second call does nothing.
func (i *Init) Close() error {
	i.mu.Lock()
	first := !i.closing
	i.closing = true
	i.mu.Unlock()
	if first && i.config.Rung.Mounts() {
		i.process.os.Kill()
	}
	if first && !i.config.Rung.Mounts() {
		i.process.conn.Hangup() // it ends its tree first
		select {
		case <-i.done:
		case <-time.After(killLimit):
			i.process.os.Kill()
		}
	}
	<-i.done
	if first {
		i.process.release()
		if f := i.Listener(); f != nil {
			f.Close()
		}
	}
	return nil
}
