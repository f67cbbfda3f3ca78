package layer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Driver is a way to show a chain as a writable tree. Every driver passes the suite of drivertest.
type Driver string

// The drivers, the best one first. What each costs: an overlay is mounted, whatever the size of the tree; a reflink
// makes every file anew and shares its blocks with the layer; a copy makes every byte anew; in place is
// the original itself and no choice: it is what strategy none means.
const (
	Overlay Driver = "overlay"
	Reflink Driver = "reflink"
	Copy    Driver = "copy"
	InPlace Driver = "in_place"
)

// ErrDriver is returned where a driver was asked for that does not work here.
var ErrDriver = errors.New("layer: driver does not work here")

// Choice is the driver that a worker opens its views with.
type Choice struct {
	Driver Driver `json:"driver"`
	// Why says why it is not a better one, "" for the best.
	Why string `json:"why,omitempty"`
}

// ParseDriver reads the name of a driver that can be asked for; "auto" and "" are the best that works, "".
func ParseDriver(name string) (Driver, error) {
	switch d := Driver(name); d {
	case Overlay, Reflink, Copy:
		return d, nil
	case "", "auto":
		return "", nil
	}
	return "", fmt.Errorf("layers is %q: use auto, overlay, reflink or copy", name)
}

// Choose gives the best driver that works here, or want if that is not "". noOverlay says why nothing can be mounted as
// an overlay, "" if it can; whether files can share blocks is tried out on the cache's file system. It
// returns ErrDriver, with the reason, for a driver that is wanted and does not work.
func (c *Cache) Choose(want Driver, noOverlay string) (Choice, error) {
	if noOverlay == "" && (want == "" || want == Overlay) {
		return Choice{Driver: Overlay}, nil
	}
	if want == Overlay {
		return Choice{}, fmt.Errorf("%w: overlay: %s", ErrDriver, noOverlay)
	}
	why := "overlay: " + noOverlay
	if noOverlay == "" {
		why = "overlay: not asked for"
	}
	if want == Copy {
		return Choice{Copy, why + "; reflink: not asked for"}, nil
	}
	err := c.tryReflink()
	switch {
	case err == nil:
		return Choice{Reflink, why}, nil
	case want == Reflink:
		return Choice{}, fmt.Errorf("%w: reflink: %w", ErrDriver, err)
	}
	return Choice{Copy, fmt.Sprintf("%s; reflink: %v", why, err)}, nil
}

// tryReflink shares a block between two files where layers and views lie.
func (c *Cache) tryReflink() error {
	s, err := c.Stage()
	if err != nil {
		return err
	}
	err = reflinkIn(s.Dir())
	if noClone(err) {
		err = fmt.Errorf("the file system of %s cannot share blocks between files (%w)", c.dir, err)
	}
	return errors.Join(err, s.Discard())
}

func reflinkIn(dir string) error {
	from := filepath.Join(dir, "from")
	if err := os.WriteFile(from, make([]byte, 64<<10), 0o600); err != nil {
		return err
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.Create(filepath.Join(dir, "to"))
	if err != nil {
		return err
	}
	return errors.Join(unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())), dst.Close())
}

// Open makes a view of chain, which must not be empty, by an overlay, reflink or copy driver. For the last two it costs the
// whole tree.
func (c *Cache) Open(ctx context.Context, d Driver, chain Chain) (View, error) {
	var v View
	var err error
	switch {
	case len(chain) == 0:
		err = errors.New("the chain is empty")
	case d == Overlay:
		v, err = c.openOverlay(ctx, chain)
	case d == Reflink || d == Copy:
		v, err = c.openScratch(ctx, d, chain)
	default:
		err = ErrDriver
	}
	if err != nil {
		return nil, fmt.Errorf("layer: open %s: %w", d, err)
	}
	return v, nil
}

// openScratch builds the tree of chain in a directory of the cache.
func (c *Cache) openScratch(ctx context.Context, d Driver, chain Chain) (View, error) {
	s, err := c.Stage()
	if err != nil {
		return nil, err
	}
	v := &dirView{c: c, dir: s.Dir(), scratch: s}
	if err := v.fill(ctx, d, chain); err != nil {
		return nil, errors.Join(err, s.Discard())
	}
	return v, nil
}

// fill copies the lowest layer's plain files in bulk, where no file shares blocks with it anyway; restoring the
// chain then does everything else.
func (v *dirView) fill(ctx context.Context, d Driver, chain Chain) error {
	job := restoreJob{dir: v.dir, chain: chain, owner: v.c.ownerOf()}
	if d == Copy {
		if err := copyPlain(chain[0].Dir, v.dir); err != nil {
			v.c.opt.Log.Debug().Err(err).Msg("bulk copy stopped; the rest is copied file by file")
		}
		job.assume = chain[0].ID
	}
	idx, err := v.c.restore(ctx, job)
	if err != nil {
		return err
	}
	v.chain, v.idx = slices.Clone(chain), idx
	return nil
}
