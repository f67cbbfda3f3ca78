package suite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/bench/internal/bench"
	"github.com/warmfleet/warmfleet/internal/worker"
	"github.com/warmfleet/warmfleet/pkg/client"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/poolfile"
)

// Pool measures pools: what a claim, a refill and an idle sandbox cost, and how soon one is at the newest commit.
func Pool() bench.Benchmark { return bench.Benchmark{Name: "pool", Run: pools} }

// built is what the pools' recipe builds: as many files as a small dependency has, and something to fetch.
const built = "mkdir -p built && for i in $(seq 500); do echo $i >built/$i.js; done && head -c 4000000 /dev/urandom >built/blob"

func pools(ctx context.Context, e *bench.Env) error {
	if !installed("git") {
		return e.Skip("pools", "git is not installed")
	}
	r, err := newRemote(ctx, e, filepath.Join(e.Dir, "remote.git"))
	if err != nil {
		return err
	}
	for _, measure := range []func(context.Context, *poolRig) error{warmPool, coldPool, coldStore, freshPool, poolSessions, refill} {
		if err := onPool(ctx, e, r, measure); err != nil {
			return err
		}
	}
	return nil
}

// poolRig is a fleet of its own with a client, and with workers in this process.
type poolRig struct {
	*server
	*follower
	e      *bench.Env
	dir    string
	remote *remote
	client *client.Client
	claims claimLog
}

// onPool measures on a fleet of its own.
func onPool(ctx context.Context, e *bench.Env, r *remote, measure func(context.Context, *poolRig) error) error {
	dir, err := os.MkdirTemp(e.Dir, "pool-")
	if err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return err
	}
	s, err := startFleet(ctx, dir)
	if err != nil {
		return err
	}
	defer s.close()
	p := &poolRig{server: s, e: e, dir: dir, remote: r}
	if p.follower, err = s.follow(); err != nil {
		return err
	}
	if p.client, err = client.New(s.nc, ""); err != nil {
		return err
	}
	return measure(ctx, p)
}

// employ runs a worker with as many spare inits as slots, which is what workers have.
func (p *poolRig) employ(ctx context.Context, name string, warm int) (*hired, error) {
	return p.hire(ctx, filepath.Join(p.dir, name), worker.Config{Name: name, Slots: 2, Warm: warm}, zerolog.New(&p.claims).Level(zerolog.DebugLevel))
}

// apply brings the pool to a target and returns when it has an image; staleness is its max_staleness.
func (p *poolRig) apply(ctx context.Context, target int, staleness time.Duration) error {
	spec := poolfile.Pool{Version: poolfile.Version, Name: poolName, Resource: poolfile.Resource{Repo: p.remote.url()}, TargetSize: &target}
	spec.Image.Setup = []string{built}
	limit := plan.Duration(staleness)
	spec.MaxStaleness = &limit
	body, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if _, err := p.client.ApplyPool(ctx, body); err != nil {
		return err
	}
	return until(ctx, "an image of the pool", func() (bool, error) {
		pool, err := p.client.Pool(ctx, poolName)
		if err == nil && pool.State == "failing" {
			err = errors.New(pool.Error)
		}
		return pool.Image != "", err
	})
}

// fill employs a worker and brings the pool to a target; ready returns when so many are idle.
func (p *poolRig) fill(ctx context.Context, target int, staleness time.Duration) (ready func(context.Context) error, err error) {
	w, err := p.employ(ctx, "bench", 2)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return filled(ctx, w, target) }, p.apply(ctx, target, staleness)
}

// filled returns when a worker has as many idle sandboxes as the pool wants.
func filled(ctx context.Context, w *hired, target int) error {
	return until(ctx, fmt.Sprintf("%d warm sandboxes", target), func() (bool, error) {
		got := w.Record().Warm[poolName]
		if got.Error != "" {
			return false, errors.New(got.Error)
		}
		return got.Idle == target && got.Making == 0, nil
	})
}

