package layer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// Restore makes the directory dir exactly what chain shows: contents, kinds, modes, times, attributes, hard
// links, and owners where permitted; what is more is removed. It follows no link, stays below dir, and leaves
// alone the journal directory and what the chain says it could not keep. idx, which may be nil, tells what need
// not be read. Everything new is made inside dir's journal directory first and swapped in by renames: when
// anything fails, dir is as it was. When it is killed, the next Restore completes it. It returns the index
// of the result; its Lost lists what could not be given back.
func (c *Cache) Restore(ctx context.Context, dir string, idx *Index, chain Chain) (*Index, error) {
	x, err := c.restore(ctx, restoreJob{dir: dir, idx: idx, chain: chain})
	if err != nil {
		return nil, fmt.Errorf("layer: restore %q: %w", dir, err)
	}
	return x, nil
}

type restoreJob struct {
	dir   string
	idx   *Index
	chain Chain
	// owner, if set, owns every file whatever the chain says.
	owner *int
	// assume is the id of the layer that files of the right size, which no index knows, were copied from.
	assume string
}

func (c *Cache) restore(ctx context.Context, job restoreJob) (*Index, error) {
	root, err := openFolder(job.dir, needWrite)
	if err != nil {
		return nil, err
	}
	r := &restorer{job: job, root: root, start: time.Now().Add(-racyWindow), dirty: map[Path]bool{}, touched: map[Path]bool{}, hook: c.opt.hook()}
	x, err := r.run(ctx)
	if err != nil {
		err = errors.Join(err, r.clean())
	}
	return x, errors.Join(err, root.close())
}

// restorer mirrors the tree of a chain into a directory.
type restorer struct {
	job     restoreJob
	root    *folder
	start   time.Time // before anything was looked at, less the racy window
	scan    *scan
	wanted  []*wanted
	extra   []Path // to remove, parents first
	stage   *folder
	stageAt string        // name of the stage in the journal directory
	dirty   map[Path]bool // directories whose times were disturbed or whose metadata differs
	touched map[Path]bool // paths whose stat is not that of the scan
	lost    []Lost
	self    *Index    // numbers of Self
	done    []swapped // changes of the tree so far
	hook    func(string) error
}

// wanted is one path of the chain and what has to be done for it.
type wanted struct {
	Entry
	layer, dir string // where its content is
	have       *scanned
	do         action
	first      *wanted // of its hard-link group, if it is not that itself
	slot       string  // its name in the stage, "" for none
}

type action int

const (
	keep  action = iota
	shape        // the metadata differs
	build        // it is absent, of another kind, or has other content
	alias        // it must be linked to the first path of its group
)

func (r *restorer) run(ctx context.Context) (*Index, error) {
	if err := r.look(ctx); err != nil {
		return nil, err
	}
	if err := r.compare(); err != nil {
		return nil, err
	}
	if err := r.stageAll(ctx); err != nil {
		return nil, err
	}
	for _, step := range []func() error{r.swap, r.unstage, r.finishRoot, r.sync} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return r.index()
}

// clean removes the stage of a restore that failed, with its trace in the root's times.
func (r *restorer) clean() error {
	if r.scan == nil || !r.dirty["."] {
		return nil
	}
	return errors.Join(r.unstage(), r.root.setMTime(".", time.Unix(0, r.scan.found[0].stamp.mtime)))
}

