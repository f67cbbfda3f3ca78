package applier

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/fault"
	"github.com/warmfleet/warmfleet/internal/layer"
)

// executor makes the operations of a journal and takes them back. What was done already is seen from where things
// are: a slot holds the staged thing, or what it displaced, or nothing. So both directions can be repeated after a crash.
type executor struct {
	tree  *tree
	stage *tree
	// ours are the paths where an operation puts something, freed those where one takes something away.
	ours  map[layer.Path]*op
	freed map[layer.Path]bool
}

func newExecutor(t *tree, stage *os.File, ops []op) (*executor, error) {
	st, err := newTree(stage)
	if err != nil {
		return nil, err
	}
	x := &executor{tree: t, stage: st, ours: map[layer.Path]*op{}, freed: map[layer.Path]bool{}}
	for i := range ops {
		switch o := &ops[i]; o.Kind {
		case opPut:
			x.ours[o.Path] = o
		case opRemove, opRmdir:
			x.freed[o.Path] = true
		}
	}
	return x, nil
}

func late(o *op, k Kind, now *state) error { return &LateConflict{Conflict: o.conflict(k, now)} }

// do makes one operation. After an error it is not made: its own rename was undone at once.
func (x *executor) do(o *op) error {
	switch o.Kind {
	case opRmdir:
		return x.rmdir(o)
	case opMeta:
		return x.meta(o)
	}
	dir, name, err := x.tree.parent(o.Path)
	if err != nil {
		return x.ended(o, nil, "", err)
	}
	defer dir.Close()
	moved := x.move(o, dir, name)
	fault.At("apply.moved")
	return x.ended(o, dir, name, moved)
}

// ended looks at how a move ended, and undoes one that met something else than planned.
func (x *executor) ended(o *op, dir *os.File, name string, err error) error {
	switch {
	case err == nil:
	case errors.Is(err, errParentMissing), errors.Is(err, errParentReplaced), errors.Is(err, unix.ENOENT):
		return x.gone(o, err)
	case errors.Is(err, unix.EEXIST):
		return late(o, KindAddedBoth, nil)
	default:
		return fmt.Errorf("applier: %s %q: %w", o.Kind, o.Path, err)
	}
	if err := x.verify(o); err != nil {
		// By the directory that was used, which may have been moved out of the root meanwhile.
		return errors.Join(err, x.unmove(o, dir, name))
	}
	return nil
}

// gone tells what it means that an operation's path, or its directory, is not there any more.
func (x *executor) gone(o *op, err error) error {
	switch {
	case errors.Is(err, errParentReplaced):
		return late(o, KindParentReplaced, nil)
	case o.Kind == opRemove:
		return nil // the original deleted it too
	case o.Kind == opSwap:
		return late(o, KindDeletedByOriginal, nil)
	case errors.Is(err, errParentMissing):
		return late(o, KindParentMissing, nil)
	}
	return fmt.Errorf("applier: %s %q: %w", o.Kind, o.Path, err)
}

func (x *executor) move(o *op, dir *os.File, name string) error {
	stage, fd := int(x.stage.dir.Fd()), int(dir.Fd())
	switch o.Kind {
	case opPut:
		return unix.Renameat2(stage, o.Slot, fd, name, unix.RENAME_NOREPLACE)
	case opSwap:
		return unix.Renameat2(stage, o.Slot, fd, name, unix.RENAME_EXCHANGE)
	}
	return unix.Renameat2(fd, name, stage, o.Slot, unix.RENAME_NOREPLACE)
}

// unmove is the inverse of move. Where it finds that the original put something of its own in the place of ours, it
// leaves that there.
func (x *executor) unmove(o *op, dir *os.File, name string) error {
	stage, fd := int(x.stage.dir.Fd()), int(dir.Fd())
	var err error
	switch o.Kind {
	case opPut:
		err = unix.Renameat2(fd, name, stage, o.Slot, unix.RENAME_NOREPLACE)
	case opSwap:
		err = unix.Renameat2(stage, o.Slot, fd, name, unix.RENAME_EXCHANGE)
	case opRemove:
		err = unix.Renameat2(stage, o.Slot, fd, name, unix.RENAME_NOREPLACE)
	}
	if err != nil {
		return fmt.Errorf("applier: take back %s %q: %w", o.Kind, o.Path, err)
	}
	if !o.staged() {
		return nil
	}
	ino, err := x.stage.inode(layer.Path(o.Slot))
	if err != nil || ino == o.Ino {
		return err
	}
	if err := x.move(o, dir, name); err != nil {
		return fmt.Errorf("applier: take back %s %q: %w", o.Kind, o.Path, err)
	}
	return fmt.Errorf("applier: take back %s %q: %w", o.Kind, o.Path, errReplacedSince)
}

var errReplacedSince = errors.New("replaced by the original meanwhile")

// verify looks at what a move displaced, and that what it placed is where the path leads.
func (x *executor) verify(o *op) error {
	if o.Kind != opPut && !fault.Off("applier.displaced") {
		was, err := x.stage.state(layer.Path(o.Slot))
		if err != nil {
			return err
		}
		if !same(was, o.Old) {
			return late(o, changed(o, was), was)
		}
	}
	if !o.staged() {
		return nil
	}
	ino, err := x.tree.inode(o.Path)
	if err != nil {
		return err
	}
	if ino != o.Ino {
		return late(o, KindParentReplaced, nil)
	}
	return nil
}

