package natsboot

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"
)

// ConnFlags are the connection flags and variables of the nats command line, letter for
// letter (natscli v0.5.0, nats/main.go). A flag that is given beats its variable; both are
// laid over the fields of the context. A merely selected context is never read.
type ConnFlags struct {
	Server         string
	User           string
	Password       string
	Token          string
	Creds          string
	NKey           string
	JWT            string
	Seed           string
	TLSCert        string
	TLSKey         string
	TLSCA          string
	TLSFirst       bool
	Timeout        time.Duration // of connecting and of one request
	SOCKSProxy     string
	JSAPIPrefix    string
	JSDomain       string
	InboxPrefix    string
	ConnectionName string
	Context        string // a name, or a path that ends in .json

	flags *pflag.FlagSet // nil: no command line, variables only
}

// defaultTimeout is that of the nats command line.
const defaultTimeout = 5 * time.Second

// flag describes one string flag: where its value goes and what it is called.
type flag struct {
	value           *string
	name, env, help string
}

func (f *ConnFlags) strings() []flag {
	return []flag{
		{&f.Server, "server", "NATS_URL", "NATS server urls"},
		{&f.User, "user", "NATS_USER", "username, or token when there is no password"},
		{&f.Password, "password", "NATS_PASSWORD", "password"},
		{&f.Token, "token", "NATS_TOKEN", "token"},
		{&f.Creds, "creds", "NATS_CREDS", "user credentials file"},
		{&f.NKey, "nkey", "NATS_NKEY", "user NKEY file"},
		{&f.JWT, "jwt", "NATS_JWT", "user JWT"},
		{&f.Seed, "seed", "NATS_SEED", "user seed"},
		{&f.TLSCert, "tlscert", "NATS_CERT", "TLS public certificate"},
		{&f.TLSKey, "tlskey", "NATS_KEY", "TLS private key"},
		{&f.TLSCA, "tlsca", "NATS_CA", "TLS certificate authority chain"},
		{&f.SOCKSProxy, "socks-proxy", "NATS_SOCKS_PROXY", "SOCKS5 proxy to connect through"},
		{&f.JSAPIPrefix, "js-api-prefix", "", "subject prefix of the JetStream API"},
		{&f.JSDomain, "js-domain", "", "JetStream domain"},
		{&f.InboxPrefix, "inbox-prefix", "", "prefix of inboxes"},
		{&f.ConnectionName, "connection-name", "", "name of the connection"},
		{&f.Context, "context", "NATS_CONTEXT", "nats context, a name or a .json file"},
	}
}

// Register adds the flags to fs. Values of variables never show up as defaults, since help
// text prints those.
func (f *ConnFlags) Register(fs *pflag.FlagSet) {
	f.flags = fs
	for _, s := range f.strings() {
		short, help := "", s.help
		if s.name == "server" {
			short = "s"
		}
		if s.env != "" {
			help += " ($" + s.env + ")"
		}
		fs.StringVarP(s.value, s.name, short, "", help)
	}
	fs.BoolVar(&f.TLSFirst, "tlsfirst", false, "TLS handshake before the server's greeting")
	fs.DurationVar(&f.Timeout, "timeout", defaultTimeout, "time to wait for NATS ($NATS_TIMEOUT)")
}

// Given reports whether the user named a server: by -s, --context, NATS_URL or
// NATS_CONTEXT.
func (f *ConnFlags) Given() bool {
	r := f.fromEnv()
	return r.Server != "" || r.Context != ""
}

// fromEnv returns a copy in which variables stand in for flags that were not given.
func (f *ConnFlags) fromEnv() *ConnFlags {
	r := *f
	for _, s := range r.strings() {
		if s.env != "" && *s.value == "" && !f.changed(s.name) {
			*s.value = os.Getenv(s.env)
		}
	}
	return &r
}

// resolve is fromEnv with the time-out, whose variable may not parse.
func (f *ConnFlags) resolve() (*ConnFlags, error) {
	r := f.fromEnv()
	if env := os.Getenv("NATS_TIMEOUT"); env != "" && !f.changed("timeout") {
		d, err := time.ParseDuration(env)
		if err != nil {
			return nil, fmt.Errorf("natsboot: NATS_TIMEOUT: %w", err)
		}
		r.Timeout = d
	}
	if r.Timeout <= 0 {
		r.Timeout = defaultTimeout
	}
	return r, nil
}

func (f *ConnFlags) changed(name string) bool { return f.flags != nil && f.flags.Changed(name) }
