package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/warmfleet/warmfleet/internal/fleet"
	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/natsboot"
	"github.com/warmfleet/warmfleet/internal/worker"
	"github.com/warmfleet/warmfleet/pkg/client"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

const (
	// workerWait bounds the wait for the scheduler to hear of a worker of this process.
	workerWait = 10 * time.Second
	workerPoll = 20 * time.Millisecond
)

// handle is how a command reaches a fleet.
type handle struct {
	*client.Client
	fleet *fleet.Fleet
	// local is the fleet of the state directory, nil when a server was given.
	local *fleet.Local
	// works: a worker of that fleet runs in this process, so what it does has to be waited for.
	works bool
}

// connect reaches the fleet of the server that was given, else that of the state directory,
// which is started in this process where no other runs it.
func (a *app) connect(ctx context.Context) (*handle, error) {
	if a.conn.Given() {
		return a.connectGiven(ctx)
	}
	dir, err := natsboot.StateDir(a.stateDir)
	if err != nil {
		return nil, &coded{exitUsage, err}
	}
	l, err := fleet.OpenLocal(ctx, fleet.LocalOptions{StateDir: dir, Log: a.log()})
	if err != nil {
		return nil, err
	}
	c, err := client.New(l.Conn, "")
	if err != nil {
		return nil, errors.Join(err, l.Close(ctx))
	}
	return &handle{Client: c, fleet: l.Fleet, local: l}, nil
}

func (a *app) connectGiven(ctx context.Context) (*handle, error) {
	nc, err := a.conn.Dial(ctx, natsboot.ConnectOptions{Name: "warmfleet", Log: a.log()})
	var server *natsboot.ConnectError
	if err != nil && !errors.As(err, &server) && ctx.Err() == nil {
		return nil, &coded{exitUsage, err} // what was given is no server
	}
	if err != nil {
		return nil, err
	}
	f, err := fleet.Open(ctx, nc.JS, fleet.Options{})
	if err != nil {
		nc.Close()
		return nil, err
	}
	c, err := client.New(nc.Conn, "")
	if err != nil {
		nc.Close()
		return nil, err
	}
	return &handle{Client: c, fleet: f}, nil
}

// close gives the fleet up, after what this command caused has come to its end.
func (h *handle) close(ctx context.Context) error {
	if h.local != nil {
		return h.local.Close(context.WithoutCancel(ctx))
	}
	h.fleet.Close()
	return nil
}

// work makes a local fleet able to run plans on a resource: with a worker in this process
// that allows it and serves no pools but those that cfg names; cfg says the rest. A given server has workers of its own, and
// so has a fleet of another process for the pools that it serves.
func (h *handle) work(ctx context.Context, r events.Resource, cfg worker.Config) error {
	if h.local == nil {
		return nil
	}
	if !h.local.Holds() && len(cfg.Pools) > 0 {
		if served, err := h.served(ctx, r, cfg.Pools); served || err != nil {
			return err
		}
	}
	h.works = true
	cfg.NoPools = len(cfg.Pools) == 0
	cfg.Layers = fleet.Layers(cfg.Layers)
	if r.Path != "" && !cfg.Author.Whole() {
		cfg.Author = neutralAuthor() // a plan of one's own on a path of one's own: nothing is published
	}
	cfg.HostID, cfg.Slots, cfg.AllowPaths, cfg.DrainTimeout = fleet.HostID(""), localSlots, directories(r), localDrain
	return h.local.AddWorker(ctx, cfg)
}

// neutralAuthor is who a commit is by that nobody is named for.
func neutralAuthor() gitrepo.Identity {
	return gitrepo.Identity{Name: "warmfleet", Email: "warmfleet@localhost"}
}

// workIfNeeded is work for a command whose plan any worker may run: a fleet that another
// process holds may have one that allows its path.
func (h *handle) workIfNeeded(ctx context.Context, r events.Resource, cfg worker.Config) error {
	if h.local == nil {
		return nil
	}
	if !h.local.Holds() {
		if served, err := h.served(ctx, r, cfg.Pools); served || err != nil {
			return err
		}
	}
	return h.work(ctx, r, cfg)
}

