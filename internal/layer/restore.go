package layer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sys/unix"
)

// Restore makes the directory dir exactly what chain shows: contents, kinds, modes, times, attributes, hard
// links, and owners where permitted; what is more is removed. It follows no link, stays below dir, and leaves
// alone the journal directory and what the chain says it could not keep. idx, which may be nil, tells what need
// not be read. New contents are staged inside dir's journal directory before anything is changed, so a
// full disk changes nothing. It returns the index of the result; its Lost lists what could not be given back.
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
	r := &restorer{job: job, root: root, start: time.Now().Add(-racyWindow), dirty: map[Path]bool{}, touched: map[Path]bool{}}
	x, err := r.run(ctx)
	return x, errors.Join(err, r.undoStage(), root.close())
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
	self    *Index // numbers of Self
	placing bool   // the tree itself is being changed
}

// wanted is one path of the chain and what has to be done for it.
type wanted struct {
	Entry
	layer, dir string // where its content is
	have       *scanned
	do         action
	staged     string
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
	if err := r.stageContents(ctx); err != nil {
		return nil, err
	}
	for _, step := range []func() error{r.removeExtras, r.place, r.unstage, r.finishDirs, r.sync} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return r.index()
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

// stageContents writes every new file beside the tree, finished, before the tree is touched.
func (r *restorer) stageContents(ctx context.Context) error {
	for i, w := range r.wanted {
		if w.do == alias || w.do == build && w.Type == File {
			if err := r.openStage(); err != nil {
				return err
			}
		}
		if w.do != build || w.Type != File {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		w.staged = strconv.Itoa(i)
		if err := r.stageFile(w); err != nil {
			return fmt.Errorf("stage %q: %w", w.Path, err)
		}
	}
	return nil
}

// openStage makes a directory of its own in the journal directory; the apply's files there are left alone.
func (r *restorer) openStage() error {
	if r.stage != nil {
		return nil
	}
	r.dirty["."] = true
	if err := unix.Mkdirat(r.root.fd, JournalDir, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make stage: %w", err)
	}
	journal, err := r.root.sub(JournalDir, needWrite)
	if err != nil {
		return fmt.Errorf("open stage: %w", err)
	}
	defer journal.close()
	r.stageAt = "restore-" + ulid.Make().String()
	if err := unix.Mkdirat(journal.fd, r.stageAt, 0o700); err != nil {
		return fmt.Errorf("make stage: %w", err)
	}
	r.stage, err = journal.sub(r.stageAt, needWrite)
	return err
}

// undoStage removes a stage that was never used, with its trace in the root's times.
func (r *restorer) undoStage() error {
	if r.stage == nil {
		return nil
	}
	err := r.unstage()
	if r.scan != nil && !r.placing {
		err = errors.Join(err, r.root.setMTime(".", time.Unix(0, r.scan.found[0].stamp.mtime)))
	}
	return err
}

// unstage removes the stage, and the journal directory if nothing else is in it.
func (r *restorer) unstage() error {
	if r.stage == nil {
		return nil
	}
	err := r.stage.close()
	r.stage = nil
	journal, openErr := r.root.sub(JournalDir, needWrite)
	if openErr != nil {
		return errors.Join(err, openErr)
	}
	err = errors.Join(err, journal.remove(r.stageAt), journal.close())
	if e := unix.Unlinkat(r.root.fd, JournalDir, unix.AT_REMOVEDIR); e != nil && !errors.Is(e, unix.ENOTEMPTY) && !errors.Is(e, unix.EEXIST) {
		err = errors.Join(err, e)
	}
	return err
}

func (r *restorer) stageFile(w *wanted) error {
	src, err := openFile(w.dir, w.Path)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := r.stage.create(w.staged, w.Entry)
	if err != nil {
		return err
	}
	if err := errors.Join(copyContent(dst, src, w.Size), dst.Close()); err != nil {
		return err
	}
	return r.shape(r.stage, w.staged, w.Entry)
}

func (r *restorer) shape(f *folder, name string, e Entry) error {
	lost, err := f.shape(name, e, noOverlay, r.ownerOf(e))
	r.lost = append(r.lost, lost...)
	if os.Geteuid() != 0 && (e.UID != Self || e.GID != Self) {
		r.lost = append(r.lost, Lost{e.Path, fmt.Sprintf("owner %d:%d", e.UID, e.GID)})
	}
	return err
}

func (r *restorer) ownerOf(e Entry) ids {
	if os.Geteuid() != 0 {
		return ids{-1, -1}
	}
	own := ids{r.self.SelfUID, r.self.SelfGID}
	if r.job.owner != nil {
		return own
	}
	if e.UID != Self {
		own.uid = e.UID
	}
	if e.GID != Self {
		own.gid = e.GID
	}
	return own
}

// touch notes that p and the directory it is in no longer are as they were scanned.
func (r *restorer) touch(p Path) {
	r.touched[p] = true
	dir, _ := split(p)
	r.dirty[dir] = true
}

func (r *restorer) removeExtras() error {
	r.placing = true
	for _, p := range r.extra {
		if err := r.removePath(p); err != nil {
			return fmt.Errorf("remove %q: %w", p, err)
		}
	}
	return nil
}

func (r *restorer) removePath(p Path) error {
	f, name, err := openIn(r.root, p, needWrite)
	if gone(err) {
		return nil // it went with its directory
	}
	if err != nil {
		return err
	}
	r.touch(p)
	return errors.Join(f.remove(name), f.close())
}

// place puts everything but directories' metadata where it belongs, parents first.
func (r *restorer) place() error {
	for _, w := range r.wanted {
		if err := r.placeOne(w); err != nil {
			return fmt.Errorf("write %q: %w", w.Path, err)
		}
	}
	return nil
}

func (r *restorer) placeOne(w *wanted) error {
	if w.do == keep {
		return nil
	}
	if w.Type == Dir && w.do == shape {
		r.dirty[w.Path] = true
		return nil
	}
	f, name, err := openIn(r.root, w.Path, needWrite)
	if err != nil {
		return err
	}
	defer f.close()
	if w.do == shape {
		r.touched[w.Path] = true
		return r.shape(f, name, w.Entry)
	}
	r.touch(w.Path)
	if w.have != nil && (w.Type == Dir || w.have.Type == Dir || w.Type != File) {
		if err := f.remove(name); err != nil {
			return err
		}
	}
	switch {
	case w.do == alias:
		return r.placeAlias(f, name, w)
	case w.Type == File:
		return unix.Renameat(r.stage.fd, w.staged, f.fd, name)
	}
	return r.placeOther(f, name, w)
}

// placeAlias links through the stage: a rename replaces what is there in one step, a link cannot.
func (r *restorer) placeAlias(f *folder, name string, w *wanted) error {
	const tmp = "alias"
	from, fromName, err := openIn(r.root, w.HardLink, needRead)
	if err != nil {
		return err
	}
	defer from.close()
	if err := unix.Linkat(from.fd, fromName, r.stage.fd, tmp, 0); err != nil {
		return err
	}
	if err := unix.Renameat(r.stage.fd, tmp, f.fd, name); err != nil {
		return err
	}
	r.touched[w.HardLink] = true
	return r.stage.remove(tmp) // still there if it was linked already
}

func (r *restorer) placeOther(f *folder, name string, w *wanted) error {
	_, err := f.create(name, w.Entry)
	if errors.Is(err, unix.EPERM) && (w.Type == Char || w.Type == Block) {
		r.lost = append(r.lost, Lost{w.Path, "device"})
		return nil
	}
	if err != nil {
		return err
	}
	if w.Type == Dir {
		r.dirty[w.Path] = true
		return nil
	}
	return r.shape(f, name, w.Entry)
}

// finishDirs gives directories their metadata, children before parents.
func (r *restorer) finishDirs() error {
	for _, w := range slices.Backward(r.wanted) {
		if w.Type != Dir || !r.dirty[w.Path] {
			continue
		}
		f, name, err := openIn(r.root, w.Path, needRead)
		if err == nil {
			err = errors.Join(r.shape(f, name, w.Entry), f.close())
		}
		if err != nil {
			return fmt.Errorf("finish %q: %w", w.Path, err)
		}
		r.touched[w.Path] = true
	}
	return nil
}

func (r *restorer) sync() error {
	if len(r.touched) == 0 {
		return nil
	}
	return unix.Syncfs(r.root.fd)
}

// index describes the directory as it is now.
func (r *restorer) index() (*Index, error) {
	x := &Index{SelfUID: r.self.SelfUID, SelfGID: r.self.SelfGID, lost: r.lost}
	for _, w := range r.wanted {
		if w.do == keep && w.have.known() && !r.touched[w.Path] && w.have.layer == w.layer {
			x.entries = append(x.entries, w.have.indexed)
			continue
		}
		now := &indexed{Entry: w.Entry, layer: w.layer}
		st, err := r.statNow(w)
		if errors.Is(err, fs.ErrNotExist) {
			continue // listed as lost
		}
		if err != nil {
			return nil, fmt.Errorf("stat %q: %w", w.Path, err)
		}
		now.stamp = st
		now.racy = st.ctime >= r.start.UnixNano()
		x.entries = append(x.entries, now)
	}
	for _, lost := range r.scan.lost {
		if !r.touched[lost.Path] {
			x.lost = append(x.lost, lost)
		}
	}
	return x, nil
}

func (r *restorer) statNow(w *wanted) (stamp, error) {
	if !r.touched[w.Path] && w.have != nil {
		return w.have.stamp, nil
	}
	f, name, err := openIn(r.root, w.Path, needRead)
	if err != nil {
		return stamp{}, err
	}
	st, err := f.stat(name)
	return stampOf(st), errors.Join(err, f.close())
}
