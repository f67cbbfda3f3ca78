package layer

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/fault"
)

// With index=on, overlayfs shows a file of the chain that has several names, once it is written through one
// of them, as the new file under all of them. The upper directory holds only the name that was used; the
// others live in the mount's memory and in work/index. A closed layer needs them all.

// aliasGroup is a file of the chain whose other names have to be linked to from, or to an index entry.
type aliasGroup struct {
	layer int // in the chain, from the top
	paths []Path
	from  Path
	index string // name in work/index, "" for none
}

// move is a directory of the upper layer that was renamed: what it shows, and of what lower directory.
type move struct{ to, from Path }

// findMoves collects the renamed directories below f, which shows the lower directory low.
func (n *normaliser) findMoves(f *folder, at, low Path) error {
	names, err := f.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		st, err := f.stat(name)
		if err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		from := join(low, name)
		target, err := n.redirect(f, name)
		if err != nil {
			return err
		}
		if target != "" {
			from = redirected(low, target)
			n.moves = append(n.moves, move{join(at, name), from})
		}
		sub, err := f.sub(name, needRead)
		if err != nil {
			return err
		}
		if err := errors.Join(n.findMoves(sub, join(at, name), from), sub.close()); err != nil {
			return err
		}
	}
	return nil
}

func redirected(parent Path, target string) Path {
	if strings.HasPrefix(target, "/") {
		return Path(target[1:])
	}
	return join(parent, target)
}

// nowAt is where a path of the chain shows after the moves.
func (n *normaliser) nowAt(p Path) Path {
	best, now := Path(""), p
	for _, m := range n.moves {
		if rest, below := strings.CutPrefix(string(p), string(m.from)+"/"); below && len(m.from) > len(best) {
			best, now = m.from, m.to+"/"+Path(rest)
		}
	}
	return now
}

// linkIndexed links the other names of the files that the mount copied up with an index entry.
func (n *normaliser) linkIndexed(work string) error {
	index, err := openFolder(filepath.Join(work, "index"), needRead)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer index.close()
	names, err := index.names()
	if err != nil || len(names) == 0 {
		return err
	}
	groups, err := n.handles()
	if err != nil {
		return err
	}
	for _, name := range names {
		st, err := index.stat(name)
		if err != nil {
			return err
		}
		g, known := groups[handleOf(name)]
		if !known || st.Mode&unix.S_IFMT == unix.S_IFDIR || isWhiteout(st) {
			continue
		}
		g.index = filepath.Join(work, "index", name)
		if err := n.linkGroup(g); err != nil {
			return err
		}
	}
	return nil
}

// handleOf cuts the file handle out of an index entry's name: hex of a header of 5 bytes, of which the last is the
// handle's type, of a UUID of 16 bytes, and of the handle (struct ovl_fb in fs/overlayfs/overlayfs.h).
func handleOf(name string) string {
	raw, err := hex.DecodeString(name)
	if err != nil || len(raw) < 21 {
		return ""
	}
	return fmt.Sprintf("%d:%x", raw[4], raw[21:])
}

// handles finds the hard-link groups of the chain by the file handle of their first path.
func (n *normaliser) handles() (map[string]aliasGroup, error) {
	layers, err := n.tree.load()
	if err != nil {
		return nil, err
	}
	found := map[string]aliasGroup{}
	for i, l := range layers {
		for _, paths := range l.meta.Links {
			key, err := handleAt(l.dir, paths[0])
			if err != nil {
				return nil, fmt.Errorf("file handle of %q: %w", paths[0], err)
			}
			found[key] = aliasGroup{layer: i, paths: paths}
		}
	}
	return found, nil
}

func handleAt(dir string, p Path) (string, error) {
	root, err := openFolder(dir, needRead)
	if err != nil {
		return "", err
	}
	defer root.close()
	f, name, err := openIn(root, p, needRead)
	if err != nil {
		return "", err
	}
	defer f.close()
	h, _, err := unix.NameToHandleAt(f.fd, name, 0)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d:%x", h.Type(), h.Bytes()), nil
}

