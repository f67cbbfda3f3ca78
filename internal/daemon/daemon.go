// Package daemon is what the fleet's daemons have in common: connection flags, a log, the
// line that says they are ready, health and metrics over HTTP, and an orderly end.
//
// It must not know what a daemon does.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/warmfleet/warmfleet/internal/natsboot"
	"github.com/warmfleet/warmfleet/internal/termsafe"
)

// ErrGuarantee is what an error matches that says that this machine lacks what was required (exit 10).
var ErrGuarantee = errors.New("daemon: a required guarantee does not hold")

// ErrUsage is what an error matches that people can mend on the command line (exit 2).
var ErrUsage = errors.New("usage")

const (
	// awaitPoll is how often a starting daemon looks whether its server is there.
	awaitPoll = 50 * time.Millisecond
	// awaitSay is how often it says that it is not.
	awaitSay = 5 * time.Second
)

// Daemon is one daemon's process.
type Daemon struct {
	// Name is the program's name.
	Name string
	// Conn are the connection flags.
	Conn natsboot.ConnFlags
	// Log goes to stderr as JSON.
	Log zerolog.Logger
	// HTTP is host:port of health and metrics, "" for none.
	HTTP string

	ready   atomic.Bool
	nc      *natsboot.Connection
	metrics *prometheus.Registry // nil where nobody can ask for them
}

// Measure adds metrics to what --http shows. It panics when they clash with others, which is a fault of the program.
func (d *Daemon) Measure(c prometheus.Collector) {
	if d.metrics != nil {
		d.metrics.MustRegister(c)
	}
}

// Command returns the daemon's command, with the common flags registered. run serves until
// its context ends and calls d.Ready once it does.
func (d *Daemon) Command(short string, run func(ctx context.Context, nc *natsboot.Connection) error) *cobra.Command {
	c := &cobra.Command{
		Use: d.Name, Short: short, SilenceUsage: true, SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error { return d.run(c.Context(), run) },
	}
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return Usage(err) })
	c.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return Usage(fmt.Errorf("takes no arguments, not %q: see %s --help", args[0], d.Name))
		}
		return nil
	}
	d.Conn.Register(c.Flags())
	c.Flags().StringVar(&d.HTTP, "http", "", "host:port for /healthz, /readyz and /metrics")
	d.Log = zerolog.New(safe{os.Stderr}).With().Timestamp().Str("component", d.Name).Logger()
	return c
}

// safe takes lines of JSON and writes them so that a terminal shows what is in them, whoever chose it.
type safe struct{ w io.Writer }

func (s safe) Write(line []byte) (int, error) {
	if _, err := s.w.Write(termsafe.JSON(line)); err != nil {
		return 0, err
	}
	return len(line), nil
}

// Main runs the command and returns the process's exit code. SIGTERM and SIGINT end it in order.
func Main(c *cobra.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := c.ExecuteContext(ctx)
	if err == nil || ctx.Err() != nil && errors.Is(err, context.Canceled) { // stopped before it was ready
		return 0
	}
	fmt.Fprintf(os.Stderr, "%s: %s\n", c.Name(), termsafe.Text(err.Error()))
	if errors.Is(err, natsboot.ErrUnreachable) {
		return 8
	}
	if errors.Is(err, natsboot.ErrNoStateDir) || errors.Is(err, ErrUsage) {
		return 2
	}
	if errors.Is(err, ErrGuarantee) {
		return 10
	}
	return 1
}

// Guarantee makes an error one of ErrGuarantee.
func Guarantee(err error) error { return guarantee{err} }

type guarantee struct{ error }

func (g guarantee) Is(target error) bool { return target == ErrGuarantee }
func (g guarantee) Unwrap() error        { return g.error }

// Usage makes an error one of ErrUsage; nil stays nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return usage{err}
}

type usage struct{ error }

func (u usage) Is(target error) bool { return target == ErrUsage }
func (u usage) Unwrap() error        { return u.error }

func (d *Daemon) run(ctx context.Context, run func(ctx context.Context, nc *natsboot.Connection) error) error {
	nc, err := d.Dial(ctx, d.Name)
	if err != nil {
		return err
	}
	defer nc.Close()
	d.nc = nc
	stop, err := d.listen()
	if err != nil {
		return err
	}
	defer stop()
	d.await(ctx, nc)
	return run(ctx, nc)
}

// await returns once the server is there, and says now and then that it is not.
func (d *Daemon) await(ctx context.Context, nc *natsboot.Connection) {
	tick := time.NewTicker(awaitPoll)
	defer tick.Stop()
	for said := (time.Time{}); !nc.IsConnected() && ctx.Err() == nil; {
		if time.Since(said) > awaitSay {
			d.Log.Warn().Str("url", nc.URL).Msg("NATS unreachable: trying again")
			said = time.Now()
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// Dial makes a connection of the daemon, with the inbox of its role (deploy/nats.conf).
func (d *Daemon) Dial(ctx context.Context, name string) (*natsboot.Connection, error) {
	return d.Conn.Dial(ctx, natsboot.ConnectOptions{Name: name, InboxPrefix: "_INBOX_" + d.Name, Daemon: true, Log: d.Log})
}

// Ready says on stderr and over HTTP that the daemon serves.
func (d *Daemon) Ready(format string, args ...any) {
	d.ready.Store(true)
	fmt.Fprintf(os.Stderr, "ready: "+format+"\n", args...)
}

// listen serves health and metrics, if asked to.
func (d *Daemon) listen() (stop func(), err error) {
	if d.HTTP == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", d.HTTP)
	if err != nil {
		return nil, fmt.Errorf("listen for --http on %s: %w: choose another address", d.HTTP, err)
	}
	d.metrics = prometheus.NewRegistry()
	d.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, `{"status":"ok"}`) })
	mux.HandleFunc("GET /readyz", d.readyz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(d.metrics, promhttp.HandlerOpts{}))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			d.Log.Error().Err(err).Msg("serve health and metrics")
		}
	}()
	return func() {
		srv.Close()
		<-done
	}, nil
}

func (d *Daemon) readyz(w http.ResponseWriter, _ *http.Request) {
	switch {
	case !d.nc.IsConnected():
		http.Error(w, "NATS is not connected", http.StatusServiceUnavailable)
	case !d.ready.Load():
		http.Error(w, "starting", http.StatusServiceUnavailable)
	default:
		fmt.Fprintln(w, `{"status":"ok"}`)
	}
}
