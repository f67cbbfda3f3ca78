package scheduler

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// overcommit is how many commands may be queued per free slot, so that a worker that has
// just become free finds the next one there.
const overcommit = 2

// verdict is what admission decides about one plan.
type verdict struct {
	id string
	// pool and verb name the command to publish; pool is "" if none is to be published.
	pool string
	verb string
	// waiting is why the plan has to wait, and reject why it can never run.
	waiting, reject string
}

// admission is the pure core of admitting plans: it holds what the log and the workers'
// records say and decides which commands to publish. It is not safe for concurrent use.
type admission struct {
	plans   map[string]*entry
	workers map[string]events.Worker
	pools   map[string]poolFact
}

// entry is one plan that is not final, or is being undone.
type entry struct {
	id   string
	fold events.Fold
	// queued is the verb of the command that was published for it, "" if none is outstanding.
	queued string
	pool   string
	// claimed is when it was claimed last; a worker that started later is not its holder.
	claimed time.Time
}

func newAdmission() *admission {
	return &admission{plans: map[string]*entry{}, workers: map[string]events.Worker{}}
}

// observe takes in the state of a plan after an event.
func (a *admission) observe(id string, f events.Fold) {
	if f.Final() && !f.Undoing {
		delete(a.plans, id)
		return
	}
	e := a.plans[id]
	if e == nil {
		e = &entry{id: id}
		a.plans[id] = e
	}
	e.fold = f
	if f.Held || f.State == events.StateAwaitingApproval {
		e.queued = "" // the command was claimed, or did its work
	}
}

// pending tells whether a command has to be published for the plan to go on.
func (a *admission) pending(e *entry) bool {
	return e.queued == "" && (!e.fold.Held || a.lost(e)) && e.fold.State != events.StateAwaitingApproval
}

// lost tells whether the worker that holds a plan is gone. Its command is queued and comes to another one by itself, unless it was
// taken back with the queue of a removed pool; to queue it twice is not possible.
func (a *admission) lost(e *entry) bool {
	w, live := a.workers[e.fold.Worker]
	return !live || w.Started.After(e.claimed)
}

func (e *entry) verb() string {
	if e.fold.Undoing {
		return events.VerbUndo
	}
	if e.fold.Executed {
		return events.VerbApply
	}
	return events.VerbRun
}

// decide returns what to do about every pending plan, in the order of class and age.
func (a *admission) decide() []verdict {
	room := a.room()
	var out []verdict
	for _, e := range a.inOrder() {
		v := verdict{id: e.id}
		pool, why := a.route(e.fold)
		switch {
		case (e.fold.Undoing || e.fold.Held) && (why.reject != "" || why.wait != ""):
			continue // it waits; a plan that has ended or is held says no more about itself
		case why.reject != "":
			v.reject = why.reject
		case why.wait != "":
			v.waiting = why.wait
		case a.paused(pool) != "":
			v.waiting = a.paused(pool)
		case room[pool] > 0:
			v.pool, v.verb = pool, e.verb()
			room[pool]--
			e.queued, e.pool = v.verb, pool
		default:
			continue // in line: its turn comes when a slot is free
		}
		out = append(out, v)
	}
	return out
}

// withdraw takes back that a command was published: publishing it failed.
func (a *admission) withdraw(id string) {
	if e := a.plans[id]; e != nil {
		e.queued = ""
	}
}

func (a *admission) inOrder() []*entry {
	var out []*entry
	for _, e := range a.plans {
		if a.pending(e) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(x, y *entry) int {
		return cmp.Or(cmp.Compare(rank(x.fold.Class), rank(y.fold.Class)), x.fold.Created.Compare(y.fold.Created), cmp.Compare(x.id, y.id))
	})
	return out
}

func rank(class string) int {
	switch class {
	case "high":
		return 0
	case "low":
		return 2
	default:
		return 1
	}
}

// room is how many more commands each pool may hold: overcommit times its free slots less
// what is queued. A worker's slots count for each of its pools.
func (a *admission) room() map[string]int {
	held, room := map[string]int{}, map[string]int{}
	for _, e := range a.plans {
		if e.fold.Held {
			held[e.fold.Worker]++
		}
	}
	for name, w := range a.workers {
		if w.State != events.WorkerReady || w.Paused != "" {
			continue
		}
		for token := range w.Pools {
			room[token] += overcommit * max(w.Slots-held[name], 0)
		}
	}
	for _, e := range a.plans {
		if e.queued != "" {
			room[e.pool]--
		}
	}
	return room
}

// reason says why a plan cannot be routed now, or ever.
type reason struct{ wait, reject string }

// paused is why no plan of a pool can begin though workers of it live, "" if one can.
func (a *admission) paused(pool string) string {
	why := ""
	for _, name := range slices.Sorted(maps.Keys(a.workers)) {
		w := a.workers[name]
		if _, serves := w.Pools[pool]; !serves || w.State != events.WorkerReady {
			continue
		}
		if w.Paused == "" {
			return ""
		}
		why = "worker " + name + " is paused: " + w.Paused
	}
	return why
}

// route picks the pool of a plan from what live workers serve.
func (a *admission) route(f events.Fold) (string, reason) {
	if f.Resource.Path != "" {
		return a.routePath(f)
	}
	if f.Pool != "" {
		return a.routeNamed(f)
	}
	if a.served("default") {
		return "default", reason{}
	}
	return "", reason{wait: "no live worker of pool default"}
}

// routePath picks the longest allowed path of the host that contains the resource. A plan that
// was claimed once is not rejected any more: its worker may only be restarting.
func (a *admission) routePath(f events.Fold) (string, reason) {
	r, token, longest, live := f.Resource, "", -1, false
	for _, w := range a.workers {
		if w.Host != r.Host {
			continue
		}
		live = true
		if t := w.PathPool(r.Path); t != "" && len(w.Pools[t]) > longest {
			token, longest = t, len(w.Pools[t])
		}
	}
	switch {
	case token != "":
		return token, reason{}
	case live && f.Epoch > 0:
		return "", reason{wait: "no live worker of host " + r.Host + " allows " + r.Path}
	case live:
		return "", reason{reject: "path " + r.Path + ": no live worker of host " + r.Host + " allows it: start one with --allow-path"}
	default:
		return "", reason{wait: "no live worker of host " + r.Host}
	}
}
