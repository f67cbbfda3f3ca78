// Package natsboot brings a process and a NATS server together: it finds and locks the
// state directory, runs the embedded server there, or joins the one of another process, and
// connects to servers elsewhere by the flags and variables of the nats command line.
//
// It knows directories, processes and connections. It must not know streams, subjects or
// plans.
package natsboot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
)

// Errors of Start that callers check with errors.Is.
var (
	// ErrListen says that the address is taken or cannot be listened on.
	ErrListen = errors.New("cannot listen")
	// ErrStorage says that the state directory cannot be written: full, or read-only.
	ErrStorage = errors.New("cannot store")
	// ErrNotLoopback refuses a listener that other hosts could reach.
	ErrNotLoopback = errors.New("not a loopback address")
)

// Options configure an embedded server.
type Options struct {
	// Lock of the state directory, from Acquire. Required; stays the caller's.
	Lock *Lock
	// Listen is host:port for clients. Default "127.0.0.1:0": the port of the last run when
	// that is free, so that nats.env stays true, else a random one.
	Listen string
	// AllowRemote admits a Listen that is not loopback.
	AllowRemote bool
	// Context writes the warmfleet-local nats context.
	Context bool
	// MaxStore limits stored bytes. Default: three quarters of the free disk and of what is
	// stored already, so that a full store is an answer and not a full disk.
	MaxStore int64
	Log      zerolog.Logger
}

const (
	defaultListen = "127.0.0.1:0"
	// maxBuffered is the ingest buffer of one stream in bytes. The server's default of
	// 128 MiB answers 429 when many layers arrive at once.
	maxBuffered = 512 << 20
	// probeSize is what must fit on the disk for a server to start.
	probeSize = 1 << 20
	// stopTimeout bounds the shutdown of a server that failed to start.
	stopTimeout = 10 * time.Second
)

// Server is a running embedded server.
type Server struct {
	srv  *server.Server
	env  Env
	lock *Lock
}

// Start runs a server whose data is in <state directory>/jetstream, writes nats.env, and
// returns when it takes connections. Errors are ErrListen, ErrStorage, ErrNotLoopback, or
// what ctx says; each is one line.
func Start(ctx context.Context, o Options) (*Server, error) {
	s, err := start(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("natsboot: start server: %w", err)
	}
	return s, nil
}

func start(ctx context.Context, o Options) (*Server, error) {
	dir := o.Lock.Dir()
	if err := probeStorage(dir); err != nil {
		return nil, err
	}
	env, err := credentials(dir)
	if err != nil {
		return nil, err
	}
	host, port, err := listenAddress(o, env.URL)
	if err != nil {
		return nil, err
	}
	srv, err := run(ctx, o.Log, serverOptions(o, env, host, port))
	if err != nil {
		return nil, err
	}
	s := &Server{srv: srv, lock: o.Lock}
	env.URL = (&url.URL{Scheme: "nats", Host: clientAddress(srv)}).String()
	s.env = env
	err = env.write(dir)
	if err == nil && o.Context {
		err = writeContext(ctx, env)
	}
	if err == nil {
		err = o.Lock.ready()
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		return nil, errors.Join(storageError(err), s.Stop(ctx))
	}
	return s, nil
}

func serverOptions(o Options, env Env, host string, port int) *server.Options {
	if port == 0 {
		port = server.RANDOM_PORT
	}
	return &server.Options{
		ServerName:        "warmfleet",
		Host:              host,
		Port:              port,
		Username:          env.User,
		Password:          env.Password,
		JetStream:         true,
		StoreDir:          o.Lock.Dir(), // explicit: the default is a temporary place (case I4)
		JetStreamMaxStore: o.MaxStore,
		// The default acknowledges before fsync, and syncs every two minutes.
		SyncAlways:             true,
		StreamMaxBufferedSize:  maxBuffered,
		NoSigs:                 true, // signals are this process's, not the server's
		DisableJetStreamBanner: true,
	}
}

// run starts a server and waits until it serves.
func run(ctx context.Context, log zerolog.Logger, so *server.Options) (*server.Server, error) {
	srv, err := server.NewServer(so)
	if err != nil {
		return nil, err
	}
	logger := &serverLog{log: log}
	srv.SetLogger(logger, false, false)
	started := make(chan struct{})
	go func() {
		defer close(started)
		srv.Start() // returns when the store is read and the listener is open, or after Shutdown
	}()
	select {
	case <-started:
		err = verdict(srv, logger, so)
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		srv.Shutdown()
		<-started
		srv.WaitForShutdown()
		return nil, err
	}
	return srv, nil
}

