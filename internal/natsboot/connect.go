package natsboot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nats-io/jsm.go/natscontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
)

// Errors of connecting that callers check with errors.Is.
var (
	// ErrUnreachable says that no server answers (exit 8).
	ErrUnreachable = errors.New("NATS unreachable")
	// ErrRefused says that a server answers and refuses the credentials (exit 5).
	ErrRefused = errors.New("NATS refuses the credentials")
)

// ConnectError says which servers could not be used. It is an ErrUnreachable or an
// ErrRefused, and its text is one line without secrets.
type ConnectError struct {
	URL  string // redacted
	Kind error  // ErrUnreachable or ErrRefused
	Err  error
}

func (e *ConnectError) Error() string {
	if e.Kind == ErrRefused {
		return fmt.Sprintf("natsboot: %v at %s; check --user and --password, --creds or --context", e.Kind, e.URL)
	}
	return fmt.Sprintf("natsboot: %v at %s: %v; start a server (warmfleet up) or name another with -s", e.Kind, e.URL, e.Err)
}

// Is makes the error one of its Kind.
func (e *ConnectError) Is(target error) bool { return target == e.Kind }

// Unwrap returns the client's error.
func (e *ConnectError) Unwrap() error { return e.Err }

// ConnectOptions are what a program adds to the user's flags.
type ConnectOptions struct {
	// Name of the connection, unless --connection-name is given.
	Name string
	// InboxPrefix, unless --inbox-prefix or the context has one. Users of deploy/nats.conf
	// may subscribe below the prefix of their role only.
	InboxPrefix string
	// Daemon waits for a server that is not there yet, and reconnects for ever. Others fail
	// at once.
	Daemon bool
	Log    zerolog.Logger
}

// Connection is a connection and its JetStream, in the domain that flags or context name.
type Connection struct {
	*nats.Conn
	JS  jetstream.JetStream
	URL string // redacted
}

const (
	reconnectWait   = 250 * time.Millisecond
	reconnectJitter = 250 * time.Millisecond
	// writeTimeout ends a write to a link that stands still. The client holds a lock
	// meanwhile, and its default is a minute.
	writeTimeout = 10 * time.Second
)

// Dial connects to the server that flags, variables and the context named by them tell,
// nats://127.0.0.1:4222 when they tell none. The error is a *ConnectError when the server
// is the reason.
func (f *ConnFlags) Dial(ctx context.Context, o ConnectOptions) (*Connection, error) {
	r, err := f.resolve()
	if err != nil {
		return nil, err
	}
	settings, err := r.settings(ctx)
	if err != nil {
		return nil, fmt.Errorf("natsboot: nats context %q: %w", r.Context, err)
	}
	opts, err := settings.NATSOptions(r.options(o)...)
	if err != nil {
		return nil, fmt.Errorf("natsboot: connect: %w", err)
	}
	if settings.InboxPrefix() == "" && o.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(o.InboxPrefix))
	}
	nc, err := dial(ctx, settings.ServerURL(), opts)
	if err != nil {
		return nil, err
	}
	js, err := r.jetStream(nc, settings)
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("natsboot: connect: %w", err)
	}
	return &Connection{Conn: nc, JS: js, URL: Redact(settings.ServerURL())}, nil
}

// Dial connects to the server that was joined.
func (j *Joined) Dial(ctx context.Context, o ConnectOptions) (*Connection, error) {
	f := &ConnFlags{Timeout: defaultTimeout} // no variable has a say
	opts := append(f.options(o), nats.UserInfo(j.Env.User, j.Env.Password))
	if o.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(o.InboxPrefix))
	}
	nc, err := dial(ctx, j.Env.URL, opts)
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("natsboot: connect: %w", err)
	}
	return &Connection{Conn: nc, JS: js, URL: j.Env.URL}, nil
}

