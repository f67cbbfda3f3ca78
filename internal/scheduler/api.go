package scheduler

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/micro"

	"github.com/warmfleet/warmfleet/internal/parts"
	"github.com/warmfleet/warmfleet/internal/version"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
)

const (
	// apiTimeout bounds one request, and transferTimeout one that moves layers or looks at all of them.
	apiTimeout      = 30 * time.Second
	transferTimeout = 10 * time.Minute
)

// timeoutOf is how long a request of a name may take.
func timeoutOf(noun, verb string) time.Duration {
	if noun == "gc" || noun == "image" && verb == "build" || noun == "session" && verb == "start" || noun == "checkpoint" && slices.Contains([]string{"rollback", "fork", "verify"}, verb) {
		return transferTimeout
	}
	return apiTimeout
}

// apiError is an error with its code for clients.
type apiError struct {
	code string
	msg  string
}

func (e *apiError) Error() string { return e.msg }

func fail(code, format string, args ...any) error {
	return &apiError{code: code, msg: fmt.Sprintf(format, args...)}
}

// endpoints is the micro service and what runs on its behalf.
type endpoints struct {
	service micro.Service
	busy    sync.WaitGroup
}

// handler answers one kind of request.
type handler func(ctx context.Context, body []byte) (any, error)

func (s *Scheduler) handlers() map[[2]string]handler {
	return map[[2]string]handler{
		{"plan", "submit"}: s.planSubmit, {"plan", "get"}: s.planGet, {"plan", "list"}: s.planList,
		{"plan", "approve"}: s.planApprove, {"plan", "reject"}: s.planReject, {"plan", "cancel"}: s.planCancel, {"plan", "diff"}: s.planDiff,
		{"plan", "undo"}:       s.planUndo,
		{"checkpoint", "list"}: s.checkpointList, {"checkpoint", "get"}: s.checkpointGet,
		{"checkpoint", "rollback"}: s.checkpointRollback, {"checkpoint", "fork"}: s.checkpointFork,
		{"checkpoint", "verify"}: s.checkpointVerify, {"checkpoint", "delete"}: s.checkpointDelete,
		{"gc", "run"}:      s.gcRun,
		{"worker", "list"}: s.workerList,
		{"pool", "list"}:   s.poolList, {"pool", "get"}: s.poolGet, {"pool", "apply"}: s.poolApply, {"pool", "delete"}: s.poolDelete,
		{"pool", "prewarm"}: s.poolPrewarm, {"pool", "refresh"}: s.poolRefresh,
		{"image", "list"}: s.imageList, {"image", "get"}: s.imageGet, {"image", "build"}: s.imageBuild, {"image", "delete"}: s.imageDelete,
		{"session", "start"}: s.sessionStart, {"session", "list"}: s.sessionList, {"session", "get"}: s.sessionGet,
	}
}

// serve registers the API.
func (s *Scheduler) serve(ctx context.Context) (*endpoints, error) {
	svc, err := micro.AddService(s.fleet.Conn, micro.Config{
		Name: "warmfleet", Version: version.Semver(), Description: "the warmfleet API", Metadata: map[string]string{"scheduler": s.id},
	})
	if err != nil {
		return nil, fmt.Errorf("scheduler: register service: %w", err)
	}
	e := &endpoints{service: svc}
	for name, h := range s.handlers() {
		err := svc.AddEndpoint(name[0]+"-"+name[1], e.handle(ctx, h, serving{timeoutOf(name[0], name[1]), s.fleet.Conn.MaxPayload}), micro.WithEndpointSubject(s.fleet.Subjects.API(name[0], name[1])))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("scheduler: register endpoint %v: %w", name, err), svc.Stop())
		}
	}
	return e, nil
}

// serving bounds the answers of an endpoint.
type serving struct {
	timeout time.Duration
	most    func() int64 // the server's limit on a message, which it may change on a reconnect
}

// handle answers each request on a goroutine of its own: the service calls handlers one by one.
func (e *endpoints) handle(ctx context.Context, h handler, bound serving) micro.Handler {
	return micro.HandlerFunc(func(r micro.Request) {
		e.busy.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, bound.timeout)
			defer cancel()
			reply, err := h(ctx, r.Data())
			if err == nil {
				err = parts.Respond(r, reply, bound.most())
			}
			if err != nil {
				parts.Refuse(r, errorCode(err), err)
			}
		})
	})
}

func errorCode(err error) string {
	var a *apiError
	switch {
	case errors.As(err, &a):
		return a.code
	case errors.Is(err, events.ErrNotFound), errors.Is(err, checkpoint.ErrNotFound):
		return api.CodeNotFound
	case errors.Is(err, events.ErrTransition), errors.Is(err, events.ErrFinal), errors.Is(err, errTaken),
		errors.Is(err, events.ErrCancelRequested), errors.Is(err, events.ErrFenced):
		return api.CodeConflict
	case errors.Is(err, events.ErrUnknown), errors.Is(err, context.DeadlineExceeded):
		return api.CodeTimeout
	case errors.Is(err, events.ErrTooLarge), errors.Is(err, events.ErrMalformed), errors.Is(err, events.ErrID):
		return api.CodeInvalid
	default:
		return api.CodeInternal
	}
}

func (e *endpoints) stop() {
	e.service.Stop()
	e.busy.Wait()
}

// idOf reads a request that names one thing: {"id": ...} or the bare id.
func idOf(body []byte) (api.ID, error) {
	var id api.ID
	body = bytes.TrimSpace(body)
	if len(body) > 0 && body[0] != '{' {
		id.ID = string(bytes.Trim(body, `"`))
	} else if err := json.Unmarshal(body, &id); err != nil {
		return id, fail(api.CodeInvalid, "request is not JSON with an id: %v", err)
	}
	var err error
	if id.ID, err = events.ParseID(id.ID); err != nil {
		return id, fail(api.CodeInvalid, "%v", err)
	}
	return id, nil
}
