// Package sandbox joins a view of layers with an isolated init into a sandbox: a place
// where steps run, whose changes can be closed into a layer, dropped, or handed on.
//
// The strategies (none, copy_on_write, git_worktree) differ only in the base and the view
// they are given. The package knows layers and inits; it must not know plans, events,
// records or NATS.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/warmfleet/warmfleet/internal/disk"
	"github.com/warmfleet/warmfleet/internal/egress"
	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/reserve"
)

// ErrClosed is returned by every call on a sandbox that was cleaned up.
var ErrClosed = errors.New("sandbox: closed")

// Host is what a worker makes sandboxes of.
type Host struct {
	Cache   *layer.Cache
	Mounter isolate.Mounter
	Report  isolate.Report
	// Layers is the driver of all views but those in place, from Cache.Choose.
	Layers layer.Choice
	// Init hands over a started init of the asked network mode of package isolate, warm or cold.
	Init func(ctx context.Context, network string, noSetuid bool) (*isolate.Init, error)
	// Egress is how listed hosts are reached; Listener and Rules are each sandbox's own.
	Egress egress.Config
	// Disks makes disks for sandboxes with a limit of Disk; nil where none can be made: then what is written is measured.
	Disks *disk.Maker
	// Reserve, if set, ends commands that use up what is kept free on the file system of the cache.
	Reserve *reserve.Reserve
	// Notify, if set, is told each change of state, in order. It must not call the sandbox.
	Notify func(Change)
}

// Change is one move of a sandbox.
type Change struct {
	ID       string
	From, To State
	// View is what shows the tree, once there is one, and why not something better.
	View     layer.Choice
	Strategy Strategy
	// Cause is why it errored, nil otherwise.
	Cause error
}

// Spec says what a sandbox starts from.
type Spec struct {
	ID       string
	Strategy Strategy
	// Chain is the base and the layers of the checkpoint to start from, bottom first.
	Chain layer.Chain
	// Network is one of package isolate's; with NetworkProxy Hosts are what can be reached, see egress.ParseRules.
	Network string
	Hosts   []string
	// Path and Index are the original and its stat index; strategy none only.
	Path  string
	Index *layer.Index
	// Limits bound each command; those that this machine can't enforce do nothing.
	Limits isolate.Limits
}

// Sandbox is a writable view of a chain with a live init. Its methods are safe for
// concurrent use, but a Freeze or Reset waits for nothing: a command that runs meanwhile is killed.
type Sandbox struct {
	host Host
	spec Spec

	mu     sync.Mutex
	state  State
	view   layer.View
	disk   *disk.Disk // what the view's open layer lies on; nil without one of its own
	init   *isolate.Init
	shown  layer.Choice          // by view
	before func() (int64, error) // what a view that is a plain directory held when it was first measured
	proxy  *egress.Proxy         // nil but with NetworkProxy
	env    []string              // by which programs find it

	roomMu sync.Mutex
	room   measured
}

// New makes a sandbox and returns it active, or errored and cleaned up with the cause.
func New(ctx context.Context, host Host, spec Spec) (*Sandbox, error) {
	s := &Sandbox{host: host, spec: spec, state: Pending}
	if err := s.build(ctx); err != nil {
		s.move(Errored, err)
		s.release()
		s.move(CleanedUp, nil)
		return nil, fmt.Errorf("sandbox: create %q: %w", spec.ID, err)
	}
	return s, nil
}

func (s *Sandbox) build(ctx context.Context) error {
	started := make(chan error, 1)
	go func() { started <- s.startInit(ctx) }() // neither needs the other
	mount, err := s.open(ctx)
	if mount != nil {
		defer mount.Close() // a second descriptor would keep the mount busy at detach
	}
	if err := errors.Join(err, <-started); err != nil {
		return err
	}
	if err := s.bound(); err != nil {
		return err
	}
	if err := s.attach(ctx, mount); err != nil {
		return err
	}
	s.move(Active, nil)
	return nil
}

// openView opens the view by the worker's driver, or in place.
func (s *Sandbox) openView(ctx context.Context) error {
	c := s.host.Cache
	var v layer.View
	var err error
	shown := s.host.Layers
	if s.spec.Strategy == None {
		shown = layer.Choice{Driver: layer.InPlace, Why: "strategy none works in the original"}
		v, err = c.OpenInPlace(ctx, s.spec.Path, s.spec.Chain, s.spec.Index)
	} else if s.host.HasDisk(s.spec) {
		v, err = s.openOnDisk(ctx)
	} else {
		v, err = c.Open(ctx, shown.Driver, s.spec.Chain)
	}
	if err == nil {
		s.view, s.shown = v, shown
		s.before = sync.OnceValues(func() (int64, error) { return sizeOf([]string{v.Mount().Bind}) })
	}
	return err
}

// open opens the view and mounts it.
func (s *Sandbox) open(ctx context.Context) (*os.File, error) {
	if err := s.openView(ctx); err != nil {
		return nil, err
	}
	s.move(Created, nil)
	return s.mount(ctx)
}

