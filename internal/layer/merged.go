package layer

import (
	"errors"
	"io/fs"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// merged is an open directory of a chain: what each layer that shows through has of it, top first.
type merged struct {
	path  Path
	parts []part
	// sealed: nothing of any layer below the last part shows through.
	sealed bool
}

type part struct {
	*treeLayer
	index int // in the chain, from the top
	f     *folder
}

// located is an entry and where it lies.
type located struct {
	Entry
	part part
	st   unix.Stat_t
}

func (d *merged) close() error {
	var err error
	for _, p := range d.parts {
		err = errors.Join(err, p.f.close())
	}
	return err
}

// find gives the part that shows name.
func (d *merged) find(name string) (int, unix.Stat_t, error) {
	for i, p := range d.parts {
		if d.hidden(p, name) {
			continue
		}
		st, err := p.f.stat(name)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err == nil && isWhiteout(st) {
			break
		}
		return i, st, err
	}
	return 0, unix.Stat_t{}, fs.ErrNotExist
}

func (d *merged) entry(name string) (*located, error) {
	i, st, err := d.find(name)
	if err != nil {
		return nil, err
	}
	path := join(d.path, name)
	if name == "." {
		path = d.path
	}
	it, err := d.parts[i].f.item(path, name, st, d.parts[i].prefix)
	if err != nil {
		return nil, err
	}
	it.UID, it.GID = Self, Self
	if live := d.parts[i].live; live != nil {
		it.UID, it.GID = live.logical(st.Uid, st.Gid)
	}
	if own, ok := d.parts[i].owners[path]; ok {
		it.UID, it.GID = own[0], own[1]
	}
	return &located{Entry: it.Entry, part: d.parts[i], st: st}, nil
}

// names are what the directory shows, in byte order.
func (d *merged) names() ([]string, error) {
	if len(d.parts) == 1 {
		return d.visible(d.parts[0], nil)
	}
	seen := map[string]bool{} // name to whether it is shown
	for _, p := range d.parts {
		if _, err := d.visible(p, seen); err != nil {
			return nil, err
		}
	}
	maps.DeleteFunc(seen, func(_ string, shown bool) bool { return !shown })
	return slices.Sorted(maps.Keys(seen)), nil
}

// hidden tells whether a name of a live layer is none of its files: what an apply stages in.
func (d *merged) hidden(p part, name string) bool {
	return p.live != nil && d.path == "." && name == JournalDir
}

// visible lists a part without its whiteouts, and enters into seen what no higher layer had.
func (d *merged) visible(p part, seen map[string]bool) ([]string, error) {
	names, err := p.f.names()
	if err != nil {
		return nil, err
	}
	var shown []string
	for _, name := range names {
		if _, higher := seen[name]; higher || d.hidden(p, name) {
			continue
		}
		st, err := p.f.stat(name)
		if p.live != nil && errors.Is(err, unix.ENOENT) {
			continue // it went away meanwhile
		}
		if err != nil {
			return nil, err
		}
		if !isWhiteout(st) {
			shown = append(shown, name)
		}
		if seen != nil {
			seen[name] = !isWhiteout(st)
		}
	}
	return shown, nil
}

// sub opens the directory name. It returns fs.ErrNotExist where name is something else.
func (d *merged) sub(name string) (*merged, error) {
	s := &merged{path: join(d.path, name)}
	for _, p := range d.parts {
		more, err := s.add(p, name)
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		if !more {
			s.sealed = true
			break
		}
	}
	if len(s.parts) == 0 {
		return nil, fs.ErrNotExist
	}
	return s, nil
}

// add adds what the part of the parent directory has of name, and tells whether lower layers show as well.
func (d *merged) add(p part, name string) (more bool, err error) {
	st, err := p.f.stat(name)
	if errors.Is(err, unix.ENOENT) {
		return true, nil
	}
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return false, err
	}
	f, err := p.f.sub(name, needRead)
	if err != nil {
		return false, err
	}
	d.parts = append(d.parts, part{p.treeLayer, p.index, f})
	_, internal, err := f.xattrs(".", p.prefix)
	return string(internal["opaque"]) != "y", err
}
