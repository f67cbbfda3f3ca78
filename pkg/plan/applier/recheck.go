package applier

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// outlook is what an operation still needs in one direction: nothing, a step, or something that cannot be.
type outlook struct {
	step    bool
	blocked Kind
}

// now reads the original's state of a path, nil when nothing is there.
func (x *executor) now(p layer.Path) (*state, error) {
	s, err := x.tree.state(p)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errParentReplaced) {
		return nil, nil
	}
	return s, err
}

// done says whether an operation is made. It may be false for one that finds nothing left to do.
func (x *executor) done(o *op) (bool, error) {
	if o.staged() || o.Kind == opRemove {
		slot, err := x.stage.inode(layer.Path(o.Slot))
		if o.Kind == opRemove {
			return slot != 0, err
		}
		return slot != o.Ino, err
	}
	// A directory that went may have something of ours in its place since.
	if o.Kind == opMeta && (!x.freed[o.Path] || o.fresh()) {
		return false, nil
	}
	ino, err := x.tree.inode(o.Path)
	p := x.ours[o.Path]
	return ino == 0 || p != nil && p.Ino == ino, err
}

// forward says what making an operation would meet, given that those before it are made.
func (x *executor) forward(o *op) (outlook, error) {
	done, err := x.done(o)
	if err != nil || done {
		return outlook{}, err
	}
	now, err := x.now(o.Path)
	if err != nil {
		return outlook{}, err
	}
	switch o.Kind {
	case opPut:
		return x.forwardPut(o, now)
	case opRmdir:
		return x.forwardRmdir(o, now)
	case opRemove:
		if now == nil {
			return outlook{}, nil
		}
	case opMeta:
		if x.ours[o.Path] != nil {
			return outlook{step: true}, nil
		}
	}
	switch {
	case now == nil:
		return outlook{blocked: KindDeletedByOriginal}, nil
	case o.Kind == opMeta:
		return outlook{step: true, blocked: foreign(now, o.Old, o.New)}, nil
	case !same(now, o.Old):
		return outlook{blocked: changed(o, now)}, nil
	}
	return outlook{step: true}, nil
}

func (x *executor) forwardPut(o *op, now *state) (outlook, error) {
	if now != nil && !x.freed[o.Path] {
		return outlook{blocked: KindAddedBoth}, nil
	}
	if x.ours[dirOf(o.Path)] != nil {
		return outlook{step: true}, nil
	}
	dir, _, err := x.tree.parent(o.Path)
	switch {
	case errors.Is(err, errParentMissing):
		return outlook{blocked: KindParentMissing}, nil
	case errors.Is(err, errParentReplaced):
		return outlook{blocked: KindParentReplaced}, nil
	case err != nil:
		return outlook{}, err
	}
	return outlook{step: true}, dir.Close()
}

func (x *executor) forwardRmdir(o *op, now *state) (outlook, error) {
	if now == nil || now.Type != layer.Dir {
		return outlook{}, nil
	}
	names, err := x.tree.names(o.Path)
	if err != nil {
		return outlook{}, err
	}
	alien := func(name string) bool { return !x.freed[o.Path+"/"+layer.Path(name)] }
	if slices.ContainsFunc(names, alien) {
		return outlook{blocked: KindNotEmpty}, nil
	}
	return outlook{step: true}, nil
}

// back says what taking an operation back would meet, given that those after it are taken back.
func (x *executor) back(o *op) (outlook, error) {
	if o.staged() || o.Kind == opRemove {
		// If not, it was never made, or is taken back already.
		if done, err := x.done(o); err != nil || !done {
			return outlook{}, err
		}
	}
	now, err := x.now(o.Path)
	if err != nil {
		return outlook{}, err
	}
	switch o.Kind {
	case opPut:
		return x.backPut(o, now)
	case opSwap:
		if now == nil || now.Ino != o.Ino || !same(now, o.New) {
			return outlook{blocked: KindModifiedSince}, nil
		}
	case opRemove, opRmdir:
		return x.backRemoved(o, now)
	case opMeta:
		p := x.ours[o.Path]
		if now == nil || p != nil && (now.Ino == p.Ino) != o.fresh() {
			return outlook{}, nil // what it changed is not there
		}
	}
	return outlook{step: true}, nil
}

func (x *executor) backPut(o *op, now *state) (outlook, error) {
	switch {
	case now == nil:
		return outlook{}, nil
	case now.Ino != o.Ino:
		return outlook{blocked: KindModifiedSince}, nil
	case o.New.Type != layer.Dir:
		if !same(now, o.New) {
			return outlook{blocked: KindModifiedSince}, nil
		}
		return outlook{step: true}, nil
	}
	names, err := x.tree.names(o.Path)
	if err != nil {
		return outlook{}, err
	}
	alien := func(name string) bool { return x.ours[o.Path+"/"+layer.Path(name)] == nil }
	if slices.ContainsFunc(names, alien) {
		return outlook{blocked: KindNotEmpty}, nil
	}
	return outlook{step: true}, nil
}

// backRemoved looks at where something is to return to.
func (x *executor) backRemoved(o *op, now *state) (outlook, error) {
	ours := x.ours[o.Path]
	switch {
	case now == nil, ours != nil && now.Ino == ours.Ino:
		return outlook{step: true}, nil
	case o.Kind == opRmdir && now.Type == layer.Dir:
		return outlook{}, nil
	}
	return outlook{blocked: KindAddedBoth}, nil
}

// revert takes one operation back, if it is done.
func (x *executor) revert(o *op) error {
	look, err := x.back(o)
	switch {
	case err != nil:
		return err
	case look.blocked != "":
		return &Blocked{Back: []Conflict{o.conflict(look.blocked, nil)}}
	case !look.step:
		return nil
	case o.Kind == opMeta:
		return x.unmeta(o)
	case o.Kind == opRmdir:
		return x.remake(o)
	}
	dir, name, err := x.tree.parent(o.Path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := x.unmove(o, dir, name); err != nil || o.Kind != opPut || o.New.Type != layer.Dir {
		return err
	}
	// Into a directory something could have come until it moved.
	names, err := x.stage.names(layer.Path(o.Slot))
	if err != nil || len(names) == 0 {
		return err
	}
	if err := x.move(o, dir, name); err != nil {
		return fmt.Errorf("applier: take back put %q: %w", o.Path, err)
	}
	return &Blocked{Back: []Conflict{o.conflict(KindNotEmpty, nil)}}
}