// look reads the tree of the chain and the directory.
func (r *restorer) look(ctx context.Context) error {
	tree := NewTree(r.job.chain)
	err := tree.walk(func(e *located) error {
		r.wanted = append(r.wanted, &wanted{Entry: e.Entry, layer: e.part.id, dir: e.part.dir})
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	layers, err := tree.load()
	if err != nil {
		return err
	}
	if r.self, err = r.selfOf(layers); err != nil {
		return err
	}
	base := r.job.idx
	if base == nil {
		base = r.self
	}
	r.scan, err = scanDir(ctx, r.root, base)
	return err
}

// selfOf finds the numbers Self stands for: those of the index, of the lowest layer that knows, of the directory.
func (r *restorer) selfOf(layers []treeLayer) (*Index, error) {
	if r.job.owner != nil {
		return &Index{SelfUID: *r.job.owner, SelfGID: *r.job.owner}, nil
	}
	if r.job.idx != nil {
		return &Index{SelfUID: r.job.idx.SelfUID, SelfGID: r.job.idx.SelfGID}, nil
	}
	for _, l := range slices.Backward(layers) {
		if l.meta.SelfUID != nil && l.meta.SelfGID != nil {
			return &Index{SelfUID: *l.meta.SelfUID, SelfGID: *l.meta.SelfGID}, nil
		}
	}
	st, err := r.root.stat(".")
	return &Index{SelfUID: int(st.Uid), SelfGID: int(st.Gid)}, err
}

// compare decides what to do for every path.
func (r *restorer) compare() error {
	have := r.scan.found
	byPath := map[Path]*wanted{}
	for _, w := range r.wanted {
		for len(have) > 0 && comparePaths(have[0].Path, w.Path) < 0 {
			r.extra = append(r.extra, have[0].Path)
			have = have[1:]
		}
		if len(have) > 0 && have[0].Path == w.Path {
			w.have = have[0]
			have = have[1:]
		}
		byPath[w.Path] = w
		if err := r.decide(w, byPath); err != nil {
			return fmt.Errorf("compare %q: %w", w.Path, err)
		}
	}
	for _, h := range have {
		r.extra = append(r.extra, h.Path)
	}
	return r.extraLost(byPath)
}

// extraLost removes sockets and the like that were not there when the chain's layers were captured.
func (r *restorer) extraLost(byPath map[Path]*wanted) error {
	spared := map[Path]bool{}
	for _, l := range r.job.chain {
		for _, lost := range l.Lost {
			spared[lost.Path] = true
		}
	}
	for _, lost := range r.scan.lost {
		if w := byPath[lost.Path]; w != nil && w.have == nil || w == nil && !spared[lost.Path] {
			r.extra = append(r.extra, lost.Path)
		}
	}
	return nil
}

func (r *restorer) decide(w *wanted, byPath map[Path]*wanted) error {
	if w.HardLink != "" {
		w.do = alias
		first := byPath[w.HardLink]
		w.first = first
		if w.have != nil && w.have.Type == w.Type && w.have.HardLink == w.HardLink && first.do < build {
			w.do = first.do
		}
		return nil
	}
	w.do = build
	if w.have == nil || w.have.Type != w.Type || w.have.HardLink != "" {
		return nil
	}
	if err := r.scan.loadXattrs(w.have); err != nil {
		return err
	}
	same, err := r.sameContent(w)
	if err != nil || !same {
		return err
	}
	w.do = keep
	if !r.sameMeta(w) {
		w.do = shape
	}
	return nil
}

// sameMeta ignores owners where they cannot be changed.
func (r *restorer) sameMeta(w *wanted) bool {
	have := w.have.Entry
	if os.Geteuid() != 0 {
		have.UID, have.GID = w.UID, w.GID
	}
	have.HardLink = w.HardLink
	return sameEntry(have, w.Entry)
}

func (r *restorer) sameContent(w *wanted) (bool, error) {
	h := w.have
	switch {
	case w.Type == Dir, w.Type == Fifo:
		return true, nil
	case w.Type != File:
		return h.Link == w.Link && h.Rdev == w.Rdev, nil
	case h.Size != w.Size:
		return false, nil
	case h.known() && h.layer == w.layer, h.old == nil && r.job.assume != "" && r.job.assume == w.layer:
		return true, nil
	}
	want, err := openFile(w.dir, w.Path)
	if err != nil {
		return false, err
	}
	defer want.Close()
	now, err := openBelow(r.root, w.Path)
	if err != nil {
		return false, err
	}
	defer now.Close()
	return sameContent(want, now)
}
