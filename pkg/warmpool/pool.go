package warmpool

import (
	"context"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// checkEvery is how often idle members are looked at although nothing was heard of them.
const checkEvery = time.Minute

// StandBack is how long after a claim its replacement is begun: whoever claimed is about to start something, and making a member
// would take a good part of a small machine from it.
const StandBack = 20 * time.Millisecond

// Config says what a pool keeps and how.
type Config[T io.Closer] struct {
	Settings
	// Make makes a member of a generation. A failure is logged and tried again after a pause that grows.
	Make func(ctx context.Context, generation string) (T, error)
	// Alive, if set, tells whether an idle member still works.
	Alive func(T) bool
	// Gate bounds how many members are made at once beside other pools; nil: it does not.
	Gate *Gate
	Log  zerolog.Logger
}

// Pool keeps members warm by what a Core decides. It is safe for concurrent use.
type Pool[T io.Closer] struct {
	cfg  Config[T]
	wake chan struct{}
	work sync.WaitGroup // what Run has begun
	done chan struct{}

	mu     sync.Mutex
	core   *Core
	things map[ID]T // ready ones
}

// New returns a pool that is empty until Run fills it.
func New[T io.Closer](cfg Config[T]) *Pool[T] {
	return &Pool[T]{
		cfg: cfg, wake: make(chan struct{}, 1), done: make(chan struct{}), core: NewCore(cfg.Settings), things: map[ID]T{},
	}
}

// Run refills the pool until ctx ends, then closes what idles. Call it once.
func (p *Pool[T]) Run(ctx context.Context) {
	defer close(p.done)
	defer p.drop()
	defer p.cfg.Gate.leave(p.wake)
	for ctx.Err() == nil {
		pause := time.NewTimer(p.step(ctx))
		select {
		case <-ctx.Done():
		case <-p.wake:
		case <-pause.C:
		}
		pause.Stop()
	}
	p.work.Wait()
}

// Wait returns when Run has closed everything.
func (p *Pool[T]) Wait() { <-p.done }

// Claim takes the youngest valid member, if there is one. It never blocks on making one.
func (p *Pool[T]) Claim() (T, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer time.AfterFunc(StandBack, func() { poke(p.wake) })
	for {
		id, ok := p.core.Claim(time.Now())
		t := p.things[id]
		if !ok {
			return t, false
		}
		if p.alive(t) {
			delete(p.things, id)
			return t, true
		}
		p.core.Dead(id)
	}
}

// Configure changes what the pool keeps.
func (p *Pool[T]) Configure(s Settings) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.core.Configure(s)
	poke(p.wake)
}

// Prewarm keeps one more than the target until the given time.
func (p *Pool[T]) Prewarm(until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.core.Prewarm(until)
	poke(p.wake)
}

// Check lets the pool look for members that no longer work, and try again what failed.
func (p *Pool[T]) Check() { poke(p.wake) }

// Stats returns the numbers so far.
func (p *Pool[T]) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.core.Stats(time.Now())
}

// Each calls do for every idle member, oldest first. A member may be claimed or dropped meanwhile.
func (p *Pool[T]) Each(do func(T)) {
	p.mu.Lock()
	var idle []T
	for _, id := range p.core.Members() {
		idle = append(idle, p.things[id])
	}
	p.mu.Unlock()
	for _, t := range idle {
		do(t)
	}
}

func (p *Pool[T]) alive(t T) bool { return p.cfg.Alive == nil || p.cfg.Alive(t) }

// step begins what is to be done and returns how long nothing else will be.
func (p *Pool[T]) step(ctx context.Context) time.Duration {
	var acts []Action
	var gone []T
	pause := checkEvery
	p.cfg.Gate.take(p.wake, func(room int) (used int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		now := time.Now()
		p.core.Gone(func(id ID) bool { return !p.alive(p.things[id]) })
		acts = p.core.Next(now, room)
		for _, a := range acts {
			if a.Kind == Make {
				used++
				continue
			}
			if t, ok := p.things[a.ID]; ok {
				gone = append(gone, t)
				delete(p.things, a.ID)
			}
			p.cfg.Log.Debug().Str("why", a.Why).Msg("warm pool: drop a member")
		}
		if at := p.core.Wake(now); !at.IsZero() {
			pause = min(pause, at.Sub(now))
		}
		return used
	})
	for _, a := range acts {
		if a.Kind == Make {
			p.work.Go(func() { p.make(ctx, a) })
		}
	}
	if len(gone) > 0 {
		p.work.Go(func() { closeAll(gone) })
	}
	return pause
}

// make makes one member.
func (p *Pool[T]) make(ctx context.Context, a Action) {
	defer poke(p.wake)
	defer p.cfg.Gate.give()
	t, err := p.cfg.Make(ctx, a.Generation)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil {
			p.cfg.Log.Warn().Err(err).Msg("warm pool: make a member")
		}
		p.core.Failed(time.Now(), a.ID, err.Error())
		return
	}
	p.things[a.ID] = t
	p.core.Made(time.Now(), a.ID)
}

// drop closes what idles at the end.
func (p *Pool[T]) drop() {
	p.mu.Lock()
	gone := slices.Collect(maps.Values(p.things))
	p.things = map[ID]T{}
	p.core.Gone(func(ID) bool { return true })
	p.mu.Unlock()
	closeAll(gone)
}

func closeAll[T io.Closer](things []T) {
	for _, t := range things {
		t.Close() // its owner reports what fails
	}
}
