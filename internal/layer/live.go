package layer

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"os"

	"golang.org/x/sys/unix"
)

// ErrNoLive reports a directory that cannot be the lowest layer itself.
var ErrNoLive = errors.New("cannot be used live")

// Live makes the directory dir itself the lowest layer of a chain: nothing is read or copied, and nothing is ever
// written to it. What others change there shows through, which a Watch of it tells. Self is the owner of dir.
// Such a layer is in no cache, has no stored name, and needs a view by overlay. It fails with ErrNoLive where
// changes could not be told.
func Live(dir string) (Layer, error) {
	stamps, err := Stamps(dir)
	if err != nil {
		return Layer{}, fmt.Errorf("layer: use %q live: %w", dir, err)
	}
	if !stamps {
		return Layer{}, fmt.Errorf("layer: use %q live: %w: its file system does not tell every change; ext4, xfs, btrfs and f2fs do", dir, ErrNoLive)
	}
	return Layer{ID: "live", Dir: dir, Live: true}, nil
}

// live tells whether the chain stands on a directory that others may change.
func (c Chain) live() bool { return len(c) > 0 && c[0].Live }

// loadLive is the record of a live layer, made up from its root.
func loadLive(l Layer) (treeLayer, error) {
	var st unix.Stat_t
	if err := unix.Lstat(l.Dir, &st); err != nil {
		return treeLayer{}, fmt.Errorf("layer: read layer %q: %w", l.ID, &os.PathError{Op: "lstat", Path: l.Dir, Err: err})
	}
	uid, gid := int(st.Uid), int(st.Gid)
	return treeLayer{
		id: l.ID, dir: l.Dir, prefix: noOverlay, links: map[Path][]Path{},
		meta: layerMeta{Layer: l, SelfUID: &uid, SelfGID: &gid}, live: &Index{SelfUID: uid, SelfGID: gid},
	}, nil
}

// Watch is what a live directory looked like when it began to be used, to tell later what changed since.
type Watch struct {
	dir   string
	since int64 // times of change from here on are later, nanoseconds
	seed  maphash.Seed
	known map[uint128]fingerprint
	done  chan struct{}
	err   error
}

type uint128 struct{ a, b uint64 }

// fingerprint is the stat of a path. identity leaves out what changes with the entries of a directory. Both are 0 for a
// path that had changed already when the watch came to it.
type fingerprint struct{ whole, identity uint64 }

// WatchDir begins to watch dir. What is dirty on its file system is written out first, so that stores through mappings
// show from here on; the walk of all its paths then goes on beside the caller, until ctx ends. It costs about 5 µs
// and 50 bytes a path.
func WatchDir(ctx context.Context, dir string) (*Watch, error) {
	if err := syncFS(dir); err != nil {
		return nil, fmt.Errorf("layer: watch %q: %w", dir, err)
	}
	w := &Watch{dir: dir, since: readClock().wall - int64(racyWindow), seed: maphash.MakeSeed(), known: map[uint128]fingerprint{}, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.err = w.look(ctx)
	}()
	return w, nil
}

// look notes every path, those that changed since the watch began as such.
func (w *Watch) look(ctx context.Context) error {
	return w.walk(ctx, func(p Path, st unix.Stat_t) {
		w.known[w.key(p)] = fingerprint{}
		if st.Ctim.Nano() < w.since {
			w.known[w.key(p)] = w.print(st)
		}
	})
}

// Wait returns when the walk is done, with its error.
func (w *Watch) Wait() error {
	<-w.done
	if w.err != nil {
		return fmt.Errorf("layer: watch %q: %w", w.dir, w.err)
	}
	return nil
}

func (w *Watch) key(p Path) uint128 {
	return uint128{maphash.String(w.seed, string(p)), maphash.String(w.seed, "\x00"+string(p))}
}

func (w *Watch) print(st unix.Stat_t) fingerprint {
	s := stampOf(st)
	whole := maphash.Comparable(w.seed, s)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return fingerprint{whole | 1, whole | 1}
	}
	s.ctime, s.mtime, s.size = 0, 0, 0
	return fingerprint{whole | 1, maphash.Comparable(w.seed, s) | 1}
}

