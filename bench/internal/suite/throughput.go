package suite

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/bench/internal/bench"
	"github.com/warmfleet/warmfleet/internal/worker"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

const (
	// write is the step of a plan whose rate is measured.
	write = "echo done > result.txt"
	// submitters publish at the same time, as services do.
	submitters = 8
	// perSecond and pathPerSecond are the rates asked for, on two cores.
	perSecond, pathPerSecond = 30, 100
)

// Throughput measures the rate of plans.
func Throughput() bench.Benchmark { return bench.Benchmark{Name: "throughput", Run: throughput} }

func throughput(ctx context.Context, e *bench.Env) error {
	return errors.Join(sandboxRate(ctx, e), pathRate(ctx, e))
}

// perPlan is the time of a batch divided by its plans, in one sample.
func perPlan(n int, batch func(ctx context.Context, n int) error) bench.Timed {
	return func(ctx context.Context) (time.Duration, error) {
		d, err := bench.Time(func() error { return batch(ctx, n) })
		return d / time.Duration(n), err
	}
}

// sandboxRate runs plans with everything: sandbox, two checkpoints, the refill of the pool.
func sandboxRate(ctx context.Context, e *bench.Env) error {
	t, err := smallTreeOf(e)
	if err != nil {
		return err
	}
	s, f, err := startWorking(ctx, filepath.Join(e.Dir, "rate"), worker.Config{Slots: 4, Warm: 4, AllowPaths: []string{t.dir}})
	if err != nil {
		return err
	}
	defer s.close()
	copies := filepath.Join(e.Dir, "copies")
	got, err := bench.InTurn(ctx, pick(e, 5, 1),
		perPlan(pick(e, 100, 8), func(ctx context.Context, n int) error {
			return s.batch(ctx, f, n, onePlan(plan.Resource{Path: t.dir, Host: hostID}, write))
		}),
		perPlan(pick(e, 20, 8), func(ctx context.Context, n int) error { return shellLoop(ctx, t.dir, copies, n) }),
	)
	if err != nil {
		return err
	}
	return e.Add(bench.Result{
		What: fmt.Sprintf("one of many plans, real sandbox, 2 checkpoints, refill included, %v (>= %d/s)", t, perSecond),
		Ours: got[0], Unit: "ms/plan", Peer: "shell loop in cp -a copies", Theirs: got[1], Target: bench.Target{P50: rounded(1000.0 / perSecond)},
	})
}

func rounded(ms float64) float64 { return float64(int(ms*10)) / 10 }

// batch submits n plans at once and waits until all have executed.
func (s *server) batch(ctx context.Context, f *follower, n int, body []byte) error {
	ids := make(chan string, n)
	for range n {
		ids <- events.NewID()
	}
	close(ids)
	ended := make(chan error, n)
	watch := func(id string) {
		f.watch(id, func(r events.Record) {
			if !r.Event.Data.Final {
				return
			}
			f.forget(id)
			if r.Event.Kind() != events.TypeExecuted {
				ended <- fmt.Errorf("plan %s ended %s: %s", id, r.Event.Kind(), r.Event.Data.Error)
				return
			}
			ended <- nil
		})
	}
	var all sync.WaitGroup
	for range submitters {
		all.Go(func() {
			for id := range ids {
				watch(id)
				if err := s.Submissions.Publish(ctx, id, events.NewSubmission(body, "bench")); err != nil {
					ended <- err
				}
			}
		})
	}
	all.Wait()
	return await(ctx, ended, n)
}

// await returns after n results, or with the first error.
func await(ctx context.Context, results <-chan error, n int) error {
	for range n {
		select {
		case err := <-results:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// shellLoop does what the plans do with nothing but cp: a copy to work in, the step, a copy of the result.
func shellLoop(ctx context.Context, tree, dir string, n int) error {
	script := `for i in $(seq "$3"); do rm -rf "$2" && mkdir "$2" && cp -a "$1" "$2/work" && (cd "$2/work" && sh -c '` + write +
		`') && cp -a "$2/work" "$2/post_execute" || exit; done`
	return tool(ctx, "/", "sh", "-c", script, "loop", tree, dir, fmt.Sprint(n))
}

// pathRate runs plans without a sandbox: what is left is the fleet's own path.
func pathRate(ctx context.Context, e *bench.Env) error {
	s, err := startFleet(ctx, filepath.Join(e.Dir, "path"))
	if err != nil {
		return err
	}
	defer s.close()
	const slots = 16
	if err := s.run((&forker{s: s, slots: slots}).run); err != nil {
		return err
	}
	f, err := s.follow()
	if err != nil {
		return err
	}
	c, err := s.rawConsumer(ctx)
	if err != nil {
		return err
	}
	forked := make(chan error, slots)
	for range slots {
		s.tasks.Go(func() {
			s.eachRaw(c, func(m jetstream.Msg) error {
				err := errors.Join(tool(s.life, "/", truth), m.DoubleAck(s.life))
				forked <- err
				return err
			})
		})
	}
	got, err := bench.InTurn(ctx, pick(e, 5, 1),
		perPlan(pick(e, 300, 16), func(ctx context.Context, n int) error {
			return s.batch(ctx, f, n, onePlan(plan.Resource{Repo: "https://localhost/bench.git"}, truth))
		}),
		perPlan(pick(e, 300, 16), func(ctx context.Context, n int) error { return s.rawBatch(ctx, forked, n) }),
	)
	if err != nil {
		return err
	}
	return e.Add(bench.Result{
		What: fmt.Sprintf("one of many plans, fleet path alone: claim, fence, records, fork of true (>= %d/s)", pathPerSecond),
		Ours: got[0], Unit: "ms/plan", Peer: "raw JetStream work queue", Theirs: got[1], Target: bench.Target{P50: 1000.0 / pathPerSecond},
	})
}

// rawBatch publishes n messages and waits until each was handled.
func (s *server) rawBatch(ctx context.Context, done <-chan error, n int) error {
	turns := make(chan struct{}, n)
	for range n {
		turns <- struct{}{}
	}
	close(turns)
	failed := make(chan error, submitters)
	for range submitters {
		go func() {
			for range turns {
				if _, err := s.JetStream.Publish(ctx, rawSubject, []byte("{}")); err != nil {
					failed <- err
					return
				}
			}
			failed <- nil
		}()
	}
	return errors.Join(await(ctx, done, n), await(ctx, failed, submitters))
}
