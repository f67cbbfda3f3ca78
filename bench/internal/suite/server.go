package suite

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/fleet"
	"github.com/warmfleet/warmfleet/internal/natsboot"
	"github.com/warmfleet/warmfleet/internal/worker"
)

// hostID stands for this host: not every machine has an id.
const hostID = "benchhost"

// server is an embedded server with the fleet's streams, and what runs on it.
type server struct {
	*fleet.Fleet
	lock *natsboot.Lock
	srv  *natsboot.Server
	nc   *nats.Conn

	life  context.Context
	stop  context.CancelFunc
	tasks sync.WaitGroup
}

// startServer starts a server with its data in dir, as `warmfleet up` does, but for the
// nats context that it writes into the user's configuration.
func startServer(ctx context.Context, dir string) (*server, error) {
	s := &server{}
	s.life, s.stop = context.WithCancel(ctx)
	if err := s.open(ctx, dir); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// startFleet starts a server with a scheduler.
func startFleet(ctx context.Context, dir string) (*server, error) {
	s, err := startServer(ctx, dir)
	if err != nil {
		return nil, err
	}
	if err := s.run(s.Scheduler(0, zerolog.Nop()).Run); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// startWorking starts a fleet with a worker in this process, and follows its plans.
func startWorking(ctx context.Context, dir string, cfg worker.Config) (*server, *follower, error) {
	s, err := startFleet(ctx, dir)
	if err != nil {
		return nil, nil, err
	}
	_, err = s.hire(ctx, dir, cfg, zerolog.Nop())
	if err != nil {
		return nil, nil, errors.Join(err, s.close())
	}
	f, err := s.follow()
	if err != nil {
		return nil, nil, errors.Join(err, s.close())
	}
	return s, f, nil
}

func (s *server) open(ctx context.Context, dir string) error {
	state, err := natsboot.StateDir(dir)
	if err != nil {
		return err
	}
	if s.lock, _, err = natsboot.Acquire(ctx, state); err != nil {
		return err
	}
	if s.srv, err = natsboot.Start(ctx, natsboot.Options{Lock: s.lock, Log: zerolog.Nop()}); err != nil {
		return err
	}
	if s.nc, err = s.srv.Connect(nats.Name("bench")); err != nil {
		return err
	}
	js, err := jetstream.New(s.nc)
	if err != nil {
		return err
	}
	s.Fleet, err = fleet.Open(ctx, js, fleet.Options{Declare: true})
	return err
}

// run runs a service until close, and returns when it is ready.
func (s *server) run(service func(ctx context.Context, ready func()) error) error {
	ready, failed := make(chan struct{}), make(chan error, 1)
	s.tasks.Go(func() { failed <- service(s.life, func() { close(ready) }) })
	select {
	case <-ready:
		return nil
	case err := <-failed:
		return err
	case <-s.life.Done():
		return context.Cause(s.life)
	}
}

// hired is a worker in this process that can be stopped before the server is.
type hired struct {
	*worker.Worker
	stop func() // returns when it has ended
}

// hire runs a worker whose state lies below dir.
func (s *server) hire(ctx context.Context, dir string, cfg worker.Config, log zerolog.Logger) (*hired, error) {
	if cfg.Name == "" {
		cfg.Name = "bench"
	}
	cfg.HostID, cfg.StateDir, cfg.Isolation, cfg.DrainTimeout = hostID, filepath.Join(dir, "worker"), worker.Preferred, time.Second
	w, err := s.Worker(ctx, cfg, log)
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	life, leave := context.WithCancel(s.life)
	h := &hired{Worker: w, stop: func() {
		leave()
		<-ended
	}}
	return h, s.run(func(_ context.Context, ready func()) error {
		defer close(ended)
		defer w.Close()
		return w.Run(life, ready)
	})
}

func (s *server) close() error {
	s.stop()
	s.tasks.Wait()
	var errs []error
	if s.nc != nil {
		s.nc.Close()
	}
	if s.srv != nil {
		errs = append(errs, s.srv.Stop(context.Background()))
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// startStoring starts engines whose checkpoints become portable on one server; end ends both.
func startStoring(ctx context.Context, dir string, n int) (engines []*engine, end func(), err error) {
	s, err := startServer(ctx, filepath.Join(dir, "server"))
	if err != nil {
		return nil, nil, err
	}
	end = func() {
		for _, g := range engines {
			g.close()
		}
		_ = s.close() // what it kept goes with its directory
	}
	for i := range n {
		g, err := newEngine(ctx, filepath.Join(dir, fmt.Sprintf("engine-%d", i)), stored{s.Store, s.Checkpoints})
		if err != nil {
			end()
			return nil, nil, err
		}
		engines = append(engines, g)
	}
	return engines, end, nil
}
