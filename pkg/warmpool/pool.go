// Package warmpool keeps things that are slow to make ready before they are asked for:
// a claim takes one in constant time and starts its replacement in the background.
//
// A claimed thing never goes back. The package knows ages, numbers and refill; it must not
// know what it keeps, nor NATS, plans or layers.
package warmpool

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// Config says what a pool keeps.
type Config[T io.Closer] struct {
	// Target is how many idle members to keep; 0 keeps none.
	Target int
	// MaxAge is how long a member may idle; 0 means for ever.
	MaxAge time.Duration
	// Make makes a member. A failure is logged and tried again after Retry.
	Make func(context.Context) (T, error)
	// Alive, if set, tells whether an idle member still works.
	Alive func(T) bool
	// Retry is the pause after a failed Make; one second if zero.
	Retry time.Duration
	Log   zerolog.Logger
}

// Stats are counts since the pool was made.
type Stats struct {
	Idle, Hits, Misses, Expired int
}

// Pool keeps members warm. It is safe for concurrent use.
type Pool[T io.Closer] struct {
	cfg  Config[T]
	wake chan struct{}

	mu      sync.Mutex
	members []member[T] // oldest first
	stats   Stats
	done    chan struct{}
}

type member[T io.Closer] struct {
	thing T
	born  time.Time
}

// New returns a pool that is empty until Run fills it.
func New[T io.Closer](cfg Config[T]) *Pool[T] {
	if cfg.Retry == 0 {
		cfg.Retry = time.Second
	}
	return &Pool[T]{cfg: cfg, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// Run refills the pool until ctx ends, then closes what idles. Call it once.
func (p *Pool[T]) Run(ctx context.Context) {
	defer close(p.done)
	defer p.drop()
	for {
		pause := p.fill(ctx)
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-time.After(pause):
		}
	}
}

// Wait returns when Run has closed everything.
func (p *Pool[T]) Wait() { <-p.done }

// Claim takes the youngest valid member, if there is one. It never blocks on making one.
func (p *Pool[T]) Claim() (T, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.poke()
	for n := len(p.members); n > 0; n = len(p.members) {
		m := p.members[n-1]
		p.members = p.members[:n-1]
		if p.valid(m) {
			p.stats.Hits++
			return m.thing, true
		}
		p.stats.Expired++
		go m.thing.Close()
	}
	p.stats.Misses++
	var none T
	return none, false
}

// Stats returns the counts so far.
func (p *Pool[T]) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Idle = len(p.members)
	return s
}

func (p *Pool[T]) valid(m member[T]) bool {
	young := p.cfg.MaxAge == 0 || time.Since(m.born) < p.cfg.MaxAge
	return young && (p.cfg.Alive == nil || p.cfg.Alive(m.thing))
}

// fill makes what is missing and returns how long nothing will need doing.
func (p *Pool[T]) fill(ctx context.Context) time.Duration {
	p.expire()
	for p.missing() > 0 && ctx.Err() == nil {
		thing, err := p.cfg.Make(ctx)
		if err != nil {
			p.cfg.Log.Warn().Err(err).Msg("warm pool: make a member")
			return p.cfg.Retry
		}
		p.mu.Lock()
		p.members = append(p.members, member[T]{thing, time.Now()})
		p.mu.Unlock()
	}
	return time.Minute
}

func (p *Pool[T]) missing() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cfg.Target - len(p.members)
}

// expire closes members that became invalid while idle; it collects under the lock and acts outside it.
func (p *Pool[T]) expire() {
	p.mu.Lock()
	var keep, gone []member[T]
	for _, m := range p.members {
		if p.valid(m) {
			keep = append(keep, m)
		} else {
			gone = append(gone, m)
		}
	}
	p.members, p.stats.Expired = keep, p.stats.Expired+len(gone)
	p.mu.Unlock()
	for _, m := range gone {
		m.thing.Close()
	}
}

func (p *Pool[T]) drop() {
	p.mu.Lock()
	gone := p.members
	p.members = nil
	p.mu.Unlock()
	for _, m := range gone {
		m.thing.Close()
	}
}

func (p *Pool[T]) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}