// verdict says whether a server that has started is of use.
func verdict(srv *server.Server, logger *serverLog, so *server.Options) error {
	ready := srv.ReadyForConnections(time.Second)
	fatal := logger.fatalMessage()
	addr := net.JoinHostPort(so.Host, strconv.Itoa(so.Port))
	switch {
	case ready && srv.JetStreamEnabled() && fatal == "":
		return nil
	case fatal == "":
		return fmt.Errorf("%w: JetStream is not available in %s", ErrStorage, so.StoreDir)
	case srv.Addr() == nil && srv.JetStreamEnabled():
		return fmt.Errorf("%w on %s: %s", ErrListen, addr, fatal)
	default:
		return fmt.Errorf("%w in %s: %s", ErrStorage, so.StoreDir, fatal)
	}
}

// URL returns where clients connect, without credentials.
func (s *Server) URL() string { return s.env.URL }

// Env returns what nats.env holds.
func (s *Server) Env() Env { return s.env }

// Connect connects inside the process, as the same user that nats.env names.
func (s *Server) Connect(opts ...nats.Option) (*nats.Conn, error) {
	own := []nats.Option{nats.InProcessServer(s.srv), nats.UserInfo(s.env.User, s.env.Password), nats.MaxReconnects(-1)}
	nc, err := nats.Connect(s.env.URL, append(own, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("natsboot: connect in process: %w", err)
	}
	return nc, nil
}

// Stop stops the server and waits until its data is written. Nobody can join from then
// on; the lock stays held. A context that ends first leaves the rest to happen behind.
func (s *Server) Stop(ctx context.Context) error {
	err := s.lock.notReady()
	if err != nil {
		err = fmt.Errorf("natsboot: stop server: %w", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.srv.Shutdown()
		s.srv.WaitForShutdown()
	}()
	select {
	case <-done:
		return err
	case <-ctx.Done():
		return errors.Join(err, fmt.Errorf("natsboot: stop server: %w", ctx.Err()))
	}
}

// listenAddress returns the host and port of o.Listen. Port 0 becomes the port of last, the
// URL of the last run, when it is free.
func listenAddress(o Options, last string) (string, int, error) {
	listen := o.Listen
	if listen == "" {
		listen = defaultListen
	}
	host, text, err := net.SplitHostPort(listen)
	if err != nil {
		return "", 0, fmt.Errorf("%w on %q: want host:port", ErrListen, listen)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("%w on %q: port %q", ErrListen, listen, text)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	if ip := net.ParseIP(host); !o.AllowRemote && (ip == nil || !ip.IsLoopback()) {
		return "", 0, fmt.Errorf("listen on %q: %w: every host that reaches it could submit plans", listen, ErrNotLoopback)
	}
	if port == 0 {
		return host, lastPort(host, last), nil
	}
	if err := probeListen(host, int(port)); err != nil {
		return "", 0, fmt.Errorf("%w on %s: %w", ErrListen, listen, err)
	}
	return host, int(port), nil
}

// lastPort returns the port of the URL if one may listen there, else 0.
func lastPort(host, last string) int {
	u, err := url.Parse(last)
	if err != nil {
		return 0
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil || probeListen(host, port) != nil {
		return 0
	}
	return port
}

// probeListen listens for a moment: its error says more than the server's.
func probeListen(host string, port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	if err != nil {
		return err
	}
	return l.Close()
}

// clientAddress is where clients of this host reach the listener.
func clientAddress(srv *server.Server) string {
	addr, ok := srv.Addr().(*net.TCPAddr)
	if !ok {
		return ""
	}
	if addr.IP.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(addr.Port))
	}
	return addr.String()
}

// probeStorage writes to the directory as the server will, for an error that says more
// than the server's.
func probeStorage(dir string) error {
	f, err := os.CreateTemp(dir, ".probe-")
	if err != nil {
		return fmt.Errorf("%w in %s: %w", ErrStorage, dir, bare(err))
	}
	_, err = f.Write(make([]byte, probeSize))
	err = errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name()))
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, server.JetStreamStoreDir), 0o700)
	}
	if err != nil {
		return fmt.Errorf("%w in %s: %w", ErrStorage, dir, bare(err))
	}
	return nil
}

// storageError makes the errors of a full or read-only disk ErrStorage.
func storageError(err error) error {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS} {
		if errors.Is(err, errno) {
			return fmt.Errorf("%w: %w", ErrStorage, err)
		}
	}
	return err
}

// bare takes the path, which the caller names better, from a file error.
func bare(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
