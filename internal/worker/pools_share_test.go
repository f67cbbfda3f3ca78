package worker

import "testing"

func TestPool_SpreadOverWorkers(t *testing.T) {
	t.Parallel()
	p := newBuiltPool(t)
	p.apply(t, `,"target_size":3`)
	a, _ := p.worker(t, "wa")
	b, stop := p.worker(t, "wb")
	p.warm(t, a, "two of three", idle(2))
	p.warm(t, b, "one of three", idle(1))
	stop()
	p.warm(t, a, "all three once the other is gone", idle(3))
}

// Each worker keeps its minimum, also where its share is smaller.
func TestPool_MinIdle(t *testing.T) {
	t.Parallel()
	p := newBuiltPool(t)
	w1, _ := p.worker(t, "w1")
	w2, _ := p.worker(t, "w2")
	p.apply(t, `,"target_size":3,"min_idle":2`)
	p.warm(t, w1, "its share", idle(2))
	p.warm(t, w2, "its minimum, above its share", idle(2))
	p.apply(t, `,"target_size":0,"min_idle":1`)
	p.warm(t, w1, "its minimum alone", idle(1))
	p.warm(t, w2, "its minimum alone", idle(1))
}
