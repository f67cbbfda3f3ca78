package checkpoint_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
)

// late is a store whose clock is behind this process's.
type late struct {
	*objectstore.Memory
	by time.Duration
}

func (l late) Clock(context.Context) (time.Time, error) { return time.Now().Add(-l.by), nil }

func (l late) List(ctx context.Context) ([]objectstore.Info, error) {
	all, err := l.Memory.List(ctx)
	for i := range all {
		all[i] = l.stamped(all[i])
	}
	return all, err
}

func (l late) Mark(ctx context.Context, o objectstore.Info) (objectstore.Info, error) {
	info, err := l.Memory.Mark(ctx, o)
	return l.stamped(info), err
}

func (l late) stamped(o objectstore.Info) objectstore.Info {
	if !o.Marked.IsZero() {
		o.Marked = o.Marked.Add(-l.by)
	}
	return o
}

// The grace passes by the clock that stamped the mark, however wrong that of whoever collects is.
func TestCollect_GraceByTheServersClock(t *testing.T) {
	for name, by := range map[string]time.Duration{"Ahead": 2 * checkpoint.Grace, "Behind": -2 * checkpoint.Grace} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t)
				d := newDesk(t, late{s.store, by}, kv.NewMemory())
				for _, step := range []struct {
					wait    time.Duration
					removed int
				}{{0, 0}, {checkpoint.Grace - time.Minute, 0}, {2 * time.Minute, 1}} {
					time.Sleep(step.wait)
					if done := d.collect(t, checkpoint.Collection{Grace: checkpoint.Grace}); done.Objects != step.removed {
						t.Errorf("%s later: removed %d objects, want %d", step.wait, done.Objects, step.removed)
					}
				}
			})
		})
	}
}
