// Package secret gets the values of secrets by name, at the moment of use, from where the
// operator of a worker keeps them.
//
// It must not know who asks or what for. Values are never logged, and are in no error.
package secret

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

const (
	// MaxValue bounds one value, in bytes.
	MaxValue = 64 << 10
	// EnvPrefix begins the variables of the worker's environment that hold secrets.
	EnvPrefix = "WARMFLEET_SECRET_"
	maxName   = 128 // bytes
)

var (
	// ErrMissing reports a name that no provider has.
	ErrMissing = errors.New("secret: no such secret")
	// ErrName reports what is no name of a secret: letters, digits and _, up to 128, no digit first.
	ErrName = errors.New("secret: not the name of a secret")
	// ErrExposed reports a file that others than its owner may read.
	ErrExposed = errors.New("secret: others may read the file")
)

// Provider has secrets. Get is safe for concurrent use and asks anew each time; the value is
// the caller's. ErrMissing: it has none of that name, and another may be asked.
type Provider interface {
	Get(ctx context.Context, name string) (value []byte, err error)
}

// ValidName returns nil or ErrName.
func ValidName(name string) error {
	ok := name != "" && len(name) <= maxName && (name[0] < '0' || name[0] > '9')
	for i := 0; ok && i < len(name); i++ {
		c := name[i]
		ok = c == '_' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
	}
	if !ok {
		return fmt.Errorf("%w: %q", ErrName, name)
	}
	return nil
}

// Dir has each file of a directory as a secret: the file's name is its name, the content, as
// it is, its value. A link is followed, as secrets that are mounted have them; the file must
// be a regular one that only its owner may read or write, and he must be this process's user or root.
type Dir string

// Get reads the file now.
func (d Dir) Get(_ context.Context, name string) ([]byte, error) {
	if err := ValidName(name); err != nil {
		return nil, err
	}
	path := filepath.Join(string(d), name)
	// Non-blocking: a fifo must not hold the caller.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %q", ErrMissing, name)
	}
	if err != nil {
		return nil, fmt.Errorf("secret: read %q: %w", name, err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("secret: read %q: %w", name, err)
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("secret: read %q: %s is not a regular file", name, path)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if fi.Mode().Perm()&0o077 != 0 || !ok || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("%w: %q: %s has mode %04o: make it the worker's own, chmod 600", ErrExposed, name, path, fi.Mode().Perm())
	}
	value, err := io.ReadAll(io.LimitReader(f, MaxValue+1))
	if err == nil && len(value) > MaxValue {
		err = fmt.Errorf("more than %d bytes", MaxValue)
	}
	if err != nil {
		return nil, fmt.Errorf("secret: read %q: %w", name, err)
	}
	return value, nil
}

// Env has the variables of this process's environment that begin with EnvPrefix.
type Env struct{}

// Get looks the variable up now; an empty one counts as missing.
func (Env) Get(_ context.Context, name string) ([]byte, error) {
	if err := ValidName(name); err != nil {
		return nil, err
	}
	value := os.Getenv(EnvPrefix + name)
	if value == "" {
		return nil, fmt.Errorf("%w: %q", ErrMissing, name)
	}
	if len(value) > MaxValue {
		return nil, fmt.Errorf("secret: read %s%s: more than %d bytes", EnvPrefix, name, MaxValue)
	}
	return []byte(value), nil
}

// Chain asks one provider after the other until one has the secret. An error other than ErrMissing ends it.
type Chain []Provider

// Get returns the first value there is.
func (c Chain) Get(ctx context.Context, name string) ([]byte, error) {
	if err := ValidName(name); err != nil {
		return nil, err
	}
	for _, p := range c {
		value, err := p.Get(ctx, name)
		if !errors.Is(err, ErrMissing) {
			return value, err
		}
	}
	return nil, fmt.Errorf("%w: %q", ErrMissing, name)
}
