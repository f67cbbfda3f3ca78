package suite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/warmfleet/warmfleet/bench/internal/bench"
	"github.com/warmfleet/warmfleet/pkg/client"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

// Recovery measures how long a killed worker's plan waits for another.
func Recovery() bench.Benchmark { return bench.Benchmark{Name: "recovery", Run: recovery} }

func recovery(ctx context.Context, e *bench.Env) error {
	const what = "kill -9 of a worker to its plan's next claim"
	if _, err := os.Stat(filepath.Join(e.Bin, "worker")); err != nil {
		return e.Skip(what, "cmd/worker could not be built")
	}
	t, err := smallTreeOf(e)
	if err != nil {
		return err
	}
	s, err := startFleet(ctx, filepath.Join(e.Dir, "server"))
	if err != nil {
		return err
	}
	defer s.close()
	r := &recoverer{e: e, s: s, tree: t.dir, workers: map[string]*exec.Cmd{}}
	defer r.end()
	for _, name := range []string{"one", "two"} {
		if err := r.start(ctx, name); err != nil {
			return err
		}
	}
	if r.follower, err = s.follow(); err != nil {
		return err
	}
	var times bench.Samples
	for range pick(e, 5, 1) {
		d, err := r.round(ctx)
		if err != nil {
			return err
		}
		times.Take(d)
	}
	return e.Add(bench.Result{What: what, Ours: times, Target: bench.Target{P50: 6000, Max: 7000}})
}

// recoverer is a fleet whose workers are processes that can be killed.
type recoverer struct {
	*follower
	e       *bench.Env
	s       *server
	tree    string
	workers map[string]*exec.Cmd
}

// start starts a worker and returns when it says that it is ready.
func (r *recoverer) start(ctx context.Context, name string) error {
	env := r.s.srv.Env()
	c := exec.CommandContext(ctx, filepath.Join(r.e.Bin, "worker"),
		"--name", name, "--host-id", hostID, "--allow-path", r.tree, "--isolation", "preferred", "--state-dir", filepath.Join(r.e.Dir, "worker-"+name))
	c.Env = append(os.Environ(), "NATS_URL="+env.URL, "NATS_USER="+env.User, "NATS_PASSWORD="+env.Password)
	out, err := c.StderrPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	r.workers[name] = c
	lines := bufio.NewScanner(out)
	var said []string
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "ready:") {
			go io.Copy(io.Discard, out)
			return nil
		}
		said = append(said, lines.Text())
	}
	return fmt.Errorf("worker %s did not start: %s", name, strings.Join(said, "; "))
}

// kill ends a worker as a crash does.
func (r *recoverer) kill(name string) {
	if c := r.workers[name]; c != nil {
		c.Process.Kill()
		c.Wait()
		delete(r.workers, name)
	}
}

func (r *recoverer) end() {
	for name := range r.workers {
		r.kill(name)
	}
}

// round kills the worker that runs a plan and returns when another has claimed it.
func (r *recoverer) round(ctx context.Context) (time.Duration, error) {
	id := events.NewID()
	started, claims, ended := make(chan string, 9), make(chan uint64, 9), make(chan struct{})
	r.watch(id, func(rec events.Record) {
		switch {
		case rec.Event.Data.Final:
			close(ended)
		case rec.Event.Kind() == events.TypeClaimed:
			claims <- rec.Event.Data.Epoch
		case rec.Event.Kind() == events.TypeStepStarted:
			started <- rec.Event.Data.Worker
		}
	})
	defer r.forget(id)
	body := onePlan(plan.Resource{Path: r.tree, Host: hostID}, "exec sleep 600")
	if err := r.s.Submissions.Publish(ctx, id, events.NewSubmission(body, "bench")); err != nil {
		return 0, err
	}
	<-claims
	holder := <-started
	began := time.Now()
	r.kill(holder)
	select {
	case <-claims:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	d := time.Since(began)
	return d, errors.Join(r.cancel(ctx, id, ended), r.start(ctx, holder))
}

// cancel ends a plan that would run for minutes.
func (r *recoverer) cancel(ctx context.Context, id string, ended <-chan struct{}) error {
	c, err := client.New(r.s.nc, "")
	if err != nil {
		return err
	}
	if _, err := c.Cancel(ctx, id, "bench"); err != nil {
		return err
	}
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
