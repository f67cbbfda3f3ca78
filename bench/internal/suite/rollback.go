package suite

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/warmfleet/warmfleet/bench/internal/bench"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

// Rollback measures going back to a checkpoint.
func Rollback() bench.Benchmark { return bench.Benchmark{Name: "rollback", Run: rollbacks} }

func rollbacks(ctx context.Context, e *bench.Env) error {
	all, err := histories(ctx, e)
	if err != nil {
		return err
	}
	for _, t := range all {
		if err := rollbackHere(ctx, e, t); err != nil {
			return err
		}
		if err := rollbackElsewhere(ctx, e, t); err != nil {
			return err
		}
	}
	return nil
}

// rollbackHere drops 1 MB of changes; who has only copies copies the tree back.
func rollbackHere(ctx context.Context, e *bench.Env, t tree) error {
	dir := filepath.Join(e.Dir, "here")
	g, err := newEngine(ctx, dir, inMemory())
	if err != nil {
		return err
	}
	defer layer.RemoveTree(dir)
	defer g.close()
	s, err := g.subject(ctx, t)
	if err != nil {
		return err
	}
	defer s.sb.Close()
	ours := func(ctx context.Context) (time.Duration, error) {
		if err := s.change(ctx, megabyte, changedFiles); err != nil {
			return 0, err
		}
		return bench.Time(func() error { return g.cps.RollbackTo(ctx, s.pre) })
	}
	back := filepath.Join(dir, "back")
	copied := func(ctx context.Context) (time.Duration, error) {
		d, err := bench.Time(func() error { return tool(ctx, dir, "cp", "-a", t.dir, back) })
		return d, errors.Join(err, os.RemoveAll(back)) // removing what was there is not counted
	}
	rounds := pick(e, 100, 3)
	if t.slow() {
		rounds = 3
	}
	got, err := bench.InTurn(ctx, rounds, ours, copied)
	if err != nil {
		return err
	}
	if more := pick(e, 100, 0) - rounds; more > 0 {
		alone, err := bench.InTurn(ctx, more, ours)
		if err != nil {
			return err
		}
		got[0] = append(got[0], alone[0]...)
	}
	target := bench.Target{P50: 10, Ratio: 1.0 / 50}
	if !t.large() {
		target.Ratio = 0
	}
	return e.Add(bench.Result{
		What: "rollback on the same worker, 1 MB dropped, " + t.String(), Ours: got[0], Peer: "cp -a of the tree", Theirs: got[1], Target: target,
	})
}

// rollbackElsewhere makes a sandbox in the state of a checkpoint that another worker took:
// the record and 1 MB come from the store, the base is in the cache.
func rollbackElsewhere(ctx context.Context, e *bench.Env, t tree) error {
	dir := filepath.Join(e.Dir, "elsewhere")
	defer layer.RemoveTree(dir)
	engines, end, err := startStoring(ctx, dir, 2)
	if err != nil {
		return err
	}
	defer end()
	first, second := engines[0], engines[1]
	s, err := first.subject(ctx, t)
	if err != nil {
		return err
	}
	defer s.sb.Close()
	if _, err := first.cps.Store(ctx, s.pre.ID); err != nil {
		return err
	}
	if _, err := second.cps.Restore(ctx, s.pre.ID); err != nil {
		return err
	}
	rounds := pick(e, 50, 3)
	target := bench.Target{P50: 150}
	if t.big != "" { // the whole file is made anew there
		rounds, target = pick(e, 5, 1), bench.Target{}
	}
	got, err := bench.InTurn(ctx, rounds, func(ctx context.Context) (time.Duration, error) { return s.move(ctx, second) })
	if err != nil {
		return err
	}
	return e.Add(bench.Result{What: "rollback on another worker, 1 MB delta, base cached, " + t.String(), Ours: got[0], Target: target})
}

// move stores a checkpoint of 1 MB on the base and measures making a sandbox of it elsewhere.
func (s *subject) move(ctx context.Context, to *engine) (time.Duration, error) {
	err := s.cps.RollbackTo(ctx, s.pre)
	if err == nil {
		err = s.change(ctx, megabyte, changedFiles)
	}
	if err != nil {
		return 0, err
	}
	cp, _, err := s.take(ctx)
	if err == nil {
		cp, err = s.cps.Store(ctx, cp.ID)
	}
	if err != nil {
		return 0, err
	}
	var sb *sandbox.Sandbox
	d, err := bench.Time(func() error {
		sb, err = to.restore(ctx, cp)
		return err
	})
	if err != nil {
		return 0, err
	}
	return d, sb.Close()
}

func (g *engine) restore(ctx context.Context, cp checkpoint.Checkpoint) (*sandbox.Sandbox, error) {
	r, err := g.cps.Restore(ctx, cp.ID)
	if err != nil {
		return nil, err
	}
	return g.on(ctx, r.Chain)
}
