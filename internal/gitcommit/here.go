package gitcommit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/plan/applier"
)

// Original is the work tree as it is now.
type Original interface {
	// Original describes a path, with the digest of a file; nil when nothing is there.
	Original(p layer.Path) (*layer.Entry, error)
	// OpenOriginal reads a regular file.
	OpenOriginal(p layer.Path) (io.ReadCloser, error)
	// Names lists a directory.
	Names(p layer.Path) ([]string, error)
}

// Here is what a commit changes where its branch is checked out: files, then the index, then the branch.
type Here struct {
	Changes []layer.Change
	Content applier.Content
	Extras  []applier.ExtraSpec
}

// Checkout is the work tree that has a branch checked out.
type Checkout struct {
	Lock     *IndexLock
	Original Original
	Target   Target
}

// here is one run of Workshop.Here.
type here struct {
	*Workshop
	repo      *Repository
	lock      *IndexLock
	original  Original
	target    Target
	taken     Taken
	made      Made
	conflicts map[layer.Path]applier.Kind

	now     *copied // the work tree's side of the changed paths
	after   string  // directory with what comes
	before  map[layer.Path]*layer.Entry
	settled map[layer.Path]bool // as it should be already
	entries map[layer.Path]*layer.Change
}

// Here prepares a commit for the work tree that has its branch checked out, whose index is locked. Paths that the commit changes must be
// as the tip has them in index and work tree; else they are conflicts, all of them, and nothing is prepared. The new index lies beside
// the old one then.
func (w *Workshop) Here(ctx context.Context, to Checkout, taken Taken, made Made) (Here, []applier.Conflict, error) {
	h := &here{
		Workshop: w, repo: to.Lock.repo, lock: to.Lock, original: to.Original, target: to.Target,
		taken: taken, made: made, conflicts: map[layer.Path]applier.Kind{},
		before: map[layer.Path]*layer.Entry{}, settled: map[layer.Path]bool{}, entries: map[layer.Path]*layer.Change{},
	}
	out, err := h.run(ctx)
	if err != nil {
		var refused *Refusal
		if errors.As(err, &refused) {
			return Here{}, nil, err
		}
		return Here{}, nil, fmt.Errorf("gitcommit: prepare the work tree: %w", err)
	}
	if len(h.conflicts) > 0 {
		return Here{}, sorted(h.conflicts), nil
	}
	return out, nil, nil
}

func (h *here) run(ctx context.Context) (Here, error) {
	index, staged, err := h.currentIndex(ctx)
	if err != nil {
		return Here{}, err
	}
	h.checkIndex(staged)
	if err := h.checkFiles(ctx); err != nil || len(h.conflicts) > 0 {
		return Here{}, err
	}
	if err := h.comes(ctx); err != nil {
		return Here{}, err
	}
	if err := h.files(); err != nil {
		return Here{}, err
	}
	if err := h.directories(); err != nil {
		return Here{}, err
	}
	out := Here{Content: dirContent(h.after)}
	for _, c := range h.entries {
		out.Changes = append(out.Changes, *c)
	}
	out.Extras, err = h.extras(ctx, index)
	return out, err
}

// currentIndex copies the index, and lists it.
func (h *here) currentIndex(ctx context.Context) (string, map[string]blob, error) {
	to := h.path("index")
	f, err := openAt(h.lock.dir, indexName, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return to, map[string]blob{}, nil
	}
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", nil, err
	}
	_, err = io.Copy(w, f)
	if err := errors.Join(err, w.Close()); err != nil {
		return "", nil, err
	}
	// In the repository itself, where a split index has its other part.
	out, err := h.git.Output(ctx, gitrepo.Call{GitDir: h.repo.info.GitDir, Index: to, Args: []string{"ls-files", "-s", "-z"}})
	return to, parseStaged(out), err
}

// checkIndex makes conflicts of changed paths of which something is staged, or in whose way something is.
func (h *here) checkIndex(staged map[string]blob) {
	gone := map[string]bool{}
	for _, c := range h.made.changes {
		gone[c.path] = c.after == blob{}
	}
	prefixes := map[string]string{} // a directory, and a path staged in it that stays
	for p := range staged {
		if gone[p] {
			continue
		}
		for d := range dirs(p) {
			prefixes[d] = p
		}
	}
	for _, c := range h.made.changes {
		p := layer.Path(c.path)
		if staged[c.path] != c.before && staged[c.path] != c.after {
			h.conflicts[p] = KindDirty
		}
		if c.after == (blob{}) {
			continue
		}
		if inside, ok := prefixes[c.path]; ok {
			h.conflicts[layer.Path(inside)] = KindDirty
		}
		for d := range dirs(c.path) {
			if _, has := staged[d]; has && !gone[d] {
				h.conflicts[layer.Path(d)] = KindDirty
			}
		}
	}
}

// originalTree is a Tree of the original.
type originalTree struct{ Original }

func (o originalTree) Lookup(p layer.Path) (layer.Entry, error) {
	e, err := o.Original.Original(p)
	if err == nil && e == nil {
		err = fs.ErrNotExist
	}
	if err != nil {
		return layer.Entry{}, err
	}
	return *e, nil
}

func (o originalTree) Open(p layer.Path) (io.ReadCloser, error) { return o.OpenOriginal(p) }

