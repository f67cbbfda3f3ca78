package warmpool_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/pkg/warmpool"
)

// A simulation of the workers of one pool, which come and go and have what they keep claimed. At rest each has at least its
// minimum, all together have the target, and none has more than it is for. A failure names its seed.
func TestSpread_Model(t *testing.T) {
	for seed := range uint64(200) {
		t.Run(fmt.Sprint("Seed", seed), func(t *testing.T) {
			f := &spreadFleet{r: rand.New(rand.NewPCG(seed, 2)), workers: map[string]*spreadWorker{}}
			for range 60 {
				f.move()
			}
			f.rest(t)
		})
	}
}

type spreadFleet struct {
	r       *rand.Rand
	spread  warmpool.Spread
	workers map[string]*spreadWorker
}

type spreadWorker struct {
	h    *hand
	idle map[warmpool.ID]bool
}

func (f *spreadFleet) move() {
	name := fmt.Sprint("w", f.r.IntN(5))
	switch w := f.workers[name]; f.r.IntN(5) {
	case 0:
		f.spread = warmpool.Spread{Target: f.r.IntN(9), Least: f.r.IntN(4)}
	case 1:
		f.workers[name] = &spreadWorker{newHand(warmpool.Settings{}), map[warmpool.ID]bool{}}
	case 2:
		delete(f.workers, name)
	default:
		if w != nil {
			if id, ok := w.h.core.Claim(w.h.now); ok {
				delete(w.idle, id)
			}
		}
	}
	f.share()
	for _, w := range f.workers {
		w.step(f.r.IntN(3))
	}
}

func (f *spreadFleet) names() []string {
	var names []string
	for name := range f.workers {
		names = append(names, name)
	}
	return names
}

// share tells each worker its share, whatever the order in which it knows the others.
func (f *spreadFleet) share() {
	names := f.names()
	for name, w := range f.workers {
		f.r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		w.h.core.Configure(warmpool.Settings{Target: f.spread.Share(slices.Clone(names), name), Making: 2})
	}
}

func (w *spreadWorker) step(room int) {
	w.h.now = w.h.now.Add(time.Second)
	for _, a := range w.h.core.Next(w.h.now, room) {
		if a.Kind == warmpool.Drop {
			delete(w.idle, a.ID)
			continue
		}
		w.h.core.Made(w.h.now, a.ID)
		w.idle[a.ID] = true
	}
}

func (f *spreadFleet) rest(t *testing.T) {
	f.share()
	total, most := 0, 0
	for name, w := range f.workers {
		for range 10 {
			w.step(2)
		}
		have := len(w.idle)
		total, most = total+have, max(most, have)
		if have < f.spread.Least {
			t.Errorf("worker %s keeps %d, at least %d are wanted", name, have, f.spread.Least)
		}
	}
	n := len(f.workers)
	if n == 0 {
		return
	}
	if limit := max((f.spread.Target+n-1)/n, f.spread.Least); most > limit {
		t.Errorf("a worker keeps %d, at most %d are for it", most, limit)
	}
	if all := max(f.spread.Target, n*f.spread.Least); total < all {
		t.Errorf("%d workers keep %d, want %d at least (%+v)", n, total, all, f.spread)
	}
	if f.spread.Least == 0 && total != f.spread.Target {
		t.Errorf("%d workers keep %d, want %d", n, total, f.spread.Target)
	}
}
