package scheduler

import (
	"github.com/warmfleet/warmfleet/pkg/events"
)

// poolFact is what admission has to know of a pool.
type poolFact struct {
	built  bool   // it has an image
	failed string // why its last build failed
}

// facts returns what admission has to know of each pool.
func (p *pools) facts() map[string]poolFact {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]poolFact{}
	for name := range p.byName {
		one := p.lookup(name)
		out[name] = poolFact{built: one.built, failed: one.latest.Error}
	}
	return out
}

// pool takes in what is known of the pools.
func (x *index) pool(facts map[string]poolFact) {
	x.mu.Lock()
	defer x.mu.Unlock()
	defer x.poke()
	x.admission.pools = facts
}

// serves tells whether a live worker serves a pool.
func (x *index) serves(name string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.admission.served(name)
}

func (a *admission) served(name string) bool {
	for _, w := range a.workers {
		if _, serves := w.Pools[name]; serves {
			return true
		}
	}
	return false
}

// waitFor counts the plans that have not ended and name a pool.
func (x *index) waitFor(name string) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := 0
	for _, e := range x.admission.plans {
		if e.fold.Pool == name && !e.fold.Final() {
			n++
		}
	}
	return n
}

// withdrawAll takes back the commands of a removed pool that nobody has claimed, and returns them; also those that an earlier
// leader may have queued.
func (x *index) withdrawAll(name string) []events.Command {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []events.Command
	for _, e := range x.admission.plans {
		if e.fold.Pool == name && !e.fold.Held {
			out = append(out, events.NewCommand(name, e.verb(), e.id))
			e.queued = ""
		}
	}
	return out
}

// routeNamed says where a plan of a named pool goes. What was begun goes on without an image; what was not waits for it,
// since a plan without what the recipe made is another plan.
func (a *admission) routeNamed(f events.Fold) (string, reason) {
	fact, there := a.pools[f.Pool]
	begun := f.Epoch > 0 || f.Executed || f.Undoing
	switch {
	case !there:
		return "", reason{wait: "pool " + f.Pool + " was removed: apply it again, or cancel the plan"}
	case !a.served(f.Pool):
		return "", reason{wait: "no live worker of pool " + f.Pool}
	case begun || fact.built:
		return f.Pool, reason{}
	case fact.failed != "":
		return "", reason{wait: "pool " + f.Pool + " has no image: its last build failed: " + cut(fact.failed)}
	default:
		return "", reason{wait: "pool " + f.Pool + " has no image yet: it is being built"}
	}
}

// cut keeps a reason within what an event should hold.
func cut(s string) string {
	const most = 300
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "..."
	}
	return s
}