// served tells whether a live worker takes plans on a resource and serves the pools that they name.
func (h *handle) served(ctx context.Context, r events.Resource, pools []string) (bool, error) {
	workers, err := h.Workers(ctx)
	return slices.ContainsFunc(workers, func(w events.Worker) bool {
		lacks := slices.ContainsFunc(pools, func(pool string) bool { _, serves := w.Pools[pool]; return !serves })
		return w.State == events.WorkerReady && !lacks && (r.Path == "" || w.Host == r.Host && w.PathPool(r.Path) != "")
	}), err
}

// poolsOf are the pools that a worker has to serve for a plan: the one it names, if any.
func poolsOf(pool string) []string {
	if pool == "" {
		return nil
	}
	return []string{pool}
}

// runsHere refuses a flag that says what the worker of this process gives to steps, when it
// is used where another worker may run them.
func (h *handle) runsHere(ctx context.Context, flag string, used bool, p *plan.Plan) error {
	if !used {
		return nil
	}
	var others bool
	var err error
	if h.local != nil && !h.local.Holds() {
		others, err = h.served(ctx, resourceOf(p), poolsOf(p.Pool))
	}
	if h.local == nil || others {
		return usagef("--%s: the fleet's own workers run the plan: give it to warmfleet up or worker instead", flag)
	}
	return err
}

// tellTakenUp names the plans that earlier commands left and that a worker for a plan
// goes on with as well.
func (a *app) tellTakenUp(ctx context.Context, h *handle, p *plan.Plan) error {
	if h.local == nil || !h.local.Holds() {
		return nil
	}
	plans, err := h.Plans(ctx)
	for _, v := range plans {
		if !v.Final && v.State != events.StateAwaitingApproval && (v.Pool == "" || v.Pool == p.Pool) && covers(directories(resourceOf(p)), directories(v.Resource)) {
			a.note("goes on as well: plan %s (%s) on %s, which an earlier command left %s; to drop it: warmfleet plan cancel %s", v.ID, v.Name, resource(v.Resource), v.State, v.ID)
		}
	}
	return err
}

// covers tells whether a worker that allows some directories allows all that are wanted.
func covers(allowed, wanted []string) bool {
	return !slices.ContainsFunc(wanted, func(want string) bool {
		return !slices.ContainsFunc(allowed, func(dir string) bool { return events.Within(dir, want) })
	})
}

// afterwards says what becomes of a plan that this command leaves before its end.
func (h *handle) afterwards(ctx context.Context, id string) string {
	if !h.works {
		return "goes on: look again with warmfleet plan show " + id
	}
	h.local.StopWorkers()
	if v, err := h.Plan(ctx, id); err == nil && (v.Final || v.State == events.StateAwaitingApproval) {
		return fmt.Sprintf("is %s now: see warmfleet plan show %s", strings.ReplaceAll(v.State, "_", " "), id)
	}
	return "was stopped with this command; it begins again with the next `warmfleet up` or `run` on this path; to drop it: warmfleet plan cancel " + id
}

// awaitWorker returns once the scheduler has heard of a worker, so that it can be asked.
func (h *handle) awaitWorker(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, workerWait)
	defer cancel()
	tick := time.NewTicker(workerPoll)
	defer tick.Stop()
	for {
		workers, err := h.Workers(ctx)
		if err != nil || len(workers) > 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// directories are what of this host a worker has to allow for a resource.
func directories(r events.Resource) []string {
	if local, ok := worker.LocalRepo(r.Repo); ok {
		return []string{local}
	}
	if r.Path == "" {
		return nil
	}
	return []string{r.Path}
}

// with runs do on a fleet and gives it up afterwards.
func (a *app) with(ctx context.Context, do func(ctx context.Context, h *handle) error) error {
	h, err := a.connect(ctx)
	if err != nil {
		return err
	}
	err = do(ctx, h)
	if closed := h.close(ctx); err == nil {
		return closed
	}
	return err
}
