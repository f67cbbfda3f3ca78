package natsboot

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strings"

	"github.com/nats-io/jsm.go/natscontext"
)

// envFile lies in the state directory, with mode 0600.
const envFile = "nats.env"

// ContextName is the nats context that points at this user's fleet. It is written, and
// never selected.
const ContextName = "warmfleet-local"

// userName is who connects to an embedded server.
const userName = "warmfleet"

// Env is how to connect to an embedded server: the content of nats.env.
type Env struct {
	URL, User, Password string
}

// ReadEnv reads nats.env of a state directory. The values are only true while a holder is
// ready: use Acquire to know.
func ReadEnv(dir string) (Env, error) {
	var e Env
	b, err := os.ReadFile(filepath.Join(dir, envFile))
	if err != nil {
		return e, fmt.Errorf("natsboot: read connection: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "NATS_URL":
			e.URL = value
		case "NATS_USER":
			e.User = value
		case "NATS_PASSWORD":
			e.Password = value
		}
	}
	if e.URL == "" || e.User == "" || e.Password == "" {
		return e, fmt.Errorf("natsboot: read connection: %s is incomplete: remove it and a new one is made", filepath.Join(dir, envFile))
	}
	return e, nil
}

// write replaces nats.env. No value holds a character that means something to a shell; the
// last line is for those who source it without set -a.
func (e Env) write(dir string) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "NATS_URL=%s\nNATS_USER=%s\nNATS_PASSWORD=%s\nexport NATS_URL NATS_USER NATS_PASSWORD\n", e.URL, e.User, e.Password)
	return writeFile(filepath.Join(dir, envFile), b.Bytes())
}

// credentials returns those of the state directory, made at its first use.
func credentials(dir string) (Env, error) {
	e, err := ReadEnv(dir)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return e, err
	}
	return Env{User: userName, Password: rand.Text()}, nil
}

// writeFile replaces path whole, with mode 0600, and survives a power cut.
func writeFile(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// writeContext saves the nats context. Without a home of this user there is nobody to
// write it for.
func writeContext(ctx context.Context, e Env) error {
	root := configHome(os.Getenv("XDG_CONFIG_HOME"), accountHome())
	if root == "" {
		return nil
	}
	c, err := natscontext.New(ContextName, false,
		natscontext.WithServerURL(e.URL), natscontext.WithUser(e.User), natscontext.WithPassword(e.Password),
		natscontext.WithDescription("warmfleet's embedded server"))
	if err != nil {
		return err
	}
	registry := natscontext.NewRegistry(natscontext.NewFileBackendAt(root), natscontext.WithoutSelection())
	return registry.Save(ctx, c, ContextName)
}

// configHome is where the nats command line looks for contexts: $XDG_CONFIG_HOME, else .config
// in the home that the account has, whatever HOME says. It is "" when that is not this user's.
func configHome(xdg, home string) string {
	dir, owned := xdg, xdg
	if dir == "" {
		owned = home
		dir = filepath.Join(owned, ".config")
	}
	fi, err := os.Stat(owned)
	for filepath.IsAbs(owned) && errors.Is(err, fs.ErrNotExist) { // the one it will be made in
		owned = filepath.Dir(owned)
		fi, err = os.Stat(owned)
	}
	if !filepath.IsAbs(dir) || err != nil || ownerOf(fi) != os.Geteuid() {
		return ""
	}
	return dir
}

// accountHome is the home directory of this user's account, "" if it has none.
func accountHome() string {
	u, err := user.Current()
	if err != nil {
		return ""
	}
	return u.HomeDir
}
