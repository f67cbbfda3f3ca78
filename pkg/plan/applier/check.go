package applier

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// finding is one changed path: its three states and what follows from them.
type finding struct {
	path             layer.Path
	base, orig, ours *state
	verdict          verdict
	group            layer.Path // hard-link group of ours
	content          []byte     // merged bytes, nil to take those of the sandbox
}

// created is true when the path becomes a directory that the original does not have.
func (f *finding) created() bool {
	return f.verdict.want != nil && f.verdict.want.Type == layer.Dir && (f.orig == nil || f.orig.Type != layer.Dir)
}

// vacated is true when a directory of the original goes, for something else or for nothing.
func (f *finding) vacated() bool {
	return f.orig != nil && f.orig.Type == layer.Dir &&
		(f.verdict.remove || f.verdict.want != nil && f.verdict.want.Type != layer.Dir)
}

// checker collects findings and conflicts of one request, parents before children.
type checker struct {
	tree      *tree
	req       Request
	order     []*finding
	found     map[layer.Path]*finding
	conflicts []Conflict
	gits      map[layer.Path]bool
}

// Check compares the three sides of every changed path. With conflicts, all of them are returned in byte order and
// the preview is empty; nothing is changed in either case. It fails with ErrInvalid, ErrOtherMount, or
// fs.ErrPermission when a directory cannot be written or a path cannot be read.
func (s *Session) Check(ctx context.Context, req Request) (Preview, []Conflict, error) {
	if s.phase == phasePending {
		return Preview{}, nil, fmt.Errorf("applier: check plan %q: %w", s.journal.Plan, ErrPending)
	}
	if s.phase != phaseOpen {
		return Preview{}, nil, fmt.Errorf("applier: check: %w", ErrOrder)
	}
	if err := validate(req); err != nil {
		return Preview{}, nil, err
	}
	c := &checker{tree: s.tree, req: req, found: map[layer.Path]*finding{}, gits: map[layer.Path]bool{}}
	changes := slices.Clone(req.Changes)
	slices.SortFunc(changes, func(a, b layer.Change) int { return cmp.Compare(a.Path, b.Path) })
	for i := range changes {
		if err := ctx.Err(); err != nil {
			return Preview{}, nil, fmt.Errorf("applier: check: %w", err)
		}
		if err := c.look(ctx, changes[i]); err != nil {
			return Preview{}, nil, err
		}
	}
	if err := c.emptied(); err != nil {
		return Preview{}, nil, err
	}
	if len(c.conflicts) > 0 {
		slices.SortFunc(c.conflicts, func(a, b Conflict) int { return cmp.Compare(a.Path, b.Path) })
		return Preview{}, c.conflicts, nil
	}
	p := c.preview()
	if err := c.writable(p.ops); err != nil {
		return Preview{}, nil, err
	}
	return p, nil, nil
}

func (c *checker) conflict(f *finding, k Kind, detail string) {
	c.conflicts = append(c.conflicts, Conflict{
		Path: f.path, Kind: k, Detail: detail, Base: f.base.at(f.path), Ours: f.ours.at(f.path), Theirs: f.orig.at(f.path),
	})
}

// leftOut is true for paths that no apply touches: the journal's directory, and the git directory of a work tree.
func (c *checker) leftOut(p layer.Path) bool {
	first, _, _ := strings.Cut(string(p), "/")
	return first == layer.JournalDir || c.req.Git && first == ".git"
}

// nestedGit is the ".git" below the root that a path is, or is in; "" for none.
func nestedGit(p layer.Path) layer.Path {
	names := strings.Split(string(p), "/")
	i := slices.Index(names, ".git")
	if i < 1 {
		return ""
	}
	return layer.Path(strings.Join(names[:i+1], "/"))
}

func (c *checker) look(ctx context.Context, ch layer.Change) error {
	if c.leftOut(ch.Path) {
		return nil
	}
	if git := nestedGit(ch.Path); c.req.Git && git != "" {
		if !c.gits[git] {
			c.gits[git] = true
			c.conflict(&finding{path: git}, KindNestedGit, "")
		}
		return nil
	}
	f := &finding{path: ch.Path, base: stateOf(ch.Before), ours: stateOf(ch.After)}
	if ch.After != nil {
		f.group = cmp.Or(ch.After.HardLink, ch.Path)
	}
	known, err := c.original(f)
	if err != nil || !known {
		return err
	}
	if c.req.Checkout {
		f.asRecorded()
	}
	f.verdict = threeWay(f.base, f.orig, f.ours)
	if f.verdict.conflict == KindContent {
		if err := c.merge(ctx, f); err != nil {
			return err
		}
	}
	c.order, c.found[f.path] = append(c.order, f), f
	if err := c.place(f); err != nil {
		return err
	}
	if k := f.verdict.conflict; k != "" {
		c.conflict(f, k, f.verdict.detail)
	}
	return nil
}

