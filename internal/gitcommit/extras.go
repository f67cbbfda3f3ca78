package gitcommit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/pkg/plan/applier"
)

// Kinds of extra changes, as journals store them.
const (
	kindIndex = "git_index"
	kindRef   = "git_ref"
)

// indexData is what a journal keeps of an index: fields may be added, none renamed.
type indexData struct {
	// Old is the index that goes, nil when there is none: it is recognised wherever it lies.
	Old *fileID `json:"old,omitempty"`
	// Paths are those that the commit changes, with the digests of their files, so that git need not read them again.
	Paths map[string]string `json:"paths,omitempty"`
}

// refData is what a journal keeps of a branch: fields may be added, none renamed.
type refData struct {
	Ref     string `json:"ref"`
	From    string `json:"from"`
	To      string `json:"to"`
	Message string `json:"message"`
	Name    string `json:"name"`
	Email   string `json:"email"`
	At      int64  `json:"at"`
}

// fileID tells a file from every other that may be in its place: an inode number alone is used again.
type fileID struct {
	Ino   uint64 `json:"ino"`
	Size  int64  `json:"size"`
	MTime int64  `json:"mtime"` // nanoseconds
}

func identify(dir *os.File, name string) (*fileID, error) {
	var st unix.Stat_t
	err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, &fs.PathError{Op: "stat", Path: dir.Name() + "/" + name, Err: err}
	}
	return &fileID{Ino: st.Ino, Size: st.Size, MTime: unix.TimespecToNsec(st.Mtim)}, nil
}

func sameFile(a, b *fileID) bool { return a == nil && b == nil || a != nil && b != nil && *a == *b }

// Extra makes an extra change of this repository out of a journal: the ExtraFunc of a session on its work tree.
func (r *Repository) Extra(spec applier.ExtraSpec) (applier.Extra, error) {
	switch spec.Kind {
	case kindIndex:
		x := &indexExtra{repo: r}
		return x, decode(spec, &x.data)
	case kindRef:
		x := &refExtra{repo: r}
		return x, decode(spec, &x.data)
	}
	return nil, fmt.Errorf("gitcommit: extra change of kind %q: %w", spec.Kind, applier.ErrJournal)
}

func decode(spec applier.ExtraSpec, into any) error {
	if err := json.Unmarshal(spec.Data, into); err != nil {
		return fmt.Errorf("gitcommit: decode extra change %q: %w: %w", spec.Name, applier.ErrJournal, err)
	}
	return nil
}

func spec(name, kind string, data any) (applier.ExtraSpec, error) {
	b, err := json.Marshal(data)
	return applier.ExtraSpec{Name: name, Kind: kind, Data: b}, err
}

// stampPaths is up to how many changed files the index says when they were written; git reads the others once more.
const stampPaths = 1000

// extras puts the new index beside the old one and describes both extra changes.
func (h *here) extras(ctx context.Context, index string) ([]applier.ExtraSpec, error) {
	old, err := identify(h.lock.dir, indexName)
	if err != nil {
		return nil, err
	}
	if err := h.newIndex(ctx, index); err != nil {
		return nil, err
	}
	data := indexData{Old: old, Paths: map[string]string{}}
	for p, c := range h.entries {
		if c.After != nil && c.After.Digest != "" && len(h.entries) <= stampPaths {
			data.Paths[strings.ToValidUTF8(string(p), "\uFFFD")] = c.After.Digest // JSON: an odd name is read once more
		}
	}
	first, err := spec(".git/"+indexName, kindIndex, data)
	if err != nil {
		return nil, err
	}
	work := h.taken.work
	from := h.target.Tip
	if from == "" {
		from = strings.Repeat("0", len(h.made.Commit))
	}
	second, err := spec(h.target.Ref(), kindRef, refData{
		Ref: h.target.Ref(), From: from, To: h.made.Commit, Message: "commit: " + subject(work.Message),
		Name: work.Author.Name, Email: work.Author.Email, At: work.Time.Unix(),
	})
	return []applier.ExtraSpec{first, second}, err
}

// subject is the first line of a message.
func subject(message string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(message), "\n")
	return line
}

// newIndex changes the commit's entries in a copy of the index, and puts it beside the index.
func (h *here) newIndex(ctx context.Context, index string) error {
	var gone, come strings.Builder
	for _, c := range h.made.changes {
		if c.after == (blob{}) {
			fmt.Fprintf(&gone, "0 %s\t%s\x00", strings.Repeat("0", len(c.before.id)), c.path)
		} else {
			fmt.Fprintf(&come, "%s %s\t%s\x00", c.after.mode, c.after.id, c.path)
		}
	}
	// In the repository itself, for the other part of a split index; entries that are given need no work tree, filter or hook.
	err := h.git.Run(ctx, gitrepo.Call{
		GitDir: h.repo.info.GitDir, Index: index, Config: []string{"core.bare=false", "core.sparseCheckout=false"},
		Args: []string{"update-index", "-z", "--index-info"}, Stdin: strings.NewReader(gone.String() + come.String()),
	})
	if err != nil {
		return err
	}
	mode := uint32(0o644)
	var st unix.Stat_t
	if err := unix.Fstatat(int(h.lock.dir.Fd()), indexName, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
		mode = st.Mode & 0o777
	}
	return h.lock.write(slotName, mode, func(w io.Writer) error {
		f, err := os.Open(index)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	})
}