// settings lays the flags over the context that they name, or over none.
func (f *ConnFlags) settings(ctx context.Context) (*natscontext.Context, error) {
	over := []natscontext.Option{
		natscontext.WithServerURL(f.Server),
		natscontext.WithCreds(f.Creds),
		natscontext.WithNKey(f.NKey),
		natscontext.WithUserJWT(f.JWT),
		natscontext.WithUserSeed(f.Seed),
		natscontext.WithCertificate(f.TLSCert),
		natscontext.WithKey(f.TLSKey),
		natscontext.WithCA(f.TLSCA),
		natscontext.WithSocksProxy(f.SOCKSProxy),
		natscontext.WithJSAPIPrefix(f.JSAPIPrefix),
		natscontext.WithJSDomain(f.JSDomain),
		natscontext.WithInboxPrefix(f.InboxPrefix),
	}
	if f.TLSFirst {
		over = append(over, natscontext.WithTLSHandshakeFirst())
	}
	if f.Token != "" {
		over = append(over, natscontext.WithToken(f.Token))
	}
	if f.User != "" && f.Password == "" {
		over = append(over, natscontext.WithToken(f.User))
	} else {
		over = append(over, natscontext.WithUser(f.User), natscontext.WithPassword(f.Password))
	}
	if f.Context == "" {
		return natscontext.New("", false, over...)
	}
	if fi, err := os.Stat(f.Context); err == nil && fi.Mode().IsRegular() && strings.HasSuffix(f.Context, ".json") {
		backend := natscontext.NewSingleFileBackend(f.Context)
		return natscontext.NewRegistry(backend, natscontext.WithoutSelection()).Load(ctx, backend.Name(), over...)
	}
	backend := natscontext.NewDefaultFileBackend()
	return natscontext.NewRegistry(backend, natscontext.WithoutSelection()).Load(ctx, f.Context, over...)
}

// options are what is not a matter of the context.
func (f *ConnFlags) options(o ConnectOptions) []nats.Option {
	log := o.Log
	opts := []nats.Option{
		nats.Name(cmp.Or(f.ConnectionName, o.Name, "warmfleet")),
		nats.Timeout(f.Timeout),
		nats.MaxReconnects(-1),
		nats.FlusherTimeout(writeTimeout),
		nats.ReconnectWait(reconnectWait),
		nats.ReconnectJitter(reconnectJitter, reconnectJitter),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { log.Warn().Err(err).Msg("NATS") }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // nil: closed by us
				log.Warn().Err(err).Msg("NATS connection lost")
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			log.Info().Str("url", nc.ConnectedUrlRedacted()).Msg("NATS connected again")
		}),
	}
	if o.Daemon {
		opts = append(opts, nats.RetryOnFailedConnect(true), nats.IgnoreAuthErrorAbort())
	}
	return opts
}

func (f *ConnFlags) jetStream(nc *nats.Conn, settings *natscontext.Context) (jetstream.JetStream, error) {
	timeout := jetstream.WithDefaultTimeout(f.Timeout)
	if prefix := settings.JSAPIPrefix(); prefix != "" {
		return jetstream.NewWithAPIPrefix(nc, prefix, timeout)
	}
	if domain := settings.JSDomain(); domain != "" {
		return jetstream.NewWithDomain(nc, domain, timeout)
	}
	return jetstream.New(nc, timeout)
}

// dial connects within ctx, and says what went wrong without secrets.
func dial(ctx context.Context, urls string, opts []nats.Option) (*nats.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("natsboot: connect: %w", err)
	}
	if deadline, ok := ctx.Deadline(); ok {
		opts = append(opts, func(o *nats.Options) error {
			o.Timeout = min(o.Timeout, time.Until(deadline))
			return nil
		})
	}
	nc, err := nats.Connect(urls, opts...)
	if err == nil {
		return nc, nil
	}
	kind := ErrUnreachable
	if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked) {
		kind = ErrRefused
	}
	return nil, &ConnectError{URL: Redact(urls), Kind: kind, Err: reason(err)}
}

// reason takes URL and addresses, which may hold a password, from the client's error.
func reason(err error) error {
	var parse *url.Error
	if errors.As(err, &parse) {
		return parse.Err
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// Redact returns server URLs, separated by commas, with "xxxxx" for user and password.
func Redact(urls string) string {
	parts := strings.Split(urls, ",")
	for i, p := range parts {
		parts[i] = strings.TrimSpace(p)
		// By hand: a URL that does not parse may hold a password as well.
		scheme, rest, found := strings.Cut(parts[i], "://")
		if !found {
			scheme, rest = "nats", parts[i]
		}
		if at := strings.LastIndexByte(rest, '@'); at >= 0 {
			parts[i] = scheme + "://xxxxx@" + rest[at+1:]
		}
	}
	return strings.Join(parts, ",")
}
