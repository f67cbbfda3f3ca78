package layer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/fault"
)

// Staged is a layer being built. Exactly one of Commit, Adopt and Discard ends it.
type Staged struct {
	c    *Cache
	id   string
	home string
}

// Stage makes an empty layer to build.
func (c *Cache) Stage() (*Staged, error) { return c.stageIn(c.staging) }

// stageIn makes an empty layer in a directory, which is the staging area if the layer is ever to be committed.
func (c *Cache) stageIn(dir string) (*Staged, error) {
	s := &Staged{c: c, id: ulid.Make().String()}
	s.home = filepath.Join(dir, s.id)
	if err := errors.Join(os.Mkdir(s.home, 0o711), os.Mkdir(s.Dir(), 0o755)); err != nil {
		return nil, fmt.Errorf("layer: stage: %w", errors.Join(err, RemoveTree(s.home)))
	}
	fault.At("layer.staged")
	own := c.opt.diskOwner()
	if err := os.Chown(s.Dir(), own.uid, own.gid); err != nil {
		return nil, fmt.Errorf("layer: stage: %w", errors.Join(err, s.Discard()))
	}
	return s, nil
}

// Dir is the directory to build the overlay form in.
func (s *Staged) Dir() string { return filepath.Join(s.home, treeDir) }

// Commit makes the layer durable and then visible: the tree and the record reach the disk before the name does.
func (s *Staged) Commit(m Meta) (Layer, error) {
	return s.commitOr(m, durable)
}

// commitOr is Commit with a choice of durability. On failure nothing stays.
func (s *Staged) commitOr(m Meta, d durability) (Layer, error) {
	l, err := s.commit(Layer{Lost: m.Lost}, m, d)
	if err != nil {
		return Layer{}, errors.Join(err, s.Discard())
	}
	return l, nil
}

// durability is what a committed layer survives.
type durability int

const (
	// durable survives a crash of the machine: committing waits until the disk has it.
	durable durability = iota
	// untilReboot survives the death of any process. Layers of sandboxes need no more: what makes a checkpoint
	// outlive its machine is being stored elsewhere, and waiting for a busy disk would cost far more than the rest.
	untilReboot
)

// Adopt commits a tree in overlay form that other means than a writer built: it gives every file to the cache's
// owner, finds the hard links, and drops and lists sockets.
func (s *Staged) Adopt() (Layer, error) {
	m, err := s.c.adopt(s.Dir())
	if err != nil {
		return Layer{}, errors.Join(err, s.Discard())
	}
	return s.Commit(m)
}

// commit is Commit for a layer whose stored name may be known. On failure the stage stays.
func (s *Staged) commit(l Layer, m Meta, d durability) (Layer, error) {
	final := filepath.Join(s.c.dir, s.id)
	l.ID, l.Dir = s.id, filepath.Join(final, treeDir)
	rec := s.recordOf(l, m)
	if d == untilReboot {
		rec.Boot = bootID()
	}
	sync := rec.Boot == ""
	err := errors.Join(fault.Err("layer.commit"), writeMeta(s.home, rec))
	if err == nil && sync {
		err = syncFS(s.home)
	}
	fault.At("layer.recorded")
	if err == nil {
		err = os.Rename(s.home, final)
	}
	fault.At("layer.committed")
	if err == nil && sync {
		err = syncDir(s.c.dir)
	}
	if err != nil {
		return Layer{}, fmt.Errorf("layer: commit %q: %w", s.id, err)
	}
	if l.Name != "" {
		s.c.mu.Lock()
		defer s.c.mu.Unlock()
		s.c.named[l.Name] = l.ID
	}
	return l, nil
}

// reopen takes back a commit that nobody was told of.
func (s *Staged) reopen(l Layer) error { return os.Rename(filepath.Dir(l.Dir), s.home) }

func (s *Staged) recordOf(l Layer, m Meta) layerMeta {
	rec := layerMeta{V: metaVersion, Layer: l, Trusted: s.c.opt.Trusted, Links: m.Links, SelfUID: m.SelfUID, SelfGID: m.SelfGID}
	for p, o := range m.Owners {
		rec.Owners = append(rec.Owners, owned{p, o[0], o[1]})
	}
	slices.SortFunc(rec.Owners, func(a, b owned) int { return comparePaths(a.Path, b.Path) })
	return rec
}

// Discard removes the layer.
func (s *Staged) Discard() error { return RemoveTree(s.home) }

func syncFS(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// adopt makes a tree built by others one of the cache's.
func (c *Cache) adopt(dir string) (Meta, error) {
	root, err := openFolder(dir, needWrite)
	if err != nil {
		return Meta{}, fmt.Errorf("layer: adopt %q: %w", dir, err)
	}
	a := adopter{own: c.opt.diskOwner(), links: linkFinder{}}
	err = errors.Join(a.visit(root, "."), root.close())
	if err != nil {
		return Meta{}, fmt.Errorf("layer: adopt %q: %w", dir, err)
	}
	return Meta{Lost: a.lost, Links: a.links.groups()}, nil
}

type adopter struct {
	own   ids
	links linkFinder
	lost  []Lost
}

func (a *adopter) visit(f *folder, dir Path) error {
	here, err := f.stat(".")
	if err != nil {
		return err
	}
	names, err := f.names()
	if err != nil {
		return err
	}
	dropped := false
	for _, name := range names {
		socket, err := a.take(f, name, join(dir, name))
		if err != nil {
			return err
		}
		dropped = dropped || socket
	}
	if dropped {
		err = f.setMTime(".", mtimeOf(here))
	}
	return errors.Join(err, a.give(f, ".", here))
}

func (a *adopter) take(f *folder, name string, p Path) (socket bool, err error) {
	st, err := f.stat(name)
	if err != nil {
		return false, err
	}
	if isSocket(st) {
		a.lost = append(a.lost, Lost{p, lostSocket})
		return true, f.remove(name)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		sub, err := f.sub(name, needWrite)
		if err != nil {
			return false, fmt.Errorf("open %q: %w", p, err)
		}
		return false, errors.Join(a.visit(sub, p), sub.close())
	}
	a.links.add(p, st)
	return false, a.give(f, name, st)
}

// give chowns what is not the owner's yet, and puts back the setuid bits that this takes away.
func (a *adopter) give(f *folder, name string, st unix.Stat_t) error {
	if a.own.uid < 0 || int(st.Uid) == a.own.uid && int(st.Gid) == a.own.gid {
		return nil
	}
	err := unix.Fchownat(f.fd, name, a.own.uid, a.own.gid, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil || st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return err
	}
	return f.chmod(name, st.Mode&0o7777)
}

// linkFinder collects the names of files that have several.
type linkFinder map[uint64][]Path

func (l linkFinder) add(p Path, st unix.Stat_t) {
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR && !isWhiteout(st) {
		l[st.Ino] = append(l[st.Ino], p)
	}
}

func (l linkFinder) groups() [][]Path {
	var groups [][]Path
	for _, g := range l {
		if len(g) > 1 {
			slices.SortFunc(g, comparePaths)
			groups = append(groups, g)
		}
	}
	slices.SortFunc(groups, func(a, b []Path) int { return comparePaths(a[0], b[0]) })
	return groups
}
