package suite

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"time"

	"github.com/warmfleet/warmfleet/bench/internal/bench"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

const (
	megabyte = 1 << 20
	// deepest is how many checkpoints a sandbox of these benchmarks gets before it is rolled
	// back to its base; a long session has as many.
	deepest = 20
)

// Checkpoint measures taking checkpoints and making them portable.
func Checkpoint() bench.Benchmark { return bench.Benchmark{Name: "checkpoint", Run: checkpoints} }

func checkpoints(ctx context.Context, e *bench.Env) error {
	all, err := histories(ctx, e)
	if err != nil {
		return err
	}
	for _, t := range all {
		if err := taken(ctx, e, t); err != nil {
			return err
		}
		if err := portable(ctx, e, t); err != nil {
			return err
		}
	}
	return nil
}

// subject is a sandbox that is changed and checkpointed again and again.
type subject struct {
	*engine
	t     tree
	sb    *sandbox.Sandbox
	pre   checkpoint.Checkpoint
	r     *rand.ChaCha8
	taken int
}

func (g *engine) subject(ctx context.Context, t tree) (*subject, error) {
	sb, pre, err := g.onTree(ctx, t)
	return &subject{engine: g, t: t, sb: sb, pre: pre, r: random()}, err
}

// change writes total bytes into the sandbox.
func (s *subject) change(ctx context.Context, total, files int) error {
	return s.t.edit(s.r, total, files).writeIn(ctx, s.sb)
}

// prepare changes what a checkpoint is going to hold, on a chain that stays bounded.
func (s *subject) prepare(ctx context.Context, total, files int) error {
	if s.taken%deepest == 0 {
		if err := s.cps.RollbackTo(ctx, s.pre); err != nil {
			return err
		}
	}
	s.taken++
	return s.change(ctx, total, files)
}

func (s *subject) take(ctx context.Context) (cp checkpoint.Checkpoint, d time.Duration, err error) {
	d, err = bench.Time(func() error {
		cp, err = s.cps.Create(ctx, s.sb, "", checkpoint.Step, nil)
		return err
	})
	return cp, d, err
}

// taken measures a checkpoint of 1 MB against those who copy, hash or index the tree.
func taken(ctx context.Context, e *bench.Env, t tree) error {
	dir := filepath.Join(e.Dir, "taken")
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
	peers, err := others(ctx, t, dir)
	if err != nil {
		return err
	}
	ours := func(ctx context.Context) (time.Duration, error) {
		if err := s.prepare(ctx, megabyte, changedFiles); err != nil {
			return 0, err
		}
		_, d, err := s.take(ctx)
		return d, err
	}
	rounds := pick(e, 100, 3)
	if t.slow() {
		rounds = 3 // each of them takes seconds
	}
	what := []bench.Timed{ours}
	for _, p := range peers {
		what = append(what, p.time)
	}
	got, err := bench.InTurn(ctx, rounds, what...)
	if err != nil {
		return err
	}
	if more := pick(e, 100, 0) - rounds; more > 0 { // enough of ours for a 99th percentile
		alone, err := bench.InTurn(ctx, more, ours)
		if err != nil {
			return err
		}
		got[0] = append(got[0], alone[0]...)
	}
	for i, p := range peers {
		target := bench.Target{P50: 10, Ratio: p.ratio}
		if !t.large() {
			target.Ratio = 0 // the ratios are those of a large tree
		}
		if err := e.Add(bench.Result{What: "checkpoint taken, 1 MB changed, " + t.String(), Ours: got[0], Peer: p.name, Theirs: got[i+1], Target: target}); err != nil {
			return err
		}
	}
	if !installed("restic") {
		return e.Skip("checkpoint taken, 1 MB changed, "+t.String()+", against restic", "restic is not installed")
	}
	return nil
}