// until waits for a condition, for minutes at most.
func until(ctx context.Context, what string, holds func() (bool, error)) error {
	const limit = 3 * time.Minute
	for end := time.Now().Add(limit); ; time.Sleep(2 * time.Millisecond) {
		ok, err := holds()
		switch {
		case err != nil:
			return fmt.Errorf("wait for %s: %w", what, err)
		case ok:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(end):
			return fmt.Errorf("wait for %s: nothing after %s", what, limit)
		}
	}
}

const (
	poolName = "bench"
	// poolTarget is the default of target_size.
	poolTarget = 3
	// often and always are how old the last sync may be at a claim: the default, and not at all.
	often, always = 30 * time.Second, 0
)

// claimLog takes the worker's log and keeps how long claims took, by where their sandboxes came from.
type claimLog struct {
	mu    sync.Mutex
	times map[string]bench.Samples
}

// Write implements io.Writer for zerolog: one line, JSON.
func (c *claimLog) Write(line []byte) (int, error) {
	if !strings.Contains(string(line), worker.MessageClaimed) {
		return len(line), nil
	}
	var said struct {
		Source string  `json:"source"`
		Took   float64 `json:"took"` // milliseconds
	}
	if err := json.Unmarshal(line, &said); err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.times == nil {
		c.times = map[string]bench.Samples{}
	}
	c.times[said.Source] = append(c.times[said.Source], said.Took)
	return len(line), nil
}

// of returns the claims with a source, without the first, which found everything cold.
func (c *claimLog) of(source string) (bench.Samples, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.times[source]
	if len(all) < 2 {
		return nil, fmt.Errorf("%d claims were %s", len(all), source)
	}
	return all[1:], nil
}

// warmPool measures plans that find a warm sandbox.
func warmPool(ctx context.Context, p *poolRig) error {
	ready, err := p.fill(ctx, poolTarget, often)
	if err != nil {
		return err
	}
	got, stages, err := p.starts(ctx, pick(p.e, 100, 3), func(ctx context.Context) error {
		err := ready(ctx)
		time.Sleep(settled)
		return err
	})
	if err != nil {
		return err
	}
	claims, err := p.claims.of(events.SourceWarm)
	if err != nil {
		return err
	}
	return errors.Join(
		p.e.Add(bench.Result{What: "warm claim inside the worker", Ours: claims, Target: bench.Target{P50: 1}}),
		p.e.Add(bench.Result{
			What: "submit to first process, warm sandbox of a pool", Ours: got[0], Peer: rawPeer, Theirs: got[1], Target: bench.Target{P50: 15, Ratio: 4},
		}),
		stages.add(p.e),
	)
}

// starts measures submissions to the pool beside the raw queue, each after ready.
func (p *poolRig) starts(ctx context.Context, n int, ready func(context.Context) error) ([]bench.Samples, stageTimes, error) {
	raw, err := p.rawQueue(ctx, shell())
	if err != nil {
		return nil, nil, err
	}
	stages := stageTimes{}
	body := poolPlan(poolName, stamp)
	got, err := bench.InTurn(ctx, n,
		func(ctx context.Context) (time.Duration, error) {
			if err := ready(ctx); err != nil {
				return 0, err
			}
			return p.startOne(ctx, p.follower, body, stages)
		},
		raw.startOne,
	)
	return got, stages, err
}

// coldPool measures plans that find none, but the image in the worker's cache.
func coldPool(ctx context.Context, p *poolRig) error {
	w, err := p.employ(ctx, "bench", 2)
	if err != nil {
		return err
	}
	if err := p.apply(ctx, 0, often); err != nil {
		return err
	}
	err = until(ctx, "the image in the cache", func() (bool, error) { return w.Record().Warm[poolName].Image != "", nil })
	if err != nil {
		return err
	}
	got, stages, err := p.starts(ctx, pick(p.e, 30, 3), func(context.Context) error {
		time.Sleep(settled)
		return nil
	})
	if err != nil {
		return err
	}
	claims, err := p.claims.of(events.SourceCold)
	if err != nil {
		return err
	}
	return errors.Join(
		p.e.Add(bench.Result{What: "cold claim inside the worker, cached image", Ours: claims}),
		p.e.Add(bench.Result{What: "submit to first process, cold, cached image", Ours: got[0], Peer: rawPeer, Theirs: got[1]}),
		stages.add(p.e),
	)
}

