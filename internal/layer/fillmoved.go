package layer

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// fill copies into a moved directory what it still shows of the chain. upper are the names it had itself.
func (n *normaliser) fill(f *folder, path Path, low *merged, upper []string) (int, error) {
	names, err := low.names()
	if err != nil {
		return 0, err
	}
	count := 0
	for _, name := range names {
		if _, own := slices.BinarySearch(upper, name); own {
			continue
		}
		count++
		if err := n.copyBelow(f, join(path, name), name, low); err != nil {
			return 0, fmt.Errorf("copy %q: %w", join(path, name), err)
		}
	}
	return count, nil
}

// copyBelow copies name of the chain, with all it holds, to path in the upper layer.
func (n *normaliser) copyBelow(f *folder, path Path, name string, low *merged) error {
	e, err := low.entry(name)
	if err != nil {
		return err
	}
	from := e.Path
	e.Path = path
	n.keep(e.Entry)
	group := e.part.links[from]
	key := inode{uint64(e.part.index), e.st.Ino}
	if first, done := n.placed[key]; done && len(group) > 0 {
		n.linked = true
		return n.linkAt(first, f, name)
	}
	if len(group) > 0 {
		n.placed[key] = path
		n.groups = append(n.groups, aliasGroup{layer: e.part.index, paths: group, from: path})
	}
	file, err := f.create(name, e.Entry)
	if err != nil {
		return err
	}
	switch e.Type {
	case File:
		err = copyOf(e.part.f, name, file, e.Size)
	case Dir:
		err = n.copyDir(f, path, name, low)
	}
	if err != nil {
		return err
	}
	lost, err := f.shape(name, e.Entry, n.c.opt.prefix(), n.c.opt.diskOwner())
	n.lost = append(n.lost, lost...)
	return err
}

func (n *normaliser) copyDir(f *folder, path Path, name string, low *merged) error {
	sub, err := f.sub(name, needWrite)
	if err != nil {
		return err
	}
	defer sub.close()
	from, err := low.sub(name)
	if err != nil {
		return err
	}
	_, err = n.fill(sub, path, from, nil)
	return errors.Join(err, from.close())
}

// findLinks collects the files that have several names, now that all are in place.
func (n *normaliser) findLinks(f *folder, dir Path) error {
	names, err := f.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		st, err := f.stat(name)
		if err != nil {
			return err
		}
		n.links.add(join(dir, name), st)
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		sub, err := f.sub(name, needRead)
		if err != nil {
			return err
		}
		if err := errors.Join(n.findLinks(sub, join(dir, name)), sub.close()); err != nil {
			return err
		}
	}
	return nil
}