// portable measures a checkpoint until it lies in the fleet's store with its record.
func portable(ctx context.Context, e *bench.Env, t tree) error {
	dir := filepath.Join(e.Dir, "portable")
	defer layer.RemoveTree(dir)
	engines, end, err := startStoring(ctx, dir, 1)
	if err != nil {
		return err
	}
	defer end()
	g := engines[0]
	sub, err := g.subject(ctx, t)
	if err != nil {
		return err
	}
	defer sub.sb.Close()
	if _, err := g.cps.Store(ctx, sub.pre.ID); err != nil { // the base is there already
		return err
	}
	rounds := pick(e, 100, 3)
	if t.big != "" {
		rounds = pick(e, 20, 3) // each leaves a copy of the file in the cache
	}
	small, err := bench.InTurn(ctx, rounds, sub.store(megabyte, changedFiles))
	if err != nil {
		return err
	}
	err = e.Add(bench.Result{What: "checkpoint portable, 1 MB changed, " + t.String(), Ours: small[0], Target: portableTarget(t)})
	if err != nil {
		return err
	}
	if err := storedBytes(ctx, e, sub); err != nil || t.files != smallFiles {
		return err
	}
	return portableLarge(ctx, e, sub) // its cost does not depend on the tree
}

// portableTarget is for what changes files: of a file of gigabytes all has to be compared.
func portableTarget(t tree) bench.Target {
	if t.big != "" {
		return bench.Target{}
	}
	return bench.Target{P50: 60}
}

// storedBytes sums what 20 checkpoints of 1 MB take in the store, and compares it with what changed, compressed.
func storedBytes(ctx context.Context, e *bench.Env, s *subject) error {
	what := fmt.Sprintf("stored by %d checkpoints, 1 MB changed each, %s", deepest, s.t)
	if err := s.cps.RollbackTo(ctx, s.pre); err != nil {
		return err
	}
	var ours, theirs float64
	for range deepest {
		c := s.t.edit(s.r, megabyte, changedFiles)
		if err := c.writeIn(ctx, s.sb); err != nil {
			return err
		}
		cp, _, err := s.take(ctx)
		if err == nil {
			cp, err = s.cps.Store(ctx, cp.ID)
		}
		if err != nil {
			return err
		}
		ours += float64(cp.SizeBytes) / megabyte
		theirs += float64(compressed(c)) / megabyte
	}
	return e.Add(bench.Result{
		What: what, Unit: "MB", Ours: bench.Samples{ours}, Peer: "the changed bytes, zstd -1", Theirs: bench.Samples{theirs}, Target: bench.Target{Ratio: 1.1},
	})
}

// store takes a checkpoint of a change of total bytes and makes it portable.
func (s *subject) store(total, files int) bench.Timed {
	return func(ctx context.Context) (time.Duration, error) {
		if err := s.prepare(ctx, total, files); err != nil {
			return 0, err
		}
		return bench.Time(func() error {
			cp, _, err := s.take(ctx)
			if err == nil {
				_, err = s.cps.Store(ctx, cp.ID)
			}
			return err
		})
	}
}

// portableLarge compares a large delta with what only packs it into a file.
func portableLarge(ctx context.Context, e *bench.Env, s *subject) error {
	total := pick(e, 200, 10) * megabyte
	files := total / megabyte
	what := "checkpoint portable, " + strconv.Itoa(files) + " MB changed"
	if !installed("zstd") || !installed("tar") {
		return e.Skip(what, "tar or zstd is not installed")
	}
	dir := filepath.Join(e.Dir, "packed")
	r := random()
	got, err := bench.InTurn(ctx, pick(e, 5, 1),
		s.store(total, files),
		func(ctx context.Context) (time.Duration, error) {
			if err := newChange(r, total, files).write(dir); err != nil {
				return 0, err
			}
			return bench.Time(func() error { return tool(ctx, dir, "sh", "-c", "tar -cf - . | zstd -1 -q -f -o ../packed.tar.zst") })
		})
	if err != nil {
		return err
	}
	return e.Add(bench.Result{What: what, Ours: got[0], Peer: "tar | zstd -1 into a file", Theirs: got[1], Target: bench.Target{Ratio: 2.5}})
}
