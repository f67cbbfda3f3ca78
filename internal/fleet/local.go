package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/natsboot"
	"github.com/warmfleet/warmfleet/internal/scheduler"
	"github.com/warmfleet/warmfleet/internal/worker"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// joinTimeout bounds the wait for a process that holds the state directory to be ready.
const joinTimeout = 15 * time.Second

// joinPoll is how often a joining process looks whether it is.
const joinPoll = 20 * time.Millisecond

// localPullWait is short: a command that has done its work should not wait for a pull to expire.
const localPullWait = 100 * time.Millisecond

// Local is the fleet of a state directory: this process runs its server and scheduler, or
// has joined the process that does. Workers are added to it.
type Local struct {
	*Fleet
	dir string
	log zerolog.Logger

	lock   *natsboot.Lock // nil if joined
	server *natsboot.Server
	joined *natsboot.Joined

	stopScheduler context.CancelFunc
	tasks         sync.WaitGroup // the scheduler
	stopWorkers   context.CancelFunc
	workerLife    context.Context
	workers       sync.WaitGroup
	failed        chan error // a scheduler or worker that ended by itself
}

// LocalOptions say how a local fleet is opened.
type LocalOptions struct {
	StateDir string
	// Listen is host:port for NATS clients; "" is a random port on loopback.
	Listen string
	// Context saves the nats context warmfleet-local for people.
	Context bool
	// MustHold makes it an error that another process holds the state directory.
	MustHold bool
	// Keep says how long checkpoints are kept, the default if nil.
	Keep *scheduler.Keep
	Log  zerolog.Logger
}

// OpenLocal starts the fleet of a state directory, or joins it where it runs already.
func OpenLocal(ctx context.Context, o LocalOptions) (*Local, error) {
	l := &Local{dir: o.StateDir, log: o.Log, failed: make(chan error, 8)}
	l.workerLife, l.stopWorkers = context.WithCancel(context.WithoutCancel(ctx))
	if err := l.open(ctx, o); err != nil {
		return nil, errors.Join(advised(err), l.Close(context.WithoutCancel(ctx)))
	}
	return l, nil
}

// advised adds what to do about an error that people can mend by a flag.
func advised(err error) error {
	switch {
	case errors.Is(err, natsboot.ErrListen):
		return fmt.Errorf("%w: stop what listens there, or name another address with --listen", err)
	case errors.Is(err, natsboot.ErrStorage), errors.Is(err, events.ErrStorage):
		return fmt.Errorf("%w: make room, or name another directory with --state-dir", err)
	default:
		return err
	}
}

func (l *Local) open(ctx context.Context, o LocalOptions) error {
	wait, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	var err error
	if l.lock, l.joined, err = natsboot.Acquire(wait, o.StateDir); err != nil {
		return err
	}
	if l.joined != nil {
		return l.join(ctx, o)
	}
	l.server, err = natsboot.Start(ctx, natsboot.Options{Lock: l.lock, Listen: o.Listen, Context: o.Context, Log: o.Log})
	if err != nil {
		return err
	}
	js, err := l.connect("warmfleet")
	if err != nil {
		return err
	}
	layers, err := l.connect("warmfleet layers")
	if err != nil {
		js.Conn().Close()
		return err
	}
	if err := l.use(ctx, js, Options{Declare: true, Layers: layers}); err != nil {
		return err
	}
	return l.schedule(ctx, o.Keep)
}

// use opens the fleet on its two connections, which are closed when that fails.
func (l *Local) use(ctx context.Context, js jetstream.JetStream, o Options) error {
	f, err := Open(ctx, js, o)
	if err != nil {
		js.Conn().Close()
		o.Layers.Conn().Close()
		return err
	}
	l.Fleet = f
	return nil
}

// connect makes one more connection inside the process.
func (l *Local) connect(name string) (jetstream.JetStream, error) {
	nc, err := l.server.Connect(nats.Name(name))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("fleet: open JetStream: %w", err)
	}
	return js, nil
}

func (l *Local) join(ctx context.Context, o LocalOptions) error {
	if o.MustHold {
		return fmt.Errorf("fleet: open %s: process %d serves it already at %s: stop that or use another --state-dir", o.StateDir, l.joined.PID, l.joined.Env.URL)
	}
	c, err := l.joined.Dial(ctx, natsboot.ConnectOptions{Name: "warmfleet", Log: o.Log})
	if err != nil {
		return err
	}
	if err := awaitDeclared(ctx, c.JS); err != nil {
		c.Close()
		return err
	}
	layers, err := l.joined.Dial(ctx, natsboot.ConnectOptions{Name: "warmfleet layers", Log: o.Log})
	if err != nil {
		c.Close()
		return err
	}
	return l.use(ctx, c.JS, Options{Layers: layers.JS})
}

