// Package client is the Go SDK: it submits plans, follows them and asks the fleet's API.
//
// It takes a ready connection, so how to reach and trust the server stays with the caller.
// It knows the messages of the fleet and nothing of how they are handled.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// requestTimeout bounds one request when the context has no deadline.
const requestTimeout = 40 * time.Second

// ErrNoScheduler: no scheduler answers on this server.
var ErrNoScheduler = errors.New("client: no scheduler answers on this server: start one with `scheduler` or `warmfleet up`")

// Error is what the API answered; Code is one of package api's.
type Error struct {
	Code    string
	Message string
}

func (e *Error) Error() string { return e.Message }

// Client asks a fleet. It is safe for concurrent use.
type Client struct {
	nc       *nats.Conn
	subjects events.Subjects
	log      *events.JetStreamLog
	js       jetstream.JetStream
}

// New returns a client on a connection; prefix "" is the default one.
func New(nc *nats.Conn, prefix string) (*Client, error) {
	subjects, err := events.NewSubjects(prefix)
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("client: open JetStream: %w", err)
	}
	return &Client{nc: nc, subjects: subjects, log: events.NewLog(js, subjects), js: js}, nil
}

// Submit asks for a plan to be run and returns the verdict. The same id and plan again is
// the same plan. An *Error of code api.CodeConflict says that the id belongs to another plan.
func (c *Client) Submit(ctx context.Context, s events.Submission) (api.Submitted, error) {
	return call[api.Submitted](ctx, c, "plan", "submit", s)
}

// Plan returns a plan as it is now.
func (c *Client) Plan(ctx context.Context, id string) (events.View, error) {
	return call[events.View](ctx, c, "plan", "get", api.ID{ID: id})
}

// Plans returns all plans of the log, oldest first, without their steps and checkpoints.
func (c *Client) Plans(ctx context.Context) ([]events.View, error) {
	return call[[]events.View](ctx, c, "plan", "list", nil)
}

// Approve lets a plan that awaits approval be applied; by says who approves.
func (c *Client) Approve(ctx context.Context, id, by string) (api.Done, error) {
	return call[api.Done](ctx, c, "plan", "approve", api.ID{ID: id, By: by})
}

// Reject ends a plan that awaits approval.
func (c *Client) Reject(ctx context.Context, id, by string) (api.Done, error) {
	return call[api.Done](ctx, c, "plan", "reject", api.ID{ID: id, By: by})
}

// Cancel ends a plan, or asks the worker that holds it to; until its apply has begun.
func (c *Client) Cancel(ctx context.Context, id, by string) (api.Done, error) {
	return call[api.Done](ctx, c, "plan", "cancel", api.ID{ID: id, By: by})
}

// Diff returns the rendered difference of a plan whose steps have ended.
func (c *Client) Diff(ctx context.Context, id string) (api.Diff, error) {
	return call[api.Diff](ctx, c, "plan", "diff", api.ID{ID: id})
}

// CheckpointDiff asks a worker for one page of how two checkpoints differ, which may take minutes where it has to fetch
// their layers. An *Error of code api.CodeNotFound says that this worker cannot reach one of them.
func (c *Client) CheckpointDiff(ctx context.Context, worker string, req api.CheckpointDiff) (api.DiffPage, error) {
	return ask[api.DiffPage](ctx, c, c.subjects.Worker(worker, "diff"), req)
}

// Checkpoints returns checkpoints, oldest first.
func (c *Client) Checkpoints(ctx context.Context, f api.CheckpointFilter) ([]api.Checkpoint, error) {
	return call[[]api.Checkpoint](ctx, c, "checkpoint", "list", f)
}

// Checkpoint returns one stored checkpoint.
func (c *Client) Checkpoint(ctx context.Context, id string) (api.Checkpoint, error) {
	return call[api.Checkpoint](ctx, c, "checkpoint", "get", api.ID{ID: id})
}

// Workers returns the live workers by name.
func (c *Client) Workers(ctx context.Context) ([]events.Worker, error) {
	return call[[]events.Worker](ctx, c, "worker", "list", nil)
}

// Events returns all events of a plan so far, or events.ErrNotFound.
func (c *Client) Events(ctx context.Context, planID string) ([]events.Record, error) {
	return c.log.Events(ctx, planID)
}

// Follow delivers the events that the filter selects until ctx ends.
func (c *Client) Follow(ctx context.Context, f events.Filter) (<-chan events.Record, error) {
	return c.log.Follow(ctx, f)
}

// Wait follows a plan until it is final or done says so of an event, and returns that record.
func (c *Client) Wait(ctx context.Context, planID string, done func(events.Record) bool) (events.Record, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	records, err := c.log.Follow(ctx, events.Filter{Plan: planID})
	if err != nil {
		return events.Record{}, err
	}
	for r := range records {
		if r.Event.Data.Final || done != nil && done(r) {
			return r, nil
		}
	}
	return events.Record{}, context.Cause(ctx)
}

// call makes one request of the API.
func call[T any](ctx context.Context, c *Client, noun, verb string, req any) (T, error) {
	return ask[T](ctx, c, c.subjects.API(noun, verb), req)
}

// ask makes one request on a subject.
func ask[T any](ctx context.Context, c *Client, subject string, req any) (T, error) {
	var reply T
	var body []byte
	if req != nil {
		var err error
		if body, err = json.Marshal(req); err != nil {
			return reply, fmt.Errorf("client: encode request: %w", err)
		}
	}
	if most := c.nc.MaxPayload(); int64(len(body)) > most {
		return reply, fmt.Errorf("client: request %s: %w", subject, &events.SizeError{What: "request", Size: len(body), Max: int(most)})
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, requestTimeout)
		defer cancel()
	}
	data, err := c.exchange(ctx, subject, body)
	if err != nil {
		return reply, err
	}
	if err := json.Unmarshal(data, &reply); err != nil {
		return reply, fmt.Errorf("client: decode reply of %s: %w", subject, err)
	}
	return reply, nil
}

// exchange sends a request and returns the data of its reply, which may come in several messages.
func (c *Client) exchange(ctx context.Context, subject string, body []byte) ([]byte, error) {
	inbox := c.nc.NewInbox()
	sub, err := c.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, fmt.Errorf("client: request %s: %w", subject, err)
	}
	defer sub.Unsubscribe()
	if err := c.nc.PublishRequest(subject, inbox, body); err != nil {
		return nil, fmt.Errorf("client: request %s: %w", subject, err)
	}
	var data []byte
	for left := 1; left > 0; left-- {
		m, err := sub.NextMsgWithContext(ctx)
		if errors.Is(err, nats.ErrNoResponders) {
			return nil, ErrNoScheduler
		}
		if err != nil {
			return nil, fmt.Errorf("client: request %s: %w", subject, err)
		}
		if code := m.Header.Get(micro.ErrorCodeHeader); code != "" {
			return nil, &Error{Code: code, Message: m.Header.Get(micro.ErrorHeader)}
		}
		if n, err := strconv.Atoi(m.Header.Get(api.HeaderParts)); err == nil && data == nil {
			left = n
		}
		data = append(data, m.Data...)
	}
	return data, nil
}
