package scheduler

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// index is the state of every plan in the log and of every live worker, kept in memory.
// It is safe for concurrent use.
type index struct {
	changed chan struct{} // holds one token when there may be something to admit
	read    chan struct{} // closed once everything stored at start was read

	mu        sync.Mutex
	plans     map[string]known
	admission *admission
	dirty     map[string]events.Fold // final plans not yet written to the read model
	waiters   map[string][]chan events.Fold
	pools     map[string]bool // pools whose queue was made
}

// known is a plan's state after its last event, and when that was.
type known struct {
	fold events.Fold
	at   time.Time
}

func newIndex() *index {
	return &index{
		changed: make(chan struct{}, 1), read: make(chan struct{}), plans: map[string]known{},
		admission: newAdmission(), dirty: map[string]events.Fold{}, waiters: map[string][]chan events.Fold{},
		pools: map[string]bool{},
	}
}

// observe takes in one record; the mark (sequence 0) says that what was stored is read.
func (x *index) observe(r events.Record) {
	if r.Seq == 0 {
		close(x.read)
		x.poke()
		return
	}
	f, id := r.Event.Data.Plan, r.Event.Subject
	if f == nil {
		return
	}
	x.mu.Lock()
	x.plans[id] = known{*f, r.Event.Time}
	x.admission.observe(id, *f)
	if e := x.admission.plans[id]; e != nil && r.Event.Kind() == events.TypeClaimed {
		e.claimed = r.Event.Time
	}
	if r.Event.Data.Final || f.Undone {
		x.dirty[id] = *f
	}
	waiters := x.waiters[id]
	delete(x.waiters, id)
	x.mu.Unlock()
	for _, w := range waiters {
		w <- *f
	}
	x.poke()
}

func (x *index) poke() {
	select {
	case x.changed <- struct{}{}:
	default:
	}
}

// awaitRead returns once what was stored at start was read, or false when ctx ended first.
func (x *index) awaitRead(ctx context.Context) bool {
	select {
	case <-x.read:
		return true
	case <-ctx.Done():
		return false
	}
}

// worker takes in a worker's record, nil if it is gone.
func (x *index) worker(name string, w *events.Worker) {
	x.mu.Lock()
	defer x.mu.Unlock()
	defer x.poke()
	if w == nil {
		delete(x.admission.workers, name)
		return
	}
	x.admission.workers[name] = *w
}

// workers returns the live workers' records by name.
func (x *index) workers() map[string]events.Worker {
	x.mu.Lock()
	defer x.mu.Unlock()
	return maps.Clone(x.admission.workers)
}

// decide asks admission what to do now.
func (x *index) decide() []verdict {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.admission.decide()
}

func (x *index) withdraw(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.admission.withdraw(id)
}

// forgetQueued makes admission publish the command of every plan that nobody holds again.
func (x *index) forgetQueued() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.admission.plans {
		e.queued = ""
	}
}

// open returns the plans that are not final.
func (x *index) open() map[string]events.Fold {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := map[string]events.Fold{}
	for id, e := range x.admission.plans {
		if !e.fold.Final() {
			out[id] = e.fold
		}
	}
	return out
}

// dirtyAgain gives a plan back whose record could not be written.
func (x *index) dirtyAgain(id string, f events.Fold) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dirty[id] = f
}

// takeDirty returns the final plans that the read model lacks.
func (x *index) takeDirty() map[string]events.Fold {
	x.mu.Lock()
	defer x.mu.Unlock()
	d := x.dirty
	x.dirty = map[string]events.Fold{}
	return d
}

// ids returns all plans, oldest first: ids begin with their time.
func (x *index) ids() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Sorted(maps.Keys(x.plans))
}

// forget drops the plans that ended before a time: the log has dropped their events as well.
func (x *index) forget(before time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	maps.DeleteFunc(x.plans, func(_ string, p known) bool { return p.fold.Final() && p.at.Before(before) })
}

func (x *index) get(id string) (events.Fold, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	p, ok := x.plans[id]
	return p.fold, ok
}

// known returns a plan's state and when it came to be.
func (x *index) known(id string) (known, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	p, ok := x.plans[id]
	return p, ok
}

// await returns the plan's state as soon as there is one.
func (x *index) await(ctx context.Context, id string) (events.Fold, bool) {
	x.mu.Lock()
	if p, ok := x.plans[id]; ok {
		x.mu.Unlock()
		return p.fold, true
	}
	w := make(chan events.Fold, 1)
	x.waiters[id] = append(x.waiters[id], w)
	x.mu.Unlock()
	select {
	case f := <-w:
		return f, true
	case <-ctx.Done():
		x.leave(id, w)
		return events.Fold{}, false
	}
}

// leave takes back that somebody waits for a plan.
func (x *index) leave(id string, w chan events.Fold) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.waiters[id] = slices.DeleteFunc(x.waiters[id], func(c chan events.Fold) bool { return c == w })
	if len(x.waiters[id]) == 0 {
		delete(x.waiters, id)
	}
}

// newPools returns the pools of live workers whose queue was not made yet, and takes it for made.
func (x *index) newPools() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []string
	for _, w := range x.admission.workers {
		for token := range w.Pools {
			if !x.pools[token] {
				x.pools[token] = true
				out = append(out, token)
			}
		}
	}
	return out
}

func (x *index) poolFailed(token string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.pools, token)
}
