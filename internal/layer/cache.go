package layer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/oklog/ulid/v2"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/fault"
)

// ErrNotFound is returned for a layer that the cache does not hold.
var ErrNotFound = errors.New("not in the cache")

// errChanged is returned when a file did not stand still while it was read.
var errChanged = errors.New("changed while it was read")

const (
	stagingDir = "staging"
	treeDir    = "fs"
)

// Options say for whom a cache keeps its files.
type Options struct {
	// Owner is the host id, user and group alike, that owns every file of the cache.
	// A root process chowns to it; an ordinary user's is its own.
	Owner int
	// Trusted selects trusted.overlay.* attributes (a root worker), else user.overlay.* (userxattr).
	Trusted bool
	Log     zerolog.Logger
	// Hook, if set, is called before each step of a restore that changes something, with its name; an error of it is one of
	// the step. It is for tests of what is left when something fails or dies in between.
	Hook func(step string) error
}

func (o Options) hook() func(string) error {
	if o.Hook == nil {
		return func(string) error { return nil }
	}
	return o.Hook
}

func (o Options) prefix() overlayPrefix {
	if o.Trusted {
		return trustedOverlay
	}
	return userOverlay
}

// diskOwner is what files of the cache are chowned to.
func (o Options) diskOwner() ids {
	if os.Geteuid() != 0 {
		return ids{-1, -1}
	}
	return ids{o.Owner, o.Owner}
}

// Cache keeps closed layers of one worker, each in <dir>/<id>/ with the tree in fs and its record in layer.json.
// What is being built lies in <dir>/staging until it is whole. Safe for concurrent use; several processes
// may share a directory.
type Cache struct {
	dir     string
	staging string // this process's part of the staging directory, locked for its life
	lock    *os.File
	opt     Options

	mu    sync.Mutex
	named map[string]string // stored name to id
}

// OpenCache opens or makes the cache at dir, removes what a crash left in staging, and probes that
// deletions can be marked there.
func OpenCache(dir string, o Options) (*Cache, error) {
	c := &Cache{dir: dir, opt: o, named: map[string]string{}}
	if err := c.open(); err != nil {
		return nil, fmt.Errorf("layer: open cache %q: %w", dir, err)
	}
	return c, nil
}

func (c *Cache) open() error {
	if err := os.MkdirAll(filepath.Join(c.dir, stagingDir), 0o711); err != nil {
		return err
	}
	if err := c.claimStaging(); err != nil {
		return err
	}
	if err := c.probe(); err != nil {
		return errors.Join(err, c.Close())
	}
	return c.readNames()
}

// claimStaging sweeps the parts of processes that are gone and takes a part of its own.
func (c *Cache) claimStaging() error {
	all, err := lockDir(filepath.Join(c.dir, stagingDir), unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer all.Close()
	left, err := os.ReadDir(all.Name())
	if err != nil {
		return err
	}
	for _, e := range left {
		path := filepath.Join(all.Name(), e.Name())
		old, err := lockDir(path, unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue
		}
		if err != nil {
			return err
		}
		if err := errors.Join(RemoveTree(path), old.Close()); err != nil {
			// A child of the dead process may still write there; the next start sweeps it.
			c.opt.Log.Warn().Err(err).Msg("sweep what a killed process left")
		}
	}
	c.staging = filepath.Join(all.Name(), ulid.Make().String())
	if err := os.Mkdir(c.staging, 0o711); err != nil {
		return err
	}
	c.lock, err = lockDir(c.staging, unix.LOCK_EX|unix.LOCK_NB)
	return err
}

func lockDir(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), how); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// probe marks a deletion and an opaque directory where layers will be built.
func (c *Cache) probe() error {
	s, err := c.Stage()
	if err != nil {
		return err
	}
	f, err := openFolder(s.Dir(), needWrite)
	if err == nil {
		err = errors.Join(f.whiteout("whiteout"), f.opaque(".", c.opt.prefix()), f.close())
	}
	if err != nil {
		err = fmt.Errorf("mark a deletion (char device 0:0) and an opaque directory (%sopaque): %w", c.opt.prefix(), err)
	}
	return errors.Join(err, s.Discard())
}

// readNames learns the names of closed layers, and removes those that a crash of the machine may have damaged.
func (c *Cache) readNames() error {
	ids, err := c.Layers()
	if err != nil {
		return err
	}
	for _, id := range ids {
		m, err := readMeta(filepath.Join(c.dir, id))
		if errors.Is(err, fs.ErrNotExist) {
			c.opt.Log.Warn().Err(err).Str("layer", id).Msg("layer removed from the cache")
			if err := c.bury(id); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		if m.Name != "" && m.Trusted == c.opt.Trusted {
			c.named[m.Name] = m.ID
		}
	}
	return nil
}

// Close gives up this process's staging area, open views included. Closed layers stay.
func (c *Cache) Close() error {
	return errors.Join(RemoveTree(c.staging), c.lock.Close())
}

// Get finds a layer by its id. It returns ErrNotFound for one that is not there or not of this cache's kind.
func (c *Cache) Get(id string) (Layer, error) {
	if _, err := ulid.ParseStrict(id); err != nil {
		return Layer{}, fmt.Errorf("layer: get %q: %w", id, ErrNotFound)
	}
	m, err := readMeta(filepath.Join(c.dir, id))
	if errors.Is(err, fs.ErrNotExist) || err == nil && m.Trusted != c.opt.Trusted {
		err = ErrNotFound
	}
	if err != nil {
		return Layer{}, fmt.Errorf("layer: get %q: %w", id, err)
	}
	return m.Layer, nil
}

// Find finds a layer by its stored name, whether it was packed or unpacked here.
func (c *Cache) Find(name string) (Layer, bool) {
	c.mu.Lock()
	id, ok := c.named[name]
	c.mu.Unlock()
	if !ok {
		return Layer{}, false
	}
	l, err := c.Get(id)
	return l, err == nil
}

// Layers lists the ids of all closed layers, oldest first.
func (c *Cache) Layers() ([]string, error) {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return nil, fmt.Errorf("layer: list cache %q: %w", c.dir, err)
	}
	var found []string
	for _, e := range entries {
		if _, err := ulid.ParseStrict(e.Name()); err == nil {
			found = append(found, e.Name())
		}
	}
	return found, nil
}

// Remove deletes a layer. It must not be mounted. An absent one is success.
func (c *Cache) Remove(id string) error {
	l, err := c.Get(id)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	if c.named[l.Name] == id {
		delete(c.named, l.Name)
	}
	c.mu.Unlock()
	return c.bury(id)
}

// bury takes a layer out of the cache in one step before its files go.
func (c *Cache) bury(id string) error {
	grave := filepath.Join(c.staging, "removed-"+id)
	if err := os.Rename(filepath.Join(c.dir, id), grave); err != nil {
		return fmt.Errorf("layer: remove %q: %w", id, err)
	}
	fault.At("layer.buried")
	return RemoveTree(grave)
}

// setName records what packing or unpacking found out about a closed layer.
func (c *Cache) setName(l Layer) error {
	home := filepath.Join(c.dir, l.ID)
	m, err := readMeta(home)
	if err != nil {
		return fmt.Errorf("layer: name %q: %w", l.ID, err)
	}
	m.Name, m.TarSize, m.Size, m.Digest = l.Name, l.TarSize, l.Size, l.Digest
	if err := errors.Join(fault.Err("layer.name"), writeMeta(home, m)); err != nil {
		return fmt.Errorf("layer: name %q: %w", l.ID, err)
	}
	fault.At("layer.named")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.named[l.Name] = l.ID
	return nil
}