// coldStore measures a plan on a worker that has nothing of the pool: its image comes from the store, its mirror from the
// remote. Without pools one clones and builds.
func coldStore(ctx context.Context, p *poolRig) error {
	builder, err := p.employ(ctx, "builder", 0)
	if err != nil {
		return err
	}
	if err := p.apply(ctx, 0, often); err != nil {
		return err
	}
	builder.stop()
	body := poolPlan(poolName, stamp)
	fresh := 0
	got, err := bench.InTurn(ctx, pick(p.e, 10, 1),
		func(ctx context.Context) (time.Duration, error) {
			fresh++
			w, err := p.employ(ctx, fmt.Sprintf("fresh-%d", fresh), 2)
			if err != nil {
				return 0, err
			}
			defer w.stop()
			return p.startOne(ctx, p.follower, body, stageTimes{})
		},
		func(ctx context.Context) (time.Duration, error) { return p.clone(ctx, built) },
	)
	if err != nil {
		return err
	}
	return p.e.Add(bench.Result{
		What: fmt.Sprintf("submit to first process, cold from the store: no layer of the image, no mirror (%s)", p.remote), Ours: got[0],
		Peer: "git clone and the same build", Theirs: got[1],
	})
}

// clone makes what people make without pools, and runs a script in it.
func (p *poolRig) clone(ctx context.Context, script string) (time.Duration, error) {
	dir := filepath.Join(p.dir, "clone")
	defer os.RemoveAll(dir)
	return bench.Time(func() error {
		if err := tool(ctx, p.dir, "git", "clone", "-q", p.remote.url(), dir); err != nil {
			return err
		}
		return tool(ctx, dir, "sh", "-c", script)
	})
}

// freshPool measures how soon a sandbox that was warm when commits were pushed is at the last of them.
func freshPool(ctx context.Context, p *poolRig) error {
	ready, err := p.fill(ctx, 2, always)
	if err != nil {
		return err
	}
	body := poolPlan(poolName, stamp)
	got, err := bench.InTurn(ctx, pick(p.e, 20, 2),
		func(ctx context.Context) (time.Duration, error) {
			if err := ready(ctx); err != nil {
				return 0, err
			}
			tip, err := p.remote.push(ctx, behind)
			if err != nil {
				return 0, err
			}
			return p.startAt(ctx, body, tip)
		},
		func(ctx context.Context) (time.Duration, error) { return p.clone(ctx, "true") },
	)
	if err != nil {
		return err
	}
	claims, err := p.claims.of(events.SourceWarm)
	if err != nil {
		return err
	}
	const peer = "git clone of the same repository"
	return errors.Join(
		p.e.Add(bench.Result{
			What: fmt.Sprintf("commit-fresh sandbox ready, %d commits behind (%s)", behind, p.remote), Ours: claims,
			Peer: peer, Theirs: got[1], Target: bench.Target{P50: 300},
		}),
		p.e.Add(bench.Result{What: "... submit to first process in it", Ours: got[0], Peer: peer, Theirs: got[1]}),
	)
}

// startAt is startOne that insists on a warm sandbox at a commit.
func (p *poolRig) startAt(ctx context.Context, body []byte, tip string) (time.Duration, error) {
	id := events.NewID()
	began := time.Now()
	records, err := p.finish(ctx, p.follower, id, body)
	if err != nil {
		return 0, err
	}
	for _, r := range records {
		d := r.Event.Data
		if r.Event.Kind() == events.TypeClaimed && (d.Source != events.SourceWarm || d.Commit != tip) {
			return 0, fmt.Errorf("plan %s started %s at %s: it should be warm at %s: %s", id, d.Source, d.Commit, tip, strings.Join(d.Notes, "; "))
		}
	}
	return p.firstProcess(ctx, id, began)
}
