package layer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Touch notes that a layer is used now.
func (c *Cache) Touch(id string) error {
	now := time.Now()
	if err := os.Chtimes(filepath.Join(c.dir, id), now, now); err != nil {
		return fmt.Errorf("layer: touch %q: %w", id, err)
	}
	return nil
}

// Used is when a layer was last touched, or made.
func (c *Cache) Used(id string) (time.Time, error) {
	fi, err := os.Lstat(filepath.Join(c.dir, id))
	if err != nil {
		return time.Time{}, fmt.Errorf("layer: look at %q: %w", id, err)
	}
	return fi.ModTime(), nil
}

// Alone calls do while no other process has the cache open, and tells whether it did. Until do returns no other
// can open it.
func (c *Cache) Alone(do func() error) (bool, error) {
	all, err := lockDir(filepath.Join(c.dir, stagingDir), unix.LOCK_EX)
	if err != nil {
		return false, fmt.Errorf("layer: lock cache %q: %w", c.dir, err)
	}
	defer all.Close()
	parts, err := os.ReadDir(all.Name())
	if err != nil {
		return false, fmt.Errorf("layer: look for other users of %q: %w", c.dir, err)
	}
	for _, p := range parts {
		path := filepath.Join(all.Name(), p.Name())
		if path == c.staging {
			continue
		}
		old, err := lockDir(path, unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("layer: look for other users of %q: %w", c.dir, err)
		}
		old.Close()
	}
	return true, do()
}
