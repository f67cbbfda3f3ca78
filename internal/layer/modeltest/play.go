package modeltest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// Driver is a way to keep a tree with checkpoints that a model test plays on.
type Driver struct {
	Name    string
	Profile Profile
	// Owner is the user and group that the tree's files belong to, for a test that root runs.
	Owner int
	// Plain does a job in a plain directory, with the rights that the tree's own jobs have.
	Plain func(Job) (Report, error)
	// Start makes a tree that begins as a copy of the directory.
	Start func(dir string) (*Subject, error)
}

// Subject is a tree under test. Checkpoints are known by the numbers they were made with.
type Subject struct {
	// Run does a job in the tree.
	Run func(Job) (Report, error)
	// Checkpoint tells whether anything differs from the last one, or from what was rolled back to.
	Checkpoint func(n int) (changed bool, err error)
	// Rollback may be absent.
	Rollback func(n int) error
	// Move goes on from a checkpoint in another place. It may be absent.
	Move func(n int) error
	// Views are other ways to see a checkpoint. All are looked through at random, those of Always at each checkpoint.
	Views  map[string]View
	Always []string
	Close  func() error
	// Lax: without an index, an overlay gives a file of several names another inode when it is written to; and
	// without redirects it renames no directory of its lower layers.
	Lax bool
	// Ignore is what the tree does not show.
	Ignore layertest.Options
}

// View shows checkpoint n, and says what it cannot show.
type View func(n int) (layertest.Snapshot, layertest.Options, error)

// Event is one step of a history.
type Event struct {
	Do   Step
	Op   Op
	N    int    // a checkpoint
	Name string // of a view
}

// Step says what an Event is.
type Step string

// The steps.
const (
	StepOp         Step = "op"
	StepLook       Step = "look"       // compare the tree with the copy
	StepStart      Step = "start"      // make the tree under test of what the copy is now
	StepCheckpoint Step = "checkpoint" // N
	StepRollback   Step = "rollback"   // to N
	StepMove       Step = "move"       // to N in another place
	StepView       Step = "view"       // N by Name
	StepForget     Step = "forget"     // N is not needed any more
)

// String is a short form for people.
func (e Event) String() string {
	switch e.Do {
	case StepOp:
		return e.Op.String()
	case StepLook, StepStart:
		return string(e.Do)
	}
	return fmt.Sprintf("%s %d %s", e.Do, e.N, e.Name)
}

// maxRedirect is less than the length of a path that an overlay's redirect can hold: 256 (redirect_max of the module).
const maxRedirect = 200

// player plays a history on a subject and on a plain copy.
type player struct {
	driver  Driver
	dir     string // everything lies below
	plain   string
	subject *Subject
	pending []Op
	tree    layertest.Snapshot // what both show now
	last    layertest.Snapshot // what both showed at the last checkpoint
	saved   map[int]saved
	long    bool // some path was so long that no overlay renames a directory of its lower layers there
}

// saved is a checkpoint: the copy, and what the tree showed.
type saved struct {
	dir  string
	tree layertest.Snapshot
}

// newPlayer begins with an empty copy, which is below dir.
func newPlayer(d Driver, dir string) (*player, error) {
	p := &player{driver: d, dir: dir, plain: filepath.Join(dir, "plain"), saved: map[int]saved{}}
	err := os.Mkdir(p.plain, 0o755)
	if err == nil && os.Geteuid() == 0 {
		err = os.Chown(p.plain, d.Owner, d.Owner)
	}
	if err != nil {
		return nil, err
	}
	p.tree, err = layertest.Take(p.plain)
	return p, err
}

// close ends the subject and removes everything.
func (p *player) close() error {
	var err error
	if p.subject != nil {
		err = p.subject.Close()
	}
	return errors.Join(err, RemoveTree(p.dir))
}

