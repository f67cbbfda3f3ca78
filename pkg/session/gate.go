package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// MaxWaiting is how many calls may wait at a gate; more are refused.
const MaxWaiting = 256

// Sentinels for errors.Is.
var (
	// ErrBusy: MaxWaiting calls wait already.
	ErrBusy = errors.New("session: too many calls wait")
	// ErrShut: the gate was shut for good; the cause is wrapped beside it.
	ErrShut = errors.New("session: shut")
)

// Kind is what a call does to a sandbox, and so what may go on beside it.
type Kind int

// The kinds. Calls of kinds Run and Write go beside each other.
const (
	// Run is a command.
	Run Kind = iota
	// Write is a file call.
	Write
	// Save goes beside commands that run, and nothing else.
	Save
	// Alone goes beside nothing.
	Alone
	kinds
)

// Gate decides when calls that change a sandbox may run. Until Open they wait; those that waited then run one by one in
// the order they came, and later ones at once, beside each other as far as their kinds allow, behind what still waits. Reads do
// not pass a gate. It is safe for concurrent use.
type Gate struct {
	mu      sync.Mutex
	open    bool
	shut    error
	waiting []*waiter
	running [kinds]int
}

type waiter struct {
	kind    Kind
	early   bool          // it came before the gate was opened
	turn    chan struct{} // closed when it is its turn, or the gate was shut
	granted bool
}

// Open lets calls through. A gate that was shut stays shut.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = true
	g.grant()
}

// Shut refuses all calls that wait, and all later ones, for a reason. Those that run are not touched. The first reason stays.
func (g *Gate) Shut(why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		return
	}
	g.shut = fmt.Errorf("%w: %w", ErrShut, why)
	for _, w := range g.waiting {
		close(w.turn)
	}
	g.waiting = nil
}

// Idle tells whether no call runs or waits.
func (g *Gate) Idle() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running == [kinds]int{} && len(g.waiting) == 0
}

// Running is how many calls of a kind have their turn. It does not grow while a Save or Alone has its.
func (g *Gate) Running(kind Kind) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running[kind]
}

// Saves tells whether a Save could run now, ahead of what waits.
func (g *Gate) Saves() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open && g.shut == nil && g.fits(&waiter{kind: Save})
}

// Waiting is how many calls wait.
func (g *Gate) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting)
}

// Ticket is a place in line.
type Ticket struct {
	gate *Gate
	w    *waiter
}

// Join takes the next place in line without waiting, so that calls keep the order in which their requests came.
// Whoever joins has to Wait.
func (g *Gate) Join(kind Kind) (Ticket, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) >= MaxWaiting && g.shut == nil {
		return Ticket{}, fmt.Errorf("%w: %d", ErrBusy, MaxWaiting)
	}
	return g.join(len(g.waiting), &waiter{kind: kind, early: !g.open, turn: make(chan struct{})})
}

// join puts a call in line. The lock is held.
func (g *Gate) join(at int, w *waiter) (Ticket, error) {
	if g.shut != nil {
		return Ticket{}, g.shut
	}
	g.waiting = slices.Insert(g.waiting, at, w)
	g.grant()
	return Ticket{g, w}, nil
}

// Wait returns at the call's turn, with what has to be called when it is done. A call whose ctx ends while it waits
// leaves the line and never has a turn.
func (t Ticket) Wait(ctx context.Context) (leave func(), err error) {
	g, w := t.gate, t.w
	select {
	case <-w.turn:
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case w.granted && ctx.Err() == nil:
		return sync.OnceFunc(func() { g.leave(w) }), nil
	case w.granted:
		g.leaveLocked(w)
		return nil, context.Cause(ctx)
	case ctx.Err() != nil:
		g.waiting = slices.DeleteFunc(g.waiting, func(x *waiter) bool { return x == w })
		g.grant() // those behind it may go on
		return nil, context.Cause(ctx)
	}
	return nil, g.shut
}

// Enter is Join and Wait.
func (g *Gate) Enter(ctx context.Context, kind Kind) (leave func(), err error) {
	t, err := g.Join(kind)
	if err != nil {
		return nil, err
	}
	return t.Wait(ctx)
}

// Ahead is Enter in front of all that wait.
func (g *Gate) Ahead(ctx context.Context, kind Kind) (leave func(), err error) {
	g.mu.Lock()
	t, err := g.join(0, &waiter{kind: kind, turn: make(chan struct{})})
	g.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return t.Wait(ctx)
}

func (g *Gate) leave(w *waiter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leaveLocked(w)
}

func (g *Gate) leaveLocked(w *waiter) {
	g.running[w.kind]--
	g.grant()
}

// grant gives their turn to as many of the first in line as can run now.
func (g *Gate) grant() {
	for g.open && g.shut == nil && len(g.waiting) > 0 {
		w := g.waiting[0]
		if !g.fits(w) {
			return
		}
		g.waiting = g.waiting[1:]
		g.running[w.kind]++
		w.granted = true
		close(w.turn)
	}
}

// fits tells whether a call may run beside those that do.
func (g *Gate) fits(w *waiter) bool {
	switch n := g.running; {
	case w.early, w.kind == Alone:
		return n == [kinds]int{}
	case w.kind == Save:
		return n[Write]+n[Save]+n[Alone] == 0
	default:
		return n[Save]+n[Alone] == 0
	}
}
