package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
)

func (s *Scheduler) checkpointRollback(ctx context.Context, body []byte) (any, error) {
	return s.sandboxOf(ctx, "rollback", body)
}

func (s *Scheduler) checkpointFork(ctx context.Context, body []byte) (any, error) {
	return s.sandboxOf(ctx, "fork", body)
}

// sandboxOf has a worker make a sandbox in the state of a checkpoint: the worker of choice, or the
// one that took it, or any. One that is not portable yet is known to its worker only.
func (s *Scheduler) sandboxOf(ctx context.Context, verb string, body []byte) (any, error) {
	var req api.Rollback
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, fail(api.CodeInvalid, "request is not JSON: %v", err)
	}
	if _, err := events.ParseID(req.Checkpoint); err != nil {
		return nil, err
	}
	workers := s.index.workers()
	if _, live := workers[req.Worker]; req.Worker != "" && !live {
		return nil, fail(api.CodeNotFound, "worker %q: is not live: see warmfleet worker ls", req.Worker)
	}
	if len(workers) == 0 {
		return nil, fail(api.CodeNotFound, "no worker is live: start one")
	}
	cp, err := checkpoint.Load(ctx, s.fleet.Checkpoints, req.Checkpoint)
	if err != nil && !errors.Is(err, checkpoint.ErrNotFound) {
		return nil, err
	}
	portable := err == nil
	for _, name := range candidates(req.Worker, cp.Worker, workers) {
		reply, err := s.askWorker(ctx, name, verb, req)
		if !portable && errorCode(err) == api.CodeNotFound {
			continue
		}
		return reply, err
	}
	if req.Worker != "" {
		return nil, fail(api.CodeNotFound, "checkpoint %s: is not stored, and worker %s does not hold it: leave --worker out", req.Checkpoint, req.Worker)
	}
	return nil, fail(api.CodeNotFound, "checkpoint %s: not found", req.Checkpoint)
}

// candidates are the workers to ask, best first: the one of choice alone, else the one that took the
// checkpoint, whose cache may still hold its layers, then those that are ready.
func candidates(choice, took string, workers map[string]events.Worker) []string {
	if choice != "" {
		return []string{choice}
	}
	names := slices.Sorted(maps.Keys(workers))
	rank := func(name string) int {
		switch {
		case workers[name].State != events.WorkerReady:
			return 2
		case name != took:
			return 1
		}
		return 0
	}
	slices.SortStableFunc(names, func(a, b string) int { return rank(a) - rank(b) })
	return names
}

func (s *Scheduler) askWorker(ctx context.Context, worker, verb string, req any) (any, error) {
	b, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	m, err := s.fleet.Conn.RequestWithContext(ctx, s.fleet.Subjects.Worker(worker, verb), b)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, fail(api.CodeNotFound, "worker %q: does not answer", worker)
	}
	if err != nil {
		return nil, err
	}
	if code := m.Header.Get(micro.ErrorCodeHeader); code != "" {
		return nil, fail(code, "%s", m.Header.Get(micro.ErrorHeader))
	}
	return json.RawMessage(m.Data), nil
}