// play does one event; an error says what differed.
func (p *player) play(e Event) error {
	if e.Do == StepOp {
		p.long = p.long || max(len(e.Op.Path), len(e.Op.To)) > maxRedirect
		p.pending = append(p.pending, e.Op)
		return nil
	}
	if err := p.flush(); err != nil {
		return err
	}
	s, known := p.saved[e.N]
	switch {
	case e.Do == StepStart && p.subject == nil:
		return p.start()
	case p.subject == nil:
		return nil
	case e.Do == StepCheckpoint:
		return p.checkpoint(e.N)
	case e.Do == StepLook || !known: // a shrunk history may have lost the checkpoint
		return nil
	case e.Do == StepRollback:
		return p.goBack(s, func() error { return p.subject.Rollback(e.N) }, p.untouched(s.tree))
	case e.Do == StepMove:
		return p.goBack(s, func() error { return p.subject.Move(e.N) }, nil)
	case e.Do == StepView:
		return p.view(e.Name, e.N, s.tree)
	case e.Do == StepForget:
		delete(p.saved, e.N)
		return RemoveTree(s.dir)
	}
	return fmt.Errorf("no step %q", e.Do)
}

// start makes the subject of the copy, with which it must agree.
func (p *player) start() error {
	var err error
	if p.subject, err = p.driver.Start(p.plain); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	got, err := p.look()
	if err != nil {
		return err
	}
	p.last = p.tree
	return p.agree("the new tree", got, p.tree, p.subject.Ignore)
}

// look is what the subject shows, completed with what its owner may not read.
func (p *player) look() (layertest.Snapshot, error) {
	r, err := done(p.subject.Run(Job{}))
	if err != nil {
		return nil, fmt.Errorf("look: %w", err)
	}
	return reveal(r.Tree, p.tree), nil
}

// flush does the pending operations in both trees, which then have to be the same.
func (p *player) flush() error {
	ops := p.pending
	p.pending = nil
	if len(ops) == 0 {
		return nil
	}
	if p.subject == nil {
		if _, err := done(p.driver.Plain(Job{Dir: p.plain, Ops: ops})); err != nil {
			return fmt.Errorf("change the copy: %w", err)
		}
		var err error
		p.tree, err = layertest.Take(p.plain)
		return err
	}
	in, err := done(p.subject.Run(Job{Ops: ops}))
	if err != nil {
		return fmt.Errorf("change the tree: %w", err)
	}
	out, err := done(p.driver.Plain(Job{Dir: p.plain, Ops: ops, Hints: in.Results}))
	if err != nil {
		return fmt.Errorf("change the copy: %w", err)
	}
	if err := p.sameResults(ops, in.Results, out.Results); err != nil {
		return err
	}
	return p.meet(in, out)
}

// done makes an error of what an agent could not do.
func done(r Report, err error) (Report, error) {
	if err == nil && r.Err != "" {
		err = errors.New(r.Err)
	}
	return r, err
}

func (p *player) sameResults(ops []Op, got, want []Result) error {
	for i, op := range ops {
		moved := got[i].Copied || got[i].Err == unix.EXDEV.Error()
		if !p.subject.Lax && (moved && !p.long || got[i].Split != [2]bool{}) {
			return fmt.Errorf("%v: ended as %+v, which no plain directory does", op, got[i])
		}
		if got[i] != want[i] {
			return fmt.Errorf("%v: ended as %+v, in a copy %+v", op, got[i], want[i])
		}
	}
	return nil
}

// meet compares both trees after operations. Times that come from the clock, and how finely holes are kept by a
// copy-up, cannot be the same; the copy takes over those of the tree.
func (p *player) meet(in, out Report) error {
	want, err := layertest.Take(p.plain)
	if err != nil {
		return err
	}
	times := map[string]int64{}
	got := reveal(in.Tree, want)
	for path, n := range got {
		w, ok := want[path]
		if !ok {
			continue
		}
		if n.MTime != w.MTime && within(n.MTime, in) && within(w.MTime, out) {
			times[path], w.MTime = n.MTime, n.MTime
		}
		if roughly(n, w) {
			w.Data = n.Data
		}
		want[path] = w
	}
	if err := p.agree("the tree", got, want, p.subject.Ignore); err != nil {
		return err
	}
	p.tree = want
	return setTimes(p.plain, times)
}

