package warmpool

import "sync"

// Gate bounds how many members several pools make at once. It is safe for concurrent use; a nil Gate bounds nothing.
type Gate struct {
	mu   sync.Mutex
	free int
	wake map[chan<- struct{}]bool // those to be told when there is room
}

// NewGate returns a gate for limit members at once.
func NewGate(limit int) *Gate { return &Gate{free: limit, wake: map[chan<- struct{}]bool{}} }

// take lets use decide with the room there is, and takes the places that it says it uses. wake gets a value, if it has room
// for one, whenever a place became free.
func (g *Gate) take(wake chan<- struct{}, use func(room int) int) {
	if g == nil {
		use(unbounded)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wake[wake] = true
	g.free -= use(g.free)
}

// give returns a place.
func (g *Gate) give() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.free++
	for c := range g.wake {
		poke(c)
	}
}

// leave forgets who is to be woken.
func (g *Gate) leave(wake chan<- struct{}) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.wake, wake)
}

// unbounded is more members than any pool makes at once.
const unbounded = 1 << 20

func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
