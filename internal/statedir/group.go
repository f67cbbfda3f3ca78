package statedir

import (
	"context"
	"sync"
)

// Group shares one piece of work per key among callers that ask at the same time. A caller never
// gets the result of work that began before it asked: while one run is under way, all later callers
// share the next one. So N simultaneous calls cost at most two runs, and the result is never stale.
// The zero value is ready. Safe for concurrent use.
type Group[T any] struct {
	mu   sync.Mutex
	keys map[string]*lane[T]
}

// lane is the work of one key: the run under way, and the one that waits for it.
type lane[T any] struct {
	running, next *flight[T]
}

type flight[T any] struct {
	done    chan struct{}
	waiters int
	ctx     context.Context
	cancel  context.CancelFunc
	fn      func(context.Context) (T, error)
	val     T
	err     error
}

// Do returns the result of a run of fn, its own or that of a caller with the same key. The run's
// context carries the values of the caller that began it and ends when every caller has given up.
// Do itself returns when ctx ends.
func (g *Group[T]) Do(ctx context.Context, key string, fn func(context.Context) (T, error)) (T, error) {
	f := g.join(ctx, key, fn)
	select {
	case <-f.done:
		return f.val, f.err
	case <-ctx.Done():
		g.leave(f)
		var zero T
		return zero, ctx.Err()
	}
}

func (g *Group[T]) join(ctx context.Context, key string, fn func(context.Context) (T, error)) *flight[T] {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.keys == nil {
		g.keys = map[string]*lane[T]{}
	}
	l := g.keys[key]
	if l != nil && l.next != nil && l.next.ctx.Err() == nil {
		l.next.waiters++
		return l.next
	}
	f := &flight[T]{done: make(chan struct{}), waiters: 1, fn: fn}
	f.ctx, f.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if l != nil {
		if l.next != nil {
			l.next.finish(*new(T), l.next.ctx.Err())
		}
		l.next = f
		return f
	}
	g.keys[key] = &lane[T]{running: f}
	go g.run(key)
	return f
}

func (g *Group[T]) leave(f *flight[T]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f.waiters--; f.waiters == 0 {
		f.cancel()
	}
}

// run works off a key's lane and removes it.
func (g *Group[T]) run(key string) {
	for {
		g.mu.Lock()
		f := g.keys[key].running
		g.mu.Unlock()
		val, err := f.fn(f.ctx)
		g.mu.Lock()
		f.finish(val, err)
		l := g.keys[key]
		l.running, l.next = l.next, nil
		if l.running == nil {
			delete(g.keys, key)
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
	}
}

func (f *flight[T]) finish(val T, err error) {
	f.val, f.err = val, err
	f.cancel()
	close(f.done)
}
