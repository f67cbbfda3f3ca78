package reserve

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// runner is something that runs: it has written so much, and was ended for why.
type runner struct {
	grown int64
	why   string
	fails bool
}

func (r *runner) enter(to *Reserve) func() {
	return to.Enter(Running{
		Grown: func() (int64, error) {
			if r.fails {
				return 0, errors.New("it changes")
			}
			return r.grown, nil
		},
		End: func(why string) { r.why = why },
	})
}

func TestDefault(t *testing.T) {
	for _, c := range []struct{ size, want int64 }{
		{200 << 20, 0}, {1000 << 20, 50 << 20}, {20 << 30, 1 << 30}, {100 << 30, 2 << 30}, {1 << 40, 1 << 40 / 50},
	} {
		if got := Default(c.size); got != c.want {
			t.Errorf("of %d: got %d, want %d", c.size, got, c.want)
		}
	}
}

func TestReserve_EndsWhatGrewMost(t *testing.T) {
	const keep = 160 << 20
	var told []string
	r := New(Config{Dir: "/d", Keep: keep, Changed: func(low string) { told = append(told, low) }})
	old, fast, slow, broken := &runner{grown: 900 << 20}, &runner{}, &runner{}, &runner{fails: true}
	for _, each := range []*runner{old, fast, slow, broken} {
		defer each.enter(r)()
	}
	r.judge(3 * keep)
	r.judge(2*keep - 1) // what was written by now does not count
	fast.grown, slow.grown = 100<<20, 50<<20
	r.judge(keep + 1)
	if old.why+fast.why+slow.why != "" || r.Low() != "" {
		t.Fatalf("with the reserve free: low %q, ended %+v %+v %+v", r.Low(), old, fast, slow)
	}
	r.judge(keep - 1)
	if !strings.Contains(fast.why, "100 MiB") || old.why+slow.why != "" {
		t.Errorf("ended %+v %+v %+v, want what grew by 100 MiB", old, fast, slow)
	}
	if !strings.Contains(r.Low(), "/d") || !strings.Contains(r.Low(), "160 MiB") {
		t.Errorf("low is %q", r.Low())
	}
	r.judge(keep - 2) // the end of one takes its time
	if slow.why != "" {
		t.Error("another was ended before the reserve went further down")
	}
	r.judge(keep - keep/slice - 2)
	if slow.why == "" || old.why != "" {
		t.Errorf("ended %+v %+v, want what grew next", old, slow)
	}
	r.judge(keep / 2)
	if old.why != "" {
		t.Errorf("what did not grow was ended: %q", old.why)
	}
	r.judge(keep + 1)
	if len(told) != 1 || r.Low() == "" {
		t.Errorf("told %q, low %q: a little room is no room", told, r.Low())
	}
	r.judge(2 * keep)
	if len(told) != 2 || told[1] != "" || r.Low() != "" {
		t.Errorf("told %q, low %q", told, r.Low())
	}
}

// What comes when free space is short already brings what its sandbox wrote long ago: that is not its growth.
func TestReserve_LateOnesGrowFromWhereTheyCame(t *testing.T) {
	const keep = 160 << 20
	r := New(Config{Dir: "/d", Keep: keep})
	fast, late := &runner{}, &runner{grown: 900 << 20}
	defer fast.enter(r)()
	r.judge(2*keep - 1)
	defer late.enter(r)()
	fast.grown = 100 << 20
	r.judge(keep - 1)
	if fast.why == "" || late.why != "" {
		t.Errorf("ended %+v %+v, want what grew", fast, late)
	}
	late.grown += 50 << 20
	r.judge(keep / 2)
	if !strings.Contains(late.why, "50 MiB") {
		t.Errorf("ended %+v, want it for what it wrote since", late)
	}
}

func TestReserve_Wait(t *testing.T) {
	r := New(Config{Keep: 100})
	if err := r.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.judge(1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := r.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want it to wait", err)
	}
	r.judge(1000)
	if err := r.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}
