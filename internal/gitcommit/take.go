package gitcommit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/plan/applier"
)

// Kinds of conflicts beside the applier's.
const (
	// KindDirty: the original has something there that is not committed, now or when the sandbox was made.
	KindDirty applier.Kind = "dirty"
	// KindFilter: git records the path by a filter program (git-lfs, or one of the configuration), which is not run.
	KindFilter applier.Kind = "filter"
)

// Work is what a sandbox changed, and of what.
type Work struct {
	// Base is the commit that the sandbox started from, "" for a branch without one.
	Base string
	// Checkout says that the sandbox started from the commit alone. Otherwise what was not committed is in Before too.
	Checkout bool
	// Changes are the differences between Before and After, as layer.Changes lists them.
	Changes       []layer.Change
	Before, After Tree
	// Message, Author and Time make the commit, byte for byte; the author is the committer, the time is UTC.
	Message string
	Author  gitrepo.Identity
	Time    time.Time
}

// Taken is what of a Work a commit carries.
type Taken struct {
	// Tree is the base's tree with the changes.
	Tree string
	// Changed is how many paths differ from the base's tree.
	Changed int
	// Notes say what was left out.
	Notes []string

	work   Work
	base   string // tree
	blobs  map[string]blob
	copied *copied
}

// taker is one run of Take.
type taker struct {
	*Workshop
	work      Work
	tracked   map[string]blob
	conflicts map[layer.Path]applier.Kind
	paths     []layer.Path // that are carried
	leftOut   []layer.Path
	unusual   []layer.Path
}

// Take makes the tree of a work's commit. With conflicts, all of them are returned in byte order and nothing else. The rules
// are in docs/apply.md.
func (w *Workshop) Take(ctx context.Context, work Work) (Taken, []applier.Conflict, error) {
	t := &taker{Workshop: w, work: work, conflicts: map[layer.Path]applier.Kind{}}
	taken, err := t.run(ctx)
	if err != nil {
		return Taken{}, nil, fmt.Errorf("gitcommit: take what was changed: %w", err)
	}
	if len(t.conflicts) > 0 {
		return Taken{}, sorted(t.conflicts), nil
	}
	return taken, nil, nil
}

func sorted(found map[layer.Path]applier.Kind) []applier.Conflict {
	all := make([]applier.Conflict, 0, len(found))
	for p, k := range found {
		all = append(all, applier.Conflict{Path: p, Kind: k})
	}
	slices.SortFunc(all, func(a, b applier.Conflict) int { return strings.Compare(string(a.Path), string(b.Path)) })
	return all
}

func (t *taker) run(ctx context.Context) (Taken, error) {
	base, err := t.treeOf(ctx, t.work.Base)
	if err != nil {
		return Taken{}, err
	}
	index, err := t.index(ctx, base)
	if err != nil {
		return Taken{}, err
	}
	if t.tracked, err = t.staged(ctx, index); err != nil {
		return Taken{}, err
	}
	after, err := t.choose(ctx, index)
	if err != nil {
		return Taken{}, err
	}
	if err := t.dirtyBefore(ctx, base); err != nil || len(t.conflicts) > 0 {
		return Taken{}, err
	}
	if err := t.add(ctx, index, after.dir, t.paths); err != nil {
		return Taken{}, err
	}
	tree, err := t.line(ctx, gitrepo.Call{Index: index, Args: []string{"write-tree", "--missing-ok"}})
	if err != nil {
		return Taken{}, err
	}
	found, err := t.diff(ctx, base, tree)
	if err != nil {
		return Taken{}, err
	}
	taken := Taken{Tree: tree, Changed: len(found), Notes: t.notes(), work: t.work, base: base, blobs: map[string]blob{}, copied: after}
	for _, c := range found {
		taken.blobs[c.path] = c.after
	}
	return taken, nil
}