// walk visits every path that can be reached, parents first. What goes away meanwhile, or is closed to the caller, is
// left out; so are the journal directory and what is mounted below.
func (w *Watch) walk(ctx context.Context, visit func(Path, unix.Stat_t)) error {
	root, err := openFolder(w.dir, needRead)
	if err != nil {
		return err
	}
	defer root.close()
	st, err := root.stat(".")
	if err != nil {
		return err
	}
	visit(".", st)
	return walkBelow(ctx, root, ".", st.Dev, visit)
}

func walkBelow(ctx context.Context, f *folder, dir Path, dev uint64, visit func(Path, unix.Stat_t)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	names, err := f.names()
	if err != nil {
		return fmt.Errorf("list %q: %w", dir, err)
	}
	for _, name := range names {
		p := join(dir, name)
		st, err := f.stat(name)
		if p == JournalDir || errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return fmt.Errorf("stat %q: %w", p, err)
		}
		visit(p, st)
		if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Dev != dev {
			continue
		}
		sub, err := f.sub(name, needRead)
		if gone(err) || errors.Is(err, unix.EACCES) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open %q: %w", p, err)
		}
		if err := errors.Join(walkBelow(ctx, sub, p, dev, visit), sub.close()); err != nil {
			return err
		}
	}
	return nil
}

// Drifted lists which of the paths are not known to be as they were when the watch began, or lie in a directory that
// is not the one it was. Whatever was read of the others before the call is what they held all the time.
func (w *Watch) Drifted(paths []Path) ([]Path, error) {
	if err := w.Wait(); err != nil {
		return nil, err
	}
	root, err := openFolder(w.dir, needRead)
	if err != nil {
		return nil, fmt.Errorf("layer: watch %q: %w", w.dir, err)
	}
	defer root.close()
	var drifted []Path
	for _, p := range paths {
		same, err := w.same(root, p)
		if err != nil {
			return nil, fmt.Errorf("layer: watch %q: %q: %w", w.dir, p, err)
		}
		if !same {
			drifted = append(drifted, p)
		}
	}
	return drifted, nil
}

// same tells whether p and the directories above it are what they were. A path that is not there and was not must be
// below a directory that had the same entries all the time, or below one that was not there either.
func (w *Watch) same(root *folder, p Path) (bool, error) {
	for at := p; ; at, _ = split(at) {
		then, known := w.known[w.key(at)]
		now, err := w.now(root, at)
		if err != nil {
			return false, err
		}
		if known != (now != nil) || known && then.identity != now.identity && !(at != p && then.late()) {
			return false, nil
		}
		if at == "." {
			return true, nil
		}
		parent, _ := split(at)
		if above, there := w.known[w.key(parent)]; !known && there && above.late() {
			return false, nil // it may have been there, and gone before the watch came by
		}
	}
}

// late tells that a path had changed between the beginning and the walk's coming to it.
func (f fingerprint) late() bool { return f.whole == 0 }

// now is the fingerprint of a path as it is, nil if there is none.
func (w *Watch) now(root *folder, p Path) (*fingerprint, error) {
	f, name, err := openIn(root, p, needRead)
	if gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.close()
	st, err := f.stat(name)
	if gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	print := w.print(st)
	return &print, nil
}

// Changed walks the directory again and lists, up to most, what differs from when the watch began, and counts all of it.
// A path that is gone is listed as the directory that it was in.
func (w *Watch) Changed(ctx context.Context, most int) (paths []Path, total int, err error) {
	if err := w.Wait(); err != nil {
		return nil, 0, err
	}
	var dirs []Path
	listed := map[Path]bool{} // directories with something new in them
	add := func(p Path) {
		if total++; len(paths) < most {
			paths = append(paths, p)
		}
	}
	err = w.walk(ctx, func(p Path, st unix.Stat_t) {
		then, known := w.known[w.key(p)]
		now := w.print(st)
		switch {
		case known && then == now:
		case known && st.Mode&unix.S_IFMT == unix.S_IFDIR && (then.identity == now.identity || then.late()):
			dirs = append(dirs, p) // by its entries
		default:
			if dir, _ := split(p); !known {
				listed[dir] = true
			}
			add(p)
		}
	})
	if err != nil {
		return nil, 0, fmt.Errorf("layer: watch %q: %w", w.dir, err)
	}
	for _, d := range dirs {
		if !listed[d] {
			add(d)
		}
	}
	return paths, total, nil
}