// original reads the original's side of a finding. It is false when the path needs no further look.
func (c *checker) original(f *finding) (bool, error) {
	orig, err := c.tree.state(f.path)
	switch {
	case err == nil:
		f.orig = orig
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return true, nil
	case !errors.Is(err, errParentReplaced):
		return false, err
	}
	a := c.ancestor(f.path)
	switch {
	case a != nil && a.verdict.conflict != "": // reported there
		return false, nil
	case a != nil && a.orig == nil && a.created(): // what is in the way is further up, and goes
		return true, nil
	case a == nil || a.orig == nil || a.orig.Type == layer.Dir:
		c.conflict(f, KindParentReplaced, "")
		return false, nil
	case a.verdict.want == nil && f.ours == nil: // the original made the same of the directory as the plan
		return false, nil
	}
	return true, nil
}

// ancestor is the nearest directory above a path that the plan changes too, nil for none.
func (c *checker) ancestor(p layer.Path) *finding {
	for dir := path.Dir(string(p)); ; dir = path.Dir(dir) {
		if a := c.found[layer.Path(dir)]; a != nil || dir == "." {
			return a
		}
	}
}

// merge asks the caller for a merge of a file that both sides changed.
func (c *checker) merge(ctx context.Context, f *finding) error {
	if c.req.Merge == nil || f.orig.Type != layer.File || f.orig.Size > MergeLimit {
		return nil
	}
	r, err := c.tree.reader(f.path)
	if err != nil {
		return err
	}
	defer r.Close()
	original, err := io.ReadAll(io.LimitReader(r, MergeLimit+1))
	if err != nil {
		return fmt.Errorf("applier: read %q: %w", f.path, err)
	}
	content, ok, err := c.req.Merge(ctx, f.path, original)
	if err != nil {
		return fmt.Errorf("applier: merge %q: %w", f.path, err)
	}
	if !ok || digestOfBytes(original) != f.orig.Digest {
		return nil
	}
	base, ours := *f.base, *f.ours
	base.Digest, ours.Digest = f.orig.Digest, digestOfBytes(content)
	ours.Size, ours.MTime = int64(len(content)), time.Now()
	f.verdict, f.group = threeWay(&base, f.orig, &ours), f.path
	f.content = append(make([]byte, 0, len(content)), content...) // not nil, even when empty
	return nil
}

func digestOfBytes(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// place looks at where a finding goes: its directory, the owner it gets from it, and what is privileged about it.
func (c *checker) place(f *finding) error {
	want := f.verdict.want
	if want == nil && !f.verdict.remove {
		return nil
	}
	dir, err := c.directory(f)
	if err != nil || dir == nil {
		return err
	}
	if want == nil {
		return nil
	}
	wanted := *want
	if f.orig == nil {
		want.UID, want.GID = dir.UID, dir.GID
	} else {
		want.UID, want.GID = f.orig.UID, f.orig.GID
		if want.Type == f.orig.Type {
			want.ACLs = f.orig.ACLs
		}
	}
	if c.req.Restore {
		f.giveBack(wanted)
	}
	var inherited uint32
	if want.Type == layer.Dir {
		inherited = dir.Mode & unix.S_ISGID
	}
	if why := special(f.orig, want, inherited); why != "" && !c.req.AllowSpecial {
		f.verdict = verdict{conflict: KindSpecial, detail: why}
	}
	return nil
}

// directory is what holds a finding after the apply; nil when a conflict says that nothing does.
func (c *checker) directory(f *finding) (*state, error) {
	p := layer.Path(path.Dir(string(f.path)))
	if a := c.found[p]; a != nil && a != f {
		switch {
		case a.created():
			return a.verdict.want, nil
		case a.verdict.conflict != "", a.verdict.above:
			f.verdict = verdict{above: true}
			return nil, nil
		}
	}
	d, _, err := c.tree.parent(f.path)
	switch {
	case errors.Is(err, errParentMissing):
		f.verdict = verdict{conflict: KindParentMissing}
		return nil, nil
	case errors.Is(err, errParentReplaced):
		f.verdict = verdict{conflict: KindParentReplaced}
		return nil, nil
	case err != nil:
		return nil, err
	}
	defer d.Close()
	s, err := statOf(d)
	if err != nil {
		return nil, fmt.Errorf("applier: stat %q: %w", p, err)
	}
	return s, nil
}

// emptied makes a conflict of each directory that goes while the original holds something in it that does not.
func (c *checker) emptied() error {
	for _, f := range slices.Backward(c.order) { // what stays in a directory is known before the directory
		if !f.vacated() {
			continue
		}
		names, err := c.tree.names(f.path)
		if err != nil {
			return err
		}
		slices.Sort(names)
		for _, name := range names {
			child := c.found[f.path+"/"+layer.Path(name)]
			if child != nil && (child.verdict.remove || child.verdict.conflict != "") {
				continue
			}
			if c.req.Restore && f.verdict.remove {
				f.keep()
				break
			}
			c.conflict(f, KindNotEmpty, name)
			break
		}
	}
	return nil
}