func within(ns int64, r Report) bool { return r.From <= ns && ns <= r.To }

// agree compares two trees in full.
func (p *player) agree(what string, got, want layertest.Snapshot, o layertest.Options) error {
	if d := cmp.Diff(coarse(o.Reduce(want)), coarse(o.Reduce(got))); d != "" {
		return fmt.Errorf("%s is not as the copy (-copy +tree):\n%s", what, d)
	}
	return nil
}

// checkpoint makes a checkpoint, which must change nothing.
func (p *player) checkpoint(n int) error {
	changed, err := p.subject.Checkpoint(n)
	if err != nil {
		return fmt.Errorf("checkpoint %d: %w", n, err)
	}
	ignore := p.subject.Ignore
	ignore.NoHoles = true
	differs := cmp.Diff(ignore.Reduce(p.last), ignore.Reduce(p.tree)) != ""
	if changed != differs {
		return fmt.Errorf("checkpoint %d: changed is %v, want %v", n, changed, differs)
	}
	got, err := p.look()
	if err != nil {
		return err
	}
	p.takeHoles(got)
	if err := p.agree(fmt.Sprintf("the tree after checkpoint %d", n), got, p.tree, p.subject.Ignore); err != nil {
		return err
	}
	s := saved{dir: filepath.Join(p.dir, fmt.Sprint("saved-", n)), tree: p.tree}
	if err := CopyTree(s.dir, p.plain); err != nil {
		return err
	}
	p.saved[n], p.last = s, p.tree
	for _, name := range p.subject.Always {
		if err := p.view(name, n, s.tree); err != nil {
			return err
		}
	}
	return nil
}

// takeHoles lets the tree's own layout of holes count, as far as the large ones are there.
func (p *player) takeHoles(got layertest.Snapshot) {
	tree := layertest.Snapshot{}
	for path, n := range p.tree {
		if g, ok := got[path]; ok && roughly(g, n) {
			n.Data = g.Data
		}
		tree[path] = n
	}
	p.tree = tree
}

// untouched are the files that already have the content of a checkpoint: their holes need not be made again.
func (p *player) untouched(back layertest.Snapshot) map[string]bool {
	same := map[string]bool{}
	for path, n := range back {
		if now, ok := p.tree[path]; ok && now.Digest == n.Digest && now.Size == n.Size {
			same[path] = true
		}
	}
	return same
}

// goBack makes the copy that of a checkpoint again, and the tree by what is tested.
func (p *player) goBack(s saved, do func() error, loose map[string]bool) error {
	if err := do(); err != nil {
		return err
	}
	if err := errors.Join(RemoveTree(p.plain), CopyTree(p.plain, s.dir)); err != nil {
		return err
	}
	p.tree, p.last = s.tree, s.tree
	got, err := p.look()
	if err != nil {
		return err
	}
	tree := layertest.Snapshot{}
	for path, n := range p.tree {
		if g, ok := got[path]; ok && loose[path] {
			n.Data = g.Data
		}
		tree[path] = n
	}
	p.tree = tree
	return p.agree("the tree gone back", got, p.tree, p.subject.Ignore)
}

func (p *player) view(name string, n int, want layertest.Snapshot) error {
	show, ok := p.subject.Views[name]
	if !ok {
		return nil
	}
	got, ignore, err := show(n)
	if err != nil {
		return fmt.Errorf("view %s of checkpoint %d: %w", name, n, err)
	}
	return p.agree(fmt.Sprintf("view %s of checkpoint %d", name, n), reveal(got, want), want, ignore)
}