// checkFiles makes conflicts of changed paths that are not as the tip has them, seen as git would record them.
func (h *here) checkFiles(ctx context.Context) error {
	var paths []layer.Path
	for _, c := range h.made.changes {
		paths = append(paths, layer.Path(c.path))
	}
	var err error
	if h.now, err = h.copyOut(originalTree{h.original}, paths); err != nil {
		return err
	}
	index, err := h.index(ctx, h.made.ontoTree)
	if err != nil {
		return err
	}
	if err := h.add(ctx, index, h.now.dir, paths); err != nil {
		return err
	}
	now, err := h.staged(ctx, index)
	if err != nil {
		return err
	}
	for _, c := range h.made.changes {
		p := layer.Path(c.path)
		had, there := h.now.entries[p]
		if there {
			had.Digest = h.now.digests[p] // of the bytes that were looked at
			h.before[p] = &had
		}
		switch {
		case now[c.path] == c.before, now[c.path] == c.after:
		case c.before == blob{}:
			h.conflicts[p] = applier.KindAddedBoth // an untracked file
		default:
			h.conflicts[p] = KindDirty
		}
		h.settled[p] = now[c.path] == c.after
	}
	return nil
}

// comes fills a directory with the new content: the sandbox's own bytes where the commit has just those, else what a checkout gives.
func (h *here) comes(ctx context.Context) error {
	var own, checkout []layer.Path
	for _, c := range h.made.changes {
		p := layer.Path(c.path)
		switch {
		case h.settled[p], c.after == blob{}:
		case h.taken.blobs[c.path] == c.after:
			own = append(own, p)
		default:
			checkout = append(checkout, p)
		}
	}
	c, err := h.copyOut(h.taken.work.After, own)
	if err != nil {
		return err
	}
	h.after = c.dir
	if len(checkout) == 0 {
		return nil
	}
	index, err := h.index(ctx, h.made.tree)
	if err != nil {
		return err
	}
	_, err = h.output(ctx, gitrepo.Call{
		Index: index, WorkTree: h.after, Args: []string{"checkout-index", "-f", "-q", "-z", "--stdin"}, Stdin: list(checkout),
	})
	return err
}

const allExec = 0o111

// files makes a change of every path that comes or goes.
func (h *here) files() error {
	for _, c := range h.made.changes {
		p := layer.Path(c.path)
		if h.settled[p] {
			continue
		}
		change := &layer.Change{Path: p, Before: h.before[p]}
		if c.after != (blob{}) {
			after, err := h.newEntry(p, c.after)
			if err != nil {
				return err
			}
			change.After = &after
		}
		h.entries[p] = change
	}
	return nil
}

// newEntry describes what comes at a path: with the mode and attributes of what was there, but for the bits that git keeps.
func (h *here) newEntry(p layer.Path, b blob) (layer.Entry, error) {
	e := layer.Entry{Path: p, UID: layer.Self, GID: layer.Self, MTime: time.Now()}
	name := filepath.Join(h.after, string(p))
	if b.mode == modeLink {
		text, err := os.Readlink(name)
		e.Type, e.Mode, e.Link = layer.Symlink, 0o777, layer.LinkText(text)
		return e, err
	}
	e.Type, e.Mode = layer.File, 0o644
	digest, size, err := digestFile(name)
	if err != nil {
		return e, err
	}
	e.Digest, e.Size = digest, size
	if had := h.before[p]; had != nil && had.Type == layer.File {
		e.Mode, e.Xattrs = had.Mode, had.Xattrs
	}
	if b.mode == modeExec {
		e.Mode |= 0o100 | e.Mode&0o444>>2
	} else {
		e.Mode &^= allExec
	}
	return e, nil
}

// directories adds the directories that files come to, and those that nothing is left in, as git does.
func (h *here) directories() error {
	var added, left []string
	for p, c := range h.entries {
		for d := range dirs(string(p)) {
			if c.After != nil {
				added = append(added, d)
			} else {
				left = append(left, d)
			}
		}
	}
	for _, d := range added {
		if err := h.newDirectory(layer.Path(d)); err != nil {
			return err
		}
	}
	slices.SortFunc(left, func(a, b string) int { // deepest first
		return cmp.Or(strings.Count(b, "/")-strings.Count(a, "/"), strings.Compare(a, b))
	})
	for _, d := range slices.Compact(left) {
		if err := h.oldDirectory(layer.Path(d)); err != nil {
			return err
		}
	}
	return nil
}

func (h *here) newDirectory(p layer.Path) error {
	c := h.entries[p]
	if c != nil && c.After != nil {
		return nil
	}
	had, err := h.original.Original(p)
	if err != nil || had != nil && had.Type == layer.Dir || had != nil && c == nil {
		return err // it is there, or something of the user's is in the way, which the applier reports
	}
	dir := layer.Entry{Path: p, Type: layer.Dir, Mode: 0o755, UID: layer.Self, GID: layer.Self, MTime: time.Now()}
	h.entries[p] = &layer.Change{Path: p, Before: had, After: &dir}
	return nil
}

// oldDirectory removes a directory of which every entry goes, or lets a file have its place.
func (h *here) oldDirectory(p layer.Path) error {
	had, err := h.original.Original(p)
	if err != nil || had == nil || had.Type != layer.Dir {
		return err
	}
	if c := h.entries[p]; c != nil {
		c.Before = had
		return nil
	}
	names, err := h.original.Names(p)
	if err != nil {
		return err
	}
	for _, name := range names {
		if c := h.entries[layer.Path(path.Join(string(p), name))]; c == nil || c.After != nil {
			return nil
		}
	}
	h.entries[p] = &layer.Change{Path: p, Before: had}
	return nil
}
