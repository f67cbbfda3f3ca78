package worker

import (
	"context"
	"sync"
	"time"
)

// rushLimit is how long a replacement waits for claims at most: what hangs in one pool must not hold up the others.
const rushLimit = time.Second

// rush is the claims of a pool that are being brought to the remote's tip. Replacements wait for them: their work would make
// somebody wait, and be done again once the claim has found a newer tip. The zero value is ready.
type rush struct {
	mu   sync.Mutex
	n    int
	over chan struct{} // closed when n is 0 again; nil while it is
}

// enter begins a claim and returns what ends it.
func (r *rush) enter() (leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n++; r.n == 1 {
		r.over = make(chan struct{})
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.n--; r.n == 0 {
			close(r.over)
			r.over = nil
		}
	}
}

// wait returns when no claim is under way, after rushLimit, or when ctx ends.
func (r *rush) wait(ctx context.Context) {
	r.mu.Lock()
	over := r.over
	r.mu.Unlock()
	if over == nil {
		return
	}
	limit := time.NewTimer(rushLimit)
	defer limit.Stop()
	select {
	case <-over:
	case <-limit.C:
	case <-ctx.Done():
	}
}