// awaitDeclared waits for the process that holds the state directory to have set the fleet up.
func awaitDeclared(ctx context.Context, js jetstream.JetStream) error {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	tick := time.NewTicker(joinPoll)
	defer tick.Stop()
	for {
		_, err := Open(ctx, js, Options{})
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

// schedule runs the scheduler and returns when it answers.
func (l *Local) schedule(ctx context.Context, keep *scheduler.Keep) error {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stopScheduler = stop
	ready := make(chan struct{})
	s := l.Fleet.Scheduler(localPullWait, l.log)
	if keep != nil {
		s.SetKeep(*keep)
	}
	l.tasks.Go(func() {
		if err := s.Run(life, func() { close(ready) }); err != nil {
			l.fail(err)
		}
	})
	select {
	case <-ready:
		return nil
	case err := <-l.failed:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Holds tells whether this process runs the server.
func (l *Local) Holds() bool { return l.lock != nil }

// URL is where NATS clients connect.
func (l *Local) URL() string {
	if l.server != nil {
		return l.server.URL()
	}
	return l.joined.Env.URL
}

// fail reports the end of a scheduler or worker. One error is enough: nobody may be listening.
func (l *Local) fail(err error) {
	select {
	case l.failed <- err:
	default:
		l.log.Error().Err(err).Msg("ended by itself")
	}
}

// Failed delivers the error of a scheduler or worker that ended by itself.
func (l *Local) Failed() <-chan error { return l.failed }

// AddWorker starts a worker in this process, with a state directory of its own below the
// fleet's, and returns when it serves. Name, HostID and StateDir are filled in where empty.
func (l *Local) AddWorker(ctx context.Context, cfg worker.Config) error {
	dir, lock, err := workerDir(l.dir)
	if err != nil {
		return err
	}
	cfg.StateDir, cfg.PullWait = dir, localPullWait
	if cfg.Name == "" {
		cfg.Name = "local-" + events.NewID()
	}
	w, err := l.Fleet.Worker(ctx, cfg, l.log)
	if err != nil {
		lock.Close()
		return err
	}
	ready := make(chan struct{})
	l.workers.Go(func() {
		defer lock.Close()
		defer w.Close()
		if err := w.Run(l.workerLife, func() { close(ready) }); err != nil && l.workerLife.Err() == nil {
			l.fail(err)
		}
	})
	select {
	case <-ready:
		return nil
	case err := <-l.failed:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// workerDir returns the first worker directory that no live worker uses, and its lock, so
// that the next run finds the bases of the last one.
func workerDir(state string) (string, *os.File, error) {
	for i := 1; ; i++ {
		dir := filepath.Join(state, "worker-"+strconv.Itoa(i))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return "", nil, fmt.Errorf("fleet: make worker directory: %w: use --state-dir to name another place", err)
		}
		f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return "", nil, fmt.Errorf("fleet: lock worker directory: %w", err)
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return dir, f, nil
		}
		f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return "", nil, fmt.Errorf("fleet: lock worker directory %s: %w", dir, err)
		}
	}
}

// StopWorkers drains the workers of this process and waits for them.
func (l *Local) StopWorkers() {
	l.stopWorkers()
	l.workers.Wait()
}

// Close drains the workers, waits until no joined process needs the server any more (or
// ctx ends), and stops the rest.
func (l *Local) Close(ctx context.Context) error {
	l.StopWorkers()
	var errs []error
	if l.server != nil {
		if err := l.lock.Drain(ctx); err != nil {
			l.log.Info().Err(err).Msg("other processes still use this fleet")
		}
	}
	if l.stopScheduler != nil {
		l.stopScheduler()
	}
	l.tasks.Wait()
	if l.Fleet != nil {
		l.Fleet.Close()
	}
	if l.server != nil {
		errs = append(errs, l.server.Stop(ctx))
	}
	if l.lock != nil {
		errs = append(errs, l.lock.Close())
	}
	if l.joined != nil {
		errs = append(errs, l.joined.Close())
	}
	return errors.Join(errs...)
}

// HostID is this host's id: the flag's value, or /etc/machine-id, or "".
func HostID(flag string) string {
	if flag != "" {
		return flag
	}
	b, err := os.ReadFile("/etc/machine-id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Layers is the driver that sandboxes' trees are to be made with: the flag's value, or $WARMFLEET_LAYERS, or "".
func Layers(flag string) string {
	if flag != "" {
		return flag
	}
	return os.Getenv("WARMFLEET_LAYERS")
}

// Dir is the state directory.
func (l *Local) Dir() string { return l.dir }
