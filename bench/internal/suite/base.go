package suite

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/warmfleet/warmfleet/bench/internal/bench"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

// Base measures the base images of a path.
func Base() bench.Benchmark { return bench.Benchmark{Name: "base", Run: bases} }

func bases(ctx context.Context, e *bench.Env) error {
	all, err := trees(ctx, e)
	if err != nil {
		return err
	}
	t := all[len(all)-1]
	if installed("git") {
		err = errors.Join(tool(ctx, t.dir, "git", "init", "-q"), tool(ctx, t.dir, "git", "add", "-A", "-f"))
	}
	if err == nil {
		err = firstBase(ctx, e, t)
	}
	if err != nil {
		return err
	}
	return errors.Join(refreshes(ctx, e, t), liveStart(ctx, e, t))
}

// liveStart makes a sandbox on the tree itself, whose peer is what comes before a sandbox on an image for the first time.
func liveStart(ctx context.Context, e *bench.Env, t tree) error {
	g, err := newEngine(ctx, filepath.Join(e.Dir, "live"), inMemory())
	if err != nil {
		return err
	}
	defer g.close()
	back := filepath.Join(e.Dir, "live-copied")
	got, err := bench.InTurn(ctx, pick(e, 5, 1),
		func(ctx context.Context) (time.Duration, error) {
			ctx, stop := context.WithCancel(ctx)
			var sb *sandbox.Sandbox
			var w *layer.Watch
			d, err := bench.Time(func() error {
				l, err := layer.Live(t.dir)
				if err == nil {
					w, err = layer.WatchDir(ctx, t.dir)
				}
				if err == nil {
					sb, err = g.on(ctx, layer.Chain{l})
				}
				return err
			})
			if w != nil {
				err = errors.Join(err, w.Wait())
			}
			stop()
			if sb != nil {
				err = errors.Join(err, sb.Close())
			}
			return d, err
		},
		func(ctx context.Context) (time.Duration, error) {
			d, err := bench.Time(func() error { return tool(ctx, e.Dir, "cp", "-a", t.dir, back) })
			return d, errors.Join(err, os.RemoveAll(back))
		})
	if err != nil {
		return err
	}
	return e.Add(bench.Result{What: "start of a sandbox on a live base, " + t.String(), Ours: got[0], Peer: "cp -a", Theirs: got[1]})
}

// firstBase reads the whole tree into an empty cache.
func firstBase(ctx context.Context, e *bench.Env, t tree) error {
	dir, back := filepath.Join(e.Dir, "first"), filepath.Join(e.Dir, "copied")
	got, err := bench.InTurn(ctx, pick(e, 3, 1),
		func(ctx context.Context) (time.Duration, error) {
			g, err := newEngine(ctx, dir, inMemory())
			if err != nil {
				return 0, err
			}
			d, err := g.refresh(ctx, t)
			g.close()
			return d, errors.Join(err, layer.RemoveTree(dir))
		},
		func(ctx context.Context) (time.Duration, error) {
			d, err := bench.Time(func() error { return tool(ctx, e.Dir, "cp", "-a", t.dir, back) })
			return d, errors.Join(err, os.RemoveAll(back))
		})
	if err != nil {
		return err
	}
	return e.Add(bench.Result{What: "first base of a path, " + t.String(), Ours: got[0], Peer: "cp -a", Theirs: got[1]})
}

// refresh brings the base of a tree up to date.
func (g *engine) refresh(ctx context.Context, t tree) (time.Duration, error) {
	return bench.Time(func() error {
		b, err := g.bases.FromPath(ctx, t.dir)
		b.Release()
		return err
	})
}

// refreshes bring a base up to date on a tree that is as it was, and on one with a changed file.
func refreshes(ctx context.Context, e *bench.Env, t tree) error {
	g, err := newEngine(ctx, filepath.Join(e.Dir, "refreshed"), inMemory())
	if err != nil {
		return err
	}
	defer g.close()
	if _, err := g.refresh(ctx, t); err != nil {
		return err
	}
	status := func(ctx context.Context) (time.Duration, error) {
		return bench.Time(func() error { return tool(ctx, t.dir, "git", "status", "--porcelain") })
	}
	ours := func(ctx context.Context) (time.Duration, error) { return g.refresh(ctx, t) }
	n := 0
	changed := func(ctx context.Context) (time.Duration, error) {
		n++
		if err := os.WriteFile(filepath.Join(t.dir, "changed.txt"), []byte(strconv.Itoa(n)), 0o644); err != nil {
			return 0, err
		}
		return g.refresh(ctx, t)
	}
	for _, c := range []struct {
		what    string
		measure bench.Timed
	}{{"nothing changed", ours}, {"one file changed", changed}} {
		all := []bench.Timed{c.measure, status}
		if !installed("git") {
			all = all[:1]
		}
		got, err := bench.InTurn(ctx, pick(e, 20, 3), all...)
		if err != nil {
			return err
		}
		r := bench.Result{What: "refresh of a base, " + c.what + ", " + t.String(), Ours: got[0]}
		if len(got) > 1 {
			r.Peer, r.Theirs = "git status", got[1]
		}
		if err := e.Add(r); err != nil {
			return err
		}
	}
	return nil
}