// linkGroup gives the group's file every name under which the mount showed it.
func (n *normaliser) linkGroup(g aliasGroup) error {
	if fault.Off("layer.alias-fix") {
		return nil
	}
	for _, p := range g.paths {
		shown, err := n.tree.shows(p, g.layer)
		if err != nil {
			return err
		}
		now := n.nowAt(p)
		if !shown || now == g.from {
			continue
		}
		free, err := n.free(now, p)
		if err != nil {
			return err
		}
		if free {
			if err := n.linkTo(g, now, p); err != nil {
				return fmt.Errorf("link %q: %w", now, err)
			}
		}
	}
	return nil
}

// free tells whether the upper layer leaves the path now to the chain's path from.
func (n *normaliser) free(now, from Path) (bool, error) {
	f, err := n.root.sub(".", needRead)
	if err != nil {
		return false, err
	}
	defer func() { f.close() }()
	low := Path(".")
	parts := components(now)
	for i, name := range parts {
		st, err := f.stat(name)
		if errors.Is(err, unix.ENOENT) {
			return join(low, path.Join(parts[i:]...)) == from, nil
		}
		if err != nil || i == len(parts)-1 || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return false, err
		}
		_, internal, err := f.xattrs(name, n.c.opt.prefix())
		if err != nil {
			return false, err
		}
		target := string(internal["redirect"])
		if target == "" && string(internal["opaque"]) == "y" {
			return false, nil
		}
		low = join(low, name)
		if target != "" {
			parent, _ := split(low)
			low = redirected(parent, target)
		}
		next, err := f.sub(name, needRead)
		if err != nil {
			return false, err
		}
		f.close()
		f = next
	}
	return false, nil
}

// linkTo makes one name, and the directories to it, which look like those below.
func (n *normaliser) linkTo(g aliasGroup, now, from Path) error {
	f, err := n.root.sub(".", needWrite)
	if err != nil {
		return err
	}
	defer func() { f.close() }()
	parts := components(now)
	fromParts := components(from)
	shift := len(fromParts) - len(parts) // the moved part of the path may be longer or shorter
	for i, name := range parts[:len(parts)-1] {
		if _, err := f.stat(name); errors.Is(err, unix.ENOENT) {
			low := Path(strings.Join(fromParts[:i+1+shift], "/"))
			if err := n.mkdirLike(f, name, low, Path(strings.Join(parts[:i+1], "/"))); err != nil {
				return err
			}
		}
		next, err := f.sub(name, needWrite)
		if err != nil {
			return err
		}
		f.close()
		f = next
	}
	n.linked, n.changed = true, true
	if err := n.inheritAlias(now, from); err != nil {
		return err
	}
	name := parts[len(parts)-1]
	return f.quietly(func() error {
		if g.index == "" {
			return n.linkAt(g.from, f, name)
		}
		return os.NewSyscallError("linkat", unix.Linkat(unix.AT_FDCWD, g.index, f.fd, name, 0))
	})
}

// inheritAlias keeps the owner of an alias.
func (n *normaliser) inheritAlias(now, from Path) error {
	e, err := n.tree.Lookup(from)
	if err != nil {
		return err
	}
	e.Path = now
	n.own(e)
	return nil
}

// mkdirLike makes a directory that looks like the chain's directory low.
func (n *normaliser) mkdirLike(f *folder, name string, low, now Path) error {
	e, err := n.tree.Lookup(low)
	if err != nil {
		return err
	}
	e.Path = now
	n.own(e)
	return f.quietly(func() error {
		if _, err := f.create(name, e); err != nil {
			return err
		}
		lost, err := f.shape(name, e, n.c.opt.prefix(), n.c.opt.diskOwner())
		n.lost = append(n.lost, lost...)
		return err
	})
}

// quietly changes what is in a directory and keeps its times.
func (f *folder) quietly(do func() error) error {
	st, err := f.stat(".")
	if err != nil {
		return err
	}
	return errors.Join(do(), f.setMTime(".", mtimeOf(st)))
}

// linkAt links name in f to the file that the upper layer has at from.
func (n *normaliser) linkAt(from Path, f *folder, name string) error {
	dir, last, err := openIn(n.root, from, needRead)
	if err != nil {
		return err
	}
	return errors.Join(unix.Linkat(dir.fd, last, f.fd, name, 0), dir.close())
}