// indexExtra is a new index in the place of the old one: the two names change places.
type indexExtra struct {
	repo *Repository
	data indexData
}

// Look implements applier.Extra. The old index lies at its place or in the slot; while the lock is ours, nobody else moves it.
func (x *indexExtra) Look(context.Context) (applier.Standing, error) {
	dir, err := x.repo.openDir()
	if err != nil {
		return applier.Standing{}, err
	}
	defer dir.Close()
	index, err := identify(dir, indexName)
	if err != nil {
		return applier.Standing{}, err
	}
	slot, err := identify(dir, slotName)
	if err != nil {
		return applier.Standing{}, err
	}
	switch {
	case x.data.Old == nil && slot != nil:
		return applier.Standing{Moved: index != nil}, nil
	case x.data.Old != nil && sameFile(index, x.data.Old):
		return applier.Standing{}, nil
	case x.data.Old != nil && !sameFile(slot, x.data.Old):
		return applier.Standing{Moved: true}, nil // somebody else's is there
	}
	l := &IndexLock{repo: x.repo, dir: dir}
	ours, err := l.marked()
	return applier.Standing{Made: true, Moved: !ours}, err
}

// Do implements applier.Extra.
func (x *indexExtra) Do(ctx context.Context) error {
	return x.locked(ctx, func(l *IndexLock) error {
		if err := l.stamp(x.data.Paths); err != nil {
			return err
		}
		return l.exchange(x.data.Old == nil)
	})
}

// Undo implements applier.Extra.
func (x *indexExtra) Undo(ctx context.Context) error {
	return x.locked(ctx, func(l *IndexLock) error {
		if x.data.Old == nil {
			fd := int(l.dir.Fd())
			return l.synced(unix.Renameat2(fd, indexName, fd, slotName, unix.RENAME_NOREPLACE))
		}
		return l.exchange(false)
	})
}

// Forget implements applier.Extra.
func (x *indexExtra) Forget(context.Context) error { return x.repo.Sweep() }

// locked makes a change under the index lock, which an apply that was killed has left, or somebody removed since.
func (x *indexExtra) locked(ctx context.Context, do func(*IndexLock) error) error {
	l, err := x.repo.Lock(ctx)
	if err != nil {
		return err
	}
	return errors.Join(do(l), l.Abandon())
}

// exchange puts the slot in the place of the index; without an old one, it just goes there.
func (l *IndexLock) exchange(fresh bool) error {
	fd, flags := int(l.dir.Fd()), uint(unix.RENAME_EXCHANGE)
	if fresh {
		flags = unix.RENAME_NOREPLACE
	}
	return l.synced(unix.Renameat2(fd, slotName, fd, indexName, flags))
}

func (l *IndexLock) synced(err error) error {
	if err == nil {
		err = l.dir.Sync()
	}
	if err != nil {
		return fmt.Errorf("gitcommit: replace the index in %q: %w", l.dir.Name(), err)
	}
	return nil
}

// refExtra is a branch that moves.
type refExtra struct {
	repo *Repository
	data refData
}

// Look implements applier.Extra.
func (x *refExtra) Look(ctx context.Context) (applier.Standing, error) {
	now, err := x.repo.value(ctx, x.data.Ref)
	switch {
	case err != nil:
		return applier.Standing{}, err
	case now == x.data.To:
		return applier.Standing{Made: true}, nil
	case now == x.data.From, now == "" && zero(x.data.From):
		return applier.Standing{}, nil
	case now == "":
		return applier.Standing{Moved: true}, nil
	}
	made, err := x.repo.git.Contains(ctx, x.repo.info.GitDir, now, x.data.To)
	return applier.Standing{Made: made, Moved: true}, err
}

// Do implements applier.Extra.
func (x *refExtra) Do(ctx context.Context) error { return x.move(ctx, x.data.From, x.data.To) }

// Undo implements applier.Extra.
func (x *refExtra) Undo(ctx context.Context) error { return x.move(ctx, x.data.To, x.data.From) }

// Forget implements applier.Extra.
func (x *refExtra) Forget(context.Context) error { return nil }

func (x *refExtra) move(ctx context.Context, from, to string) error {
	by := gitrepo.Identity{Name: x.data.Name, Email: x.data.Email}
	err := x.repo.move(ctx, move{ref: x.data.Ref, from: from, to: to, log: Reflog{Message: x.data.Message, By: by, At: x.data.At}})
	if errors.Is(err, ErrMoved) {
		return fmt.Errorf("%w: %w", applier.ErrMoved, err)
	}
	return err
}
