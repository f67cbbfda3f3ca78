package layer

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// Tree reads what a chain shows when it is mounted, without mounting it. The layers must stay as they are.
// Safe for concurrent use.
type Tree struct {
	chain Chain
	load  func() ([]treeLayer, error) // top first
}

// treeLayer is a layer with what its record says about its tree.
type treeLayer struct {
	id, dir string
	prefix  overlayPrefix
	owners  map[Path][2]int
	links   map[Path][]Path // the group of each path that is one of several names of a file
	meta    layerMeta
	live    *Index // of a live layer: whose its files are; nil for others
}

// NewTree gives the merged tree of chain.
func NewTree(chain Chain) *Tree {
	t := &Tree{chain: chain}
	t.load = sync.OnceValues(func() ([]treeLayer, error) { return loadLayers(chain) })
	return t
}

func loadLayers(chain Chain) ([]treeLayer, error) {
	var layers []treeLayer
	for _, l := range slices.Backward(chain) {
		if l.Live {
			live, err := loadLive(l)
			if err != nil {
				return nil, err
			}
			layers = append(layers, live)
			continue
		}
		m, err := readMeta(filepath.Dir(l.Dir))
		if err != nil {
			return nil, fmt.Errorf("layer: read layer %q: %w", l.ID, err)
		}
		tl := treeLayer{id: l.ID, dir: l.Dir, owners: m.owners(), links: map[Path][]Path{}, meta: m}
		tl.prefix = Options{Trusted: m.Trusted}.prefix()
		for _, group := range m.Links {
			for _, p := range group {
				tl.links[p] = group
			}
		}
		layers = append(layers, tl)
	}
	return layers, nil
}

// Lookup describes p, without its digest. It returns fs.ErrNotExist for a path the tree does not have.
func (t *Tree) Lookup(p Path) (Entry, error) {
	var e Entry
	err := t.at(p, func(d *merged, name string) error {
		found, err := d.entry(name)
		if err != nil {
			return err
		}
		err = t.linkOf(found)
		e = found.Entry
		return err
	})
	if err != nil {
		return Entry{}, fmt.Errorf("layer: look up %q: %w", p, err)
	}
	return e, nil
}

// Open opens the content of the regular file p.
func (t *Tree) Open(p Path) (io.ReadCloser, error) {
	f, err := t.openFile(p)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (t *Tree) openFile(p Path) (*os.File, error) {
	var f *os.File
	err := t.at(p, func(d *merged, name string) error {
		i, _, err := d.find(name)
		if err != nil {
			return err
		}
		f, err = d.parts[i].f.open(name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("layer: open %q: %w", p, err)
	}
	return f, nil
}

// ReadDir describes what the directory p holds, in byte order.
func (t *Tree) ReadDir(p Path) ([]Entry, error) {
	var entries []Entry
	err := t.in(p, func(d *merged) error {
		names, err := d.names()
		if err != nil {
			return err
		}
		for _, name := range names {
			found, err := d.entry(name)
			if err == nil {
				err = t.linkOf(found)
			}
			if err != nil {
				return err
			}
			entries = append(entries, found.Entry)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("layer: list %q: %w", p, err)
	}
	return entries, nil
}

// Walk calls fn for every path, the root first, then in the byte order of full paths.
func (t *Tree) Walk(fn func(Entry) error) error {
	return t.walk(func(e *located) error { return fn(e.Entry) })
}

// walk is Walk with where each entry lies.
func (t *Tree) walk(fn func(*located) error) error {
	return t.in(".", func(d *merged) error {
		w := treeWalk{links: map[inode]Path{}, fn: fn}
		root, err := d.entry(".")
		if err != nil {
			return fmt.Errorf("layer: read root: %w", err)
		}
		if err := fn(root); err != nil {
			return err
		}
		return w.children(d)
	})
}

// inode names a file among the layers of a chain or the file systems of a directory.
type inode struct{ where, ino uint64 }

type treeWalk struct {
	links map[inode]Path
	fn    func(*located) error
}

func (w *treeWalk) children(d *merged) error {
	names, err := d.names()
	if err != nil {
		return fmt.Errorf("layer: list %q: %w", d.path, err)
	}
	return inPathOrder(names, func(name string) (bool, error) {
		e, err := d.entry(name)
		if err != nil {
			return false, fmt.Errorf("layer: read %q: %w", join(d.path, name), err)
		}
		if e.Type != Dir && e.st.Nlink > 1 {
			key := inode{uint64(e.part.index), e.st.Ino}
			if first, seen := w.links[key]; seen {
				e.HardLink = first
			} else {
				w.links[key] = e.Path
			}
		}
		return e.Type == Dir, w.fn(e)
	}, func(name string) error {
		sub, err := d.sub(name)
		if err != nil {
			return fmt.Errorf("layer: open %q: %w", join(d.path, name), err)
		}
		return errors.Join(w.children(sub), sub.close())
	})
}

// linkOf sets the first path of e's hard-link group that still shows the same file.
func (t *Tree) linkOf(e *located) error {
	for _, p := range e.part.links[e.Path] {
		if p == e.Path {
			return nil
		}
		shown, err := t.shows(p, e.part.index)
		if err != nil {
			return err
		}
		if shown {
			e.HardLink = p
			return nil
		}
	}
	return nil
}

// shows tells whether p comes from that layer.
func (t *Tree) shows(p Path, index int) (bool, error) {
	var from int
	err := t.at(p, func(d *merged, name string) error {
		i, _, err := d.find(name)
		if err == nil {
			from = d.parts[i].index
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return from == index, err
}

// at calls fn with the merged directory that holds p, and p's last component.
func (t *Tree) at(p Path, fn func(d *merged, name string) error) error {
	dir, name := split(p)
	if p == "." {
		name = "."
	}
	return t.in(dir, func(d *merged) error { return fn(d, name) })
}

// in calls fn with the merged directory p.
func (t *Tree) in(p Path, fn func(*merged) error) error {
	d, err := t.openDir(p)
	if err != nil {
		return err
	}
	return errors.Join(fn(d), d.close())
}

// openDir opens the merged directory p.
func (t *Tree) openDir(p Path) (*merged, error) {
	d, err := t.root()
	if err != nil {
		return nil, err
	}
	for _, part := range components(p) {
		next, err := d.sub(part)
		if err := errors.Join(err, d.close()); err != nil {
			return nil, err
		}
		d = next
	}
	return d, nil
}

// root opens the roots of all layers.
func (t *Tree) root() (*merged, error) {
	layers, err := t.load()
	if err != nil {
		return nil, err
	}
	d := &merged{path: "."}
	for i := range layers {
		f, err := openFolder(layers[i].dir, needRead)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("layer: open layer %q: %w", layers[i].id, err), d.close())
		}
		d.parts = append(d.parts, part{&layers[i], i, f})
	}
	return d, nil
}
