package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/warmfleet/warmfleet/internal/parts"
	"github.com/warmfleet/warmfleet/internal/version"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// apiTimeout bounds one request, a download of layers included.
const apiTimeout = 10 * time.Minute

// endpoints is the worker's micro service and what runs on its behalf.
type endpoints struct {
	service micro.Service
	cancels *nats.Subscription
	busy    sync.WaitGroup
	most    func() int64 // the server's limit on a message, which it may change on a reconnect
}

// serve registers the worker's endpoints and listens for hints.
func (w *Worker) serve(ctx context.Context) (*endpoints, error) {
	a := &endpoints{most: w.fleet.Conn.MaxPayload}
	svc, err := micro.AddService(w.fleet.Conn, micro.Config{
		Name: "warmfleet-worker", Version: version.Semver(), Description: "a warmfleet worker",
		Metadata:           map[string]string{"worker": w.cfg.Name, "host": w.cfg.HostID, "isolation": string(w.report.Rung)},
		QueueGroupDisabled: true,
	})
	if err != nil {
		return nil, fmt.Errorf("worker: register service: %w", err)
	}
	a.service = svc
	for verb, handle := range map[string]func(context.Context, []byte) (any, error){
		"status": w.apiStatus, "rollback": w.apiRollback, "fork": w.apiRollback, "store": w.apiStore,
		"diff": w.apiDiff, "prewarm": w.apiPrewarm, "explain": w.apiExplain,
	} {
		err := svc.AddEndpoint(verb, a.handler(ctx, handle), micro.WithEndpointSubject(w.fleet.Subjects.Worker(w.cfg.Name, verb)))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("worker: register endpoint %s: %w", verb, err), svc.Stop())
		}
	}
	a.cancels, err = w.fleet.Conn.Subscribe(w.fleet.Subjects.Control("cancel", "*"), func(m *nats.Msg) {
		w.cancelHinted(string(m.Data))
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("worker: listen for cancels: %w", err), svc.Stop())
	}
	return a, nil
}

// handler answers each request on a goroutine of its own: the service calls handlers one by one.
func (a *endpoints) handler(ctx context.Context, handle func(context.Context, []byte) (any, error)) micro.Handler {
	return micro.HandlerFunc(func(r micro.Request) {
		a.busy.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, apiTimeout)
			defer cancel()
			reply, err := handle(ctx, r.Data())
			if err != nil {
				respondError(r, err)
				return
			}
			if err := parts.Respond(r, reply, a.most()); err != nil {
				respondError(r, fmt.Errorf("worker: reply of %s could not be sent: %w", r.Subject(), err))
			}
		})
	})
}

func respondError(r micro.Request, err error) {
	code := api.CodeInternal
	switch {
	case errors.Is(err, checkpoint.ErrNotFound), errors.Is(err, errNoPool):
		code = api.CodeNotFound
	case errors.Is(err, errFull), errors.Is(err, checkpoint.ErrLive):
		code = api.CodeConflict
	case errors.Is(err, errRequest), errors.Is(err, events.ErrID):
		code = api.CodeInvalid
	case errors.Is(err, context.DeadlineExceeded):
		code = api.CodeTimeout
	}
	parts.Refuse(r, code, err)
}

// errRequest: the request is not what the endpoint takes.
var errRequest = errors.New("request is not valid JSON")

// badRequest is an errRequest of good JSON. Its text says alone what is wrong.
type badRequest string

func (b badRequest) Error() string { return string(b) }

func (b badRequest) Is(target error) bool { return target == errRequest }

// unfit returns a badRequest.
func unfit(format string, args ...any) error { return badRequest(fmt.Sprintf(format, args...)) }

// checkpointID reads a request that names a checkpoint.
func checkpointID(body []byte) (string, error) {
	var req api.Store
	if err := json.Unmarshal(body, &req); err != nil {
		return "", fmt.Errorf("worker: read request: %w: %w", errRequest, err)
	}
	return events.ParseID(req.Checkpoint)
}

func (a *endpoints) stop() {
	a.cancels.Unsubscribe()
	a.service.Stop()
	a.busy.Wait()
}

func (w *Worker) apiStatus(context.Context, []byte) (any, error) { return w.Record(), nil }

// apiRollback makes a sandbox of its own on the checkpoint's layers, for rollback and fork alike: nothing is
// copied, and the one that the checkpoint was taken of goes on as it is.
func (w *Worker) apiRollback(ctx context.Context, body []byte) (any, error) {
	id, err := checkpointID(body)
	if err != nil {
		return nil, err
	}
	sb, err := w.hold(ctx, id)
	if err != nil {
		return nil, err
	}
	return api.RolledBack{Sandbox: sb.ID(), Worker: w.cfg.Name, State: string(sb.State()), Checkpoint: id}, nil
}

// apiPrewarm has one warm sandbox more of a pool ready for a while. It claims nothing.
func (w *Worker) apiPrewarm(_ context.Context, body []byte) (any, error) {
	var req api.Name
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, fmt.Errorf("worker: read request: %w: %w", errRequest, err)
	}
	k := w.pooling.keeper(req.Name)
	if k == nil || k.now().removed {
		return nil, fmt.Errorf("worker: prewarm pool %q: %w", req.Name, errNoPool)
	}
	return api.Prewarmed{Name: req.Name, Worker: w.cfg.Name, Expires: k.prewarm()}, nil
}

func (w *Worker) apiStore(ctx context.Context, body []byte) (any, error) {
	id, err := checkpointID(body)
	if err != nil {
		return nil, err
	}
	return w.cps.Store(ctx, id)
}
