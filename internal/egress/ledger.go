package egress

import "sync"

// maxAlike is how many different decisions of one verdict are kept apart between two looks at them.
const maxAlike = 16

// Verdict is what became of an attempt to reach something.
type Verdict string

// The verdicts.
const (
	Allowed Verdict = "allowed"
	Denied  Verdict = "denied"
	Failed  Verdict = "failed" // allowed, but the host could not be reached
)

// Decision is about one host and port; never about what was said. Host is "" for a request that could not be read.
type Decision struct {
	Host    string
	Port    uint16
	Verdict Verdict
	Why     string // "" where it was allowed
	Count   int    // how often
}

// Decisions are what was decided in some time, in the order of the first of each kind.
type Decisions struct {
	List []Decision
	// Others is how many more there were, of kinds that List has no room for.
	Others int
}

// ledger keeps decisions, in bounded memory however many there are.
type ledger struct {
	mu  sync.Mutex
	now Decisions
}

func (l *ledger) add(d Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	alike := 0
	for i := range l.now.List {
		at := &l.now.List[i]
		if at.Verdict == d.Verdict {
			alike++
		}
		if at.Host == d.Host && at.Port == d.Port && at.Verdict == d.Verdict && at.Why == d.Why {
			at.Count++
			return
		}
	}
	if alike == maxAlike {
		l.now.Others++
		return
	}
	d.Count = 1
	l.now.List = append(l.now.List, d)
}

func (l *ledger) take() Decisions {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.now
	l.now = Decisions{}
	return d
}