// mount makes the view a workspace to attach; nil where that is a path.
func (s *Sandbox) mount(ctx context.Context) (*os.File, error) {
	m := s.view.Mount()
	if !s.host.Report.Rung.Mounts() {
		return nil, nil
	}
	if m.Bind != "" {
		return s.host.Mounter.Bind(ctx, isolate.Bind{Dir: m.Bind, IDMap: m.IDMap})
	}
	// Volatile: unmounting would else wait until the disk has all that anyone wrote to its file system, at each
	// checkpoint; no open layer outlives a crash of the machine anyway.
	return s.host.Mounter.Overlay(ctx, isolate.Overlay{Lowers: m.Lowers, Upper: m.Upper, Work: m.Work, Volatile: true, Live: m.Live})
}

// attach gives the init what mount returned.
func (s *Sandbox) attach(ctx context.Context, mount *os.File) error {
	if mount == nil {
		return s.init.AttachDir(ctx, s.view.Mount().Bind)
	}
	return s.init.Attach(ctx, mount)
}

// reattach mounts and attaches the view as it is now.
func (s *Sandbox) reattach(ctx context.Context) error {
	mount, err := s.mount(ctx)
	if err != nil {
		return err
	}
	defer mount.Close()
	return s.attach(ctx, mount)
}

// Done is closed when the sandbox's init and everything in it are dead.
func (s *Sandbox) Done() <-chan struct{} { return s.init.Done() }

// Pid is the process id of the sandbox's init.
func (s *Sandbox) Pid() int { return s.init.Pid() }

// ID is the sandbox's id.
func (s *Sandbox) ID() string { return s.spec.ID }

// Strategy is the strategy the sandbox was made with.
func (s *Sandbox) Strategy() Strategy { return s.spec.Strategy }

// Driver is what shows the tree, and why not something better.
func (s *Sandbox) Driver() layer.Choice { return s.shown }

// State is the present state.
func (s *Sandbox) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// Chain is the closed layers under the open one.
func (s *Sandbox) Chain() layer.Chain {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.view == nil {
		return nil
	}
	return s.view.Chain()
}

// BaseEnv is the environment that every command in the sandbox needs, as NAME=value.
func (s *Sandbox) BaseEnv() []string {
	return slices.Concat(s.init.BaseEnv(), s.env, coresEnv(s.spec.Limits.CPUs))
}

// Exec runs a command in the workspace; see isolate.Init.Exec.
func (s *Sandbox) Exec(ctx context.Context, c isolate.Command) (isolate.Result, error) {
	in, err := s.live()
	if err != nil {
		return isolate.Result{}, err
	}
	return s.guarded(ctx, in, c)
}

func (s *Sandbox) live() (*isolate.Init, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != Active {
		return nil, fmt.Errorf("sandbox: use %q: %w in state %s", s.spec.ID, ErrClosed, s.state)
	}
	return s.init, nil
}

// Freeze closes what changed since the last Freeze into a layer and returns the whole
// chain. Running commands are killed. On error nothing is lost: the open layer stays.
func (s *Sandbox) Freeze(ctx context.Context) (layer.Chain, error) {
	err := s.swap(ctx, Checkpointed, func() error {
		_, _, err := s.view.Freeze(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("sandbox: checkpoint %q: %w", s.spec.ID, err)
	}
	return s.Chain(), nil
}

// Reset drops the open layer and shows exactly chain. Running commands are killed.
// When it fails the tree is as it was before the call.
func (s *Sandbox) Reset(ctx context.Context, chain layer.Chain) error {
	err := s.swap(ctx, RolledBack, func() error { return s.view.Reset(ctx, chain) })
	if err != nil {
		return fmt.Errorf("sandbox: roll back %q: %w", s.spec.ID, err)
	}
	return nil
}

// swap detaches the workspace, changes the view and attaches it again.
func (s *Sandbox) swap(ctx context.Context, via State, change func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.state.Next(via); err != nil {
		return err
	}
	if err := s.init.Detach(ctx); err != nil {
		return err
	}
	changed := change()
	if changed == nil {
		s.moveLocked(via, nil)
	}
	if err := s.reattach(ctx); err != nil {
		return errors.Join(changed, err)
	}
	if changed != nil {
		return changed
	}
	s.moveLocked(Active, nil)
	return nil
}

// Commit marks that the sandbox's changes were handed on; only Close may follow.
func (s *Sandbox) Commit() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.state.Next(Committed); err != nil {
		return err
	}
	s.moveLocked(Committed, nil)
	return nil
}

// Close ends the init and everything in it and removes the open layer. Closing twice is fine.
func (s *Sandbox) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == CleanedUp {
		return nil
	}
	if s.state == Active {
		s.moveLocked(RolledBack, nil) // never applied: what is open is dropped with the sandbox
	}
	err := s.release()
	s.moveLocked(CleanedUp, err)
	return err
}

func (s *Sandbox) release() error {
	var errs []error
	if s.proxy != nil {
		s.proxy.Close()
	}
	if s.init != nil {
		errs = append(errs, s.init.Close())
	}
	if s.view != nil {
		errs = append(errs, s.view.Close())
	}
	if s.disk != nil {
		errs = append(errs, s.disk.Close())
	}
	return errors.Join(errs...)
}

func (s *Sandbox) move(to State, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moveLocked(to, cause)
}

func (s *Sandbox) moveLocked(to State, cause error) {
	from := s.state
	if err := from.Next(to); err != nil {
		panic(err) // callers check first: reaching this is a bug here
	}
	s.state = to
	if s.host.Notify != nil {
		s.host.Notify(Change{ID: s.spec.ID, From: from, To: to, View: s.shown, Strategy: s.spec.Strategy, Cause: cause})
	}
}
