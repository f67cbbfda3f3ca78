package fleet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

// Shown are the directories of the host that steps see, as people name them.
type Shown struct{ Expose, Caches []string }

// ShownFlags registers --expose and --cache.
func ShownFlags(flags *pflag.FlagSet, s *Shown) {
	flags.StringArrayVar(&s.Expose, "expose", nil, "directory that steps see read-only, under the same name; may be repeated")
	flags.StringArrayVar(&s.Caches, "cache", nil, "NAME=DIR: a directory that steps see as /cache/NAME; what they change there is their own and gone with them; may be repeated")
}

// Dirs checks what was named and makes it absolute. Links stay: steps see the names that
// were given.
func (s Shown) Dirs() (expose []string, caches map[string]string, err error) {
	for _, dir := range s.Expose {
		abs, err := directory(dir)
		if err == nil {
			err = isolate.Exposable(abs)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("--expose %q: %w", dir, err)
		}
		expose = append(expose, abs)
	}
	caches = map[string]string{}
	for _, pair := range s.Caches {
		name, dir, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, nil, fmt.Errorf("--cache %q: write NAME=DIR", pair)
		}
		abs, err := directory(dir)
		if isolate.ValidCache(name) != nil {
			err = fmt.Errorf("%q is not the name of a cache: use a-z, 0-9 and -, up to 32", name)
		}
		if err == nil && caches[name] != "" {
			err = fmt.Errorf("%s is named twice", name)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("--cache %q: %w", pair, err)
		}
		caches[name] = abs
	}
	return expose, caches, nil
}

// directory makes a path absolute, of a directory that is there.
func directory(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(abs)
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		err = pathErr.Err
	}
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: name a directory that exists", err)
	case !info.IsDir():
		return "", errors.New("is not a directory")
	}
	return abs, nil
}
