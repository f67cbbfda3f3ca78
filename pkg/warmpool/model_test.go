package warmpool_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/pkg/warmpool"
)

// A simulation of a pool against what must always hold. A failure names its seed.
func TestCore_Model(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(fmt.Sprint("Seed", seed), func(t *testing.T) { newWorld(t, seed).play(400) })
	}
}

// world is what is outside of a core: members by what became of them.
type world struct {
	t      *testing.T
	r      *rand.Rand
	h      *hand
	set    warmpool.Settings
	making map[warmpool.ID]warmpool.Settings // as of when it was begun
	ready  map[warmpool.ID]life
	ended  map[warmpool.ID]string
}

type life struct {
	made warmpool.Settings
	born time.Time
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, r: rand.New(rand.NewPCG(seed, 1)), making: map[warmpool.ID]warmpool.Settings{}, ready: map[warmpool.ID]life{},
		ended: map[warmpool.ID]string{},
	}
	w.set = w.settings()
	w.h = newHand(w.set)
	return w
}

func (w *world) settings() warmpool.Settings {
	return warmpool.Settings{
		Target: w.r.IntN(5), MaxAge: []time.Duration{0, time.Minute, 25 * time.Minute}[w.r.IntN(3)], Making: w.r.IntN(4),
		Generation: string(rune('a' + w.r.IntN(3))), Shape: []string{"x", "x", "x", "y"}[w.r.IntN(4)],
		Off: w.r.IntN(6) == 0,
	}
}

func (w *world) play(moves int) {
	for range moves {
		w.h.now = w.h.now.Add(time.Duration(w.r.Int64N(int64(20 * time.Second))))
		switch w.r.IntN(8) {
		case 0, 1:
			w.claim()
		case 2:
			w.set = w.settings()
			w.h.core.Configure(w.set)
		case 3:
			w.h.core.Prewarm(w.h.now.Add(time.Minute))
		case 4:
			w.end(func(id warmpool.ID) { w.h.core.Failed(w.h.now, id, "no") })
		default:
			w.end(w.made)
		}
		w.next(w.r.IntN(4))
	}
	w.calm()
}

func (w *world) claim() {
	id, ok := w.h.core.Claim(w.h.now)
	if !ok {
		for id, l := range w.ready {
			if l.made.Shape == w.set.Shape && !w.aged(l) {
				w.t.Fatalf("nothing claimed while %d is valid", id)
			}
		}
		return
	}
	l, was := w.ready[id]
	switch {
	case !was:
		w.t.Fatalf("claimed %d, which is not ready but %q", id, w.ended[id])
	case l.made.Shape != w.set.Shape || w.aged(l):
		w.t.Fatalf("claimed %d, which is not valid", id)
	}
	for other, o := range w.ready {
		better := o.made.Generation == w.set.Generation && l.made.Generation != w.set.Generation
		if o.made.Shape == w.set.Shape && !w.aged(o) && better {
			w.t.Fatalf("claimed %d of generation %s while %d of %s is ready", id, l.made.Generation, other, w.set.Generation)
		}
	}
	delete(w.ready, id)
	w.ended[id] = "claimed"
}

func (w *world) aged(l life) bool { return w.set.MaxAge > 0 && w.h.now.Sub(l.born) >= w.set.MaxAge }

func (w *world) end(how func(warmpool.ID)) {
	for id := range w.making {
		how(id)
		delete(w.making, id)
		return
	}
}

func (w *world) made(id warmpool.ID) {
	w.h.core.Made(w.h.now, id)
	w.ready[id] = life{w.making[id], w.h.now}
}

func (w *world) next(room int) {
	valid := func() (n int) {
		for _, l := range w.ready {
			if l.made.Shape == w.set.Shape && !w.aged(l) {
				n++
			}
		}
		return n
	}
	before := valid()
	made := 0
	for _, a := range w.h.core.Next(w.h.now, room) {
		if a.Kind == warmpool.Make {
			made++
			w.making[a.ID] = w.set
			continue
		}
		if w.ended[a.ID] != "" {
			w.t.Fatalf("dropped %d, which was %s", a.ID, w.ended[a.ID])
		}
		delete(w.ready, a.ID)
		w.ended[a.ID] = "dropped"
	}
	target := w.h.core.Target(w.h.now)
	switch after := valid(); {
	case after < min(before, target):
		w.t.Fatalf("%d valid ones left of %d, target %d", after, before, target)
	case after > target:
		w.t.Fatalf("%d idle, target %d", after, target)
	}
	if limit := max(w.set.Making, 1); made > room || made > 0 && len(w.making) > limit {
		w.t.Fatalf("%d begun with room %d, %d under way of %d", made, room, len(w.making), limit)
	}
}

// calm lets everything succeed for a while; then the pool must be as its settings say.
func (w *world) calm() {
	w.set.MaxAge = 0
	w.h.core.Configure(w.set)
	for range 100 {
		w.h.now = w.h.now.Add(10 * time.Second)
		w.next(4)
		w.end(w.made)
	}
	w.next(0)
	target := w.set.Target
	if w.set.Off {
		target = 0
	}
	if len(w.making) != 0 || len(w.ready) != target {
		w.t.Fatalf("%d ready, %d being made at rest, target %d", len(w.ready), len(w.making), target)
	}
	for id, l := range w.ready {
		if l.made.Generation != w.set.Generation || l.made.Shape != w.set.Shape {
			w.t.Fatalf("%d is of %s, want %s", id, l.made.Generation, w.set.Generation)
		}
	}
}