// changed names how what is there differs from the original that an operation was planned on.
func changed(o *op, now *state) Kind {
	switch {
	case now.Type != o.Old.Type:
		return KindType
	case o.Kind == opRemove || o.Kind == opRmdir:
		return KindModifiedAndDeleted
	case !sameContent(now, o.Old):
		return KindContent
	case !sameMode(now, o.Old):
		return KindMode
	}
	return KindXattrs
}

func (x *executor) rmdir(o *op) error {
	now, err := x.tree.state(o.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // the original deleted it too
	case errors.Is(err, errParentReplaced):
		return late(o, KindParentReplaced, nil)
	case err != nil:
		return err
	case !same(now, o.Old):
		return late(o, changed(o, now), now)
	}
	dir, name, err := x.tree.parent(o.Path)
	if err != nil {
		return err
	}
	defer dir.Close()
	err = unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR)
	switch {
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return late(o, KindNotEmpty, nil)
	case err != nil && !errors.Is(err, unix.ENOENT):
		return fmt.Errorf("applier: remove directory %q: %w", o.Path, err)
	}
	return nil
}

// meta changes mode and attributes of a path in place. Each of them may be as wanted already.
func (x *executor) meta(o *op) error {
	f, now, err := x.attributes(o.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return late(o, KindDeletedByOriginal, nil)
	case errors.Is(err, errParentReplaced):
		return late(o, KindParentReplaced, nil)
	case err != nil:
		return err
	}
	defer f.Close()
	if k := foreign(now, o.Old, o.New); k != "" {
		return late(o, k, now)
	}
	if err := setAttributes(f, now, o.New); err != nil || !o.fresh() {
		return err
	}
	return touch(f, o.New) // what came into the directory changed its time
}

// unmeta gives back the mode and each attribute that meta changed. What the original changed since stays.
func (x *executor) unmeta(o *op) error {
	f, now, err := x.attributes(o.Path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errParentReplaced) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if now.Type != o.Old.Type {
		return nil
	}
	to := *now
	if now.Mode == o.New.Mode {
		to.Mode = o.Old.Mode
	}
	to.Xattrs = maps.Clone(now.Xattrs)
	for name := range o.New.Xattrs {
		if _, had := o.Old.Xattrs[name]; !had && sameXattr(now, o.New, name) {
			delete(to.Xattrs, name)
		}
	}
	for name, value := range o.Old.Xattrs {
		if sameXattr(now, o.New, name) {
			to.setXattr(name, value)
		}
	}
	return setAttributes(f, now, &to)
}

func (x *executor) attributes(p layer.Path) (*os.File, *state, error) {
	f, err := x.tree.open(p, unix.O_PATH)
	if err != nil {
		return nil, nil, err
	}
	now, err := statOf(f)
	if err == nil && (now.Type == layer.File || now.Type == layer.Dir) {
		err = readXattrs(f, now)
	}
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("applier: read %q: %w", p, err)
	}
	return f, now, nil
}

func setAttributes(f *os.File, now, to *state) error {
	if err := setXattrs(f, now.Xattrs, to.Xattrs); err != nil {
		return fmt.Errorf("applier: change %q: %w", f.Name(), err)
	}
	if sameMode(now, to) {
		return nil
	}
	if err := chmod(f, to); err != nil {
		return fmt.Errorf("applier: change mode of %q: %w", f.Name(), err)
	}
	return nil
}

// foreign is how a state is neither of two, seen attribute by attribute; "" when it is one, the other or between.
func foreign(now, a, b *state) Kind {
	if now.Type != a.Type {
		return KindType
	}
	if !sameMode(now, a) && !sameMode(now, b) {
		return KindMode
	}
	for _, m := range []map[string][]byte{now.Xattrs, a.Xattrs, b.Xattrs} {
		for name := range m {
			if !sameXattr(now, a, name) && !sameXattr(now, b, name) {
				return KindXattrs
			}
		}
	}
	return ""
}

func sameXattr(a, b *state, name string) bool {
	x, has := a.Xattrs[name]
	y, had := b.Xattrs[name]
	return has == had && bytes.Equal(x, y)
}

// remake makes a removed directory again, as it was. Its times and inode are new.
func (x *executor) remake(o *op) error {
	dir, name, err := x.tree.parent(o.Path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := removeAt(x.stage.dir, o.Slot); err != nil {
		return err
	}
	stage := int(x.stage.dir.Fd())
	if err := unix.Mkdirat(stage, o.Slot, workingMode); err != nil {
		return fmt.Errorf("applier: make directory %q again: %w", o.Path, err)
	}
	if _, _, err := dress(x.stage.dir, o.Slot, o.Old); err != nil {
		return fmt.Errorf("applier: make directory %q again: %w", o.Path, err)
	}
	if err := unix.Renameat2(stage, o.Slot, int(dir.Fd()), name, unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("applier: make directory %q again: %w", o.Path, err)
	}
	return nil
}

func dirOf(p layer.Path) layer.Path { return layer.Path(path.Dir(string(p))) }