// choose sorts the changed paths into those that a commit carries, those that it leaves out and conflicts. It returns a copy of
// the sandbox's side.
func (t *taker) choose(ctx context.Context, index string) (*copied, error) {
	var asked, gone, all []layer.Path // not tracked: there after, or only before
	for _, c := range t.work.Changes {
		if leftAlone(c.Path) {
			continue
		}
		_, tracked := t.tracked[string(c.Path)]
		files := recordable(c.Before) || recordable(c.After)
		switch {
		case tracked:
			all = append(all, c.Path)
		case files && t.submodule(string(c.Path)) != "": // git does not say whether it ignores what is in a submodule
			all = append(all, c.Path)
		case recordable(c.After):
			all, asked = append(all, c.Path), append(asked, c.Path)
		case recordable(c.Before):
			all, gone = append(all, c.Path), append(gone, c.Path)
		case c.After != nil && c.After.Type != layer.Dir:
			t.unusual = append(t.unusual, c.Path)
		}
	}
	after, err := t.copyOut(t.work.After, all)
	if err != nil {
		return nil, err
	}
	ignored, err := t.ignored(ctx, index, after.dir, asked)
	if err != nil {
		return nil, err
	}
	if len(gone) > 0 {
		before, err := t.copyOut(t.work.Before, gone)
		if err != nil {
			return nil, err
		}
		more, err := t.ignored(ctx, index, before.dir, gone)
		if err != nil {
			return nil, err
		}
		for p := range more {
			ignored[p] = true
		}
	}
	if err := t.sort(all, ignored); err != nil {
		return nil, err
	}
	filtered, err := t.filtered(ctx, index, after.dir, t.paths)
	for _, p := range filtered {
		t.conflicts[p] = KindFilter
	}
	return after, err
}

// sort decides paths that git could record.
func (t *taker) sort(all []layer.Path, ignored map[layer.Path]bool) error {
	before := map[layer.Path]bool{}
	for _, c := range t.work.Changes {
		before[c.Path] = recordable(c.Before)
	}
	for _, p := range all {
		_, tracked := t.tracked[string(p)]
		inner, err := t.inner(string(p))
		switch {
		case err != nil:
			return err
		case ignored[p]:
			t.leftOut = append(t.leftOut, p)
		case inner != "":
			t.conflicts[layer.Path(inner)] = applier.KindNestedGit
		case !tracked && before[p]:
			t.conflicts[p] = KindDirty
		default:
			t.paths = append(t.paths, p)
		}
	}
	return nil
}

// leftAlone are paths of no commit: the root, the repository itself, and the directory of a journal.
func leftAlone(p layer.Path) bool {
	first, _, _ := strings.Cut(string(p), "/")
	return p == "." || first == ".git" || first == layer.JournalDir
}

func recordable(e *layer.Entry) bool {
	return e != nil && (e.Type == layer.File || e.Type == layer.Symlink)
}

// submodule is the submodule of the base commit that a path is or lies in, "" for none.
func (t *taker) submodule(p string) string {
	if t.tracked[p].mode == modeGitlink {
		return p
	}
	for d := range dirs(p) {
		if t.tracked[d].mode == modeGitlink {
			return d
		}
	}
	return ""
}

// inner is the repository inside the work tree that a path belongs to, "" for none: git records of it which commit it is at, and no file.
func (t *taker) inner(p string) (string, error) {
	found := t.submodule(p)
	if found != "" {
		return found, nil
	}
	for d := range dirs(p) {
		for _, tree := range []Tree{t.work.Before, t.work.After} {
			_, err := tree.Lookup(layer.Path(d + "/.git"))
			if err == nil {
				found = d
			} else if !errors.Is(err, fs.ErrNotExist) {
				return "", err
			}
		}
	}
	return found, nil
}

// dirtyBefore makes conflicts of carried paths that were not as the base commit has them when the sandbox was made.
func (t *taker) dirtyBefore(ctx context.Context, base string) error {
	if t.work.Checkout || len(t.paths) == 0 {
		return nil
	}
	index, err := t.index(ctx, base)
	if err != nil {
		return err
	}
	before, err := t.copyOut(t.work.Before, t.paths)
	if err != nil {
		return err
	}
	if err := t.add(ctx, index, before.dir, t.paths); err != nil {
		return err
	}
	had, err := t.staged(ctx, index)
	if err != nil {
		return err
	}
	for _, p := range t.paths {
		if had[string(p)] != t.tracked[string(p)] {
			t.conflicts[p] = KindDirty
		}
	}
	return nil
}

// notes say what was left out.
func (t *taker) notes() []string {
	var notes []string
	if n := len(t.leftOut); n > 0 {
		notes = append(notes, fmt.Sprintf("commit: ignored by git and left out: %s", some(t.leftOut)))
	}
	if n := len(t.unusual); n > 0 {
		notes = append(notes, fmt.Sprintf("commit: of a kind that git cannot keep, and left out: %s", some(t.unusual)))
	}
	return notes
}

// some names a few paths of many.
func some(paths []layer.Path) string {
	const most = 3
	var names []string
	for _, p := range paths[:min(most, len(paths))] {
		names = append(names, fmt.Sprintf("%q", p))
	}
	text := strings.Join(names, ", ")
	if more := len(paths) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
