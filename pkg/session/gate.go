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

// Gate decides when calls that change a sandbox may run. Until Open they wait; those that waited then run one by one in
// the order they came. Later ones run at once, beside each other, behind what still waits. An exclusive call runs
// alone. Reads do not pass a gate. It is safe for concurrent use.
type Gate struct {
	mu        sync.Mutex
	open      bool
	shut      error
	waiting   []*waiter
	shared    int
	exclusive bool
}

type waiter struct {
	exclusive bool
	turn      chan struct{} // closed when it is its turn, or the gate was shut
	granted   bool
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
	return g.shared == 0 && !g.exclusive && len(g.waiting) == 0
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
func (g *Gate) Join(exclusive bool) (Ticket, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		return Ticket{}, g.shut
	}
	if len(g.waiting) >= MaxWaiting {
		return Ticket{}, fmt.Errorf("%w: %d", ErrBusy, MaxWaiting)
	}
	w := &waiter{exclusive: exclusive || !g.open, turn: make(chan struct{})}
	g.waiting = append(g.waiting, w)
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
func (g *Gate) Enter(ctx context.Context, exclusive bool) (leave func(), err error) {
	t, err := g.Join(exclusive)
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
	if w.exclusive {
		g.exclusive = false
	} else {
		g.shared--
	}
	g.grant()
}

// grant gives their turn to as many of the first in line as can run now.
func (g *Gate) grant() {
	for g.open && g.shut == nil && len(g.waiting) > 0 {
		w := g.waiting[0]
		if g.exclusive || w.exclusive && g.shared > 0 {
			return
		}
		g.waiting = g.waiting[1:]
		if w.exclusive {
			g.exclusive = true
		} else {
			g.shared++
		}
		w.granted = true
		close(w.turn)
	}
}
