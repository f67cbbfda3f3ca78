package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// ErrNoSession: nobody serves the session: it has ended, or its worker is gone.
var ErrNoSession = errors.New("client: nobody serves this session: it has ended or its worker is gone")

// StartSession starts a session, or returns the one of that id. One that takes long is returned in state starting.
func (c *Client) StartSession(ctx context.Context, s api.SessionStart) (api.Session, error) {
	return transferOn[api.Session](ctx, c, c.subjects.API("session", "start"), s)
}

// Session returns a session as it is now.
func (c *Client) Session(ctx context.Context, id string) (api.Session, error) {
	return call[api.Session](ctx, c, "session", "get", api.ID{ID: id})
}

// Sessions returns all sessions, oldest first.
func (c *Client) Sessions(ctx context.Context) ([]api.Session, error) {
	return call[[]api.Session](ctx, c, "session", "list", nil)
}

// ExecDetached starts a command that goes on by itself.
func (c *Client) ExecDetached(ctx context.Context, id string, req api.Exec) (api.Detached, error) {
	req = inText(req)
	req.Detach = true
	return onSession[api.Detached](ctx, c, id, "exec", req)
}

// ReadFile writes a file of a session, or the part of it that is asked for, as it was at one moment. It comes in parts of
// at most api.SessionReadLimit, and the next is asked for when w has taken one. A file that changes meanwhile is an Error with
// api.CodeConflict.
func (c *Client) ReadFile(ctx context.Context, id string, req api.SessionRead, w io.Writer) error {
	left := req.Limit
	req.Path = api.Text(req.Path)
	for {
		req.Limit = api.SessionReadLimit
		if left != 0 { // below 0 is the worker's to refuse
			req.Limit = min(left, req.Limit)
		}
		n, of, err := c.readPart(ctx, id, req, w)
		if err != nil {
			return err
		}
		size, err := strconv.ParseInt(of.Get(api.HeaderSize), 10, 64)
		if err != nil {
			return fmt.Errorf("client: read %q in session %s: %w", req.Path, id, err)
		}
		req.Offset, req.Stamp = req.Offset+n, of.Get(api.HeaderStamp)
		if left > 0 {
			if left -= n; left == 0 {
				return nil
			}
		}
		if n == 0 || req.Offset >= size {
			return nil
		}
	}
}

// readPart writes the reply to one request, and returns its size and headers.
func (c *Client) readPart(ctx context.Context, id string, req api.SessionRead, w io.Writer) (n int64, of nats.Header, err error) {
	sub, err := c.openSession(id, "read", req)
	if err != nil {
		return 0, nil, err
	}
	defer sub.Unsubscribe()
	for left := -1; left != 0; left-- {
		m, err := next(ctx, sub)
		if err != nil {
			return n, nil, err
		}
		if left < 0 {
			of = m.Header
			if left, err = strconv.Atoi(of.Get(api.HeaderParts)); err != nil {
				return n, nil, fmt.Errorf("client: read %q in session %s: %w", req.Path, id, err)
			}
		}
		if _, err := w.Write(m.Data); err != nil {
			return n, nil, err
		}
		n += int64(len(m.Data))
	}
	return n, of, nil
}

// WriteFile replaces a file of a session whole with what r gives: it is there only when all of it is. mode 0 keeps what is
// there.
func (c *Client) WriteFile(ctx context.Context, id, path string, mode uint32, r io.Reader) error {
	req := api.SessionWrite{Path: api.Text(path), Mode: mode, Upload: events.NewID()}
	for !req.Last {
		buf := make([]byte, api.SessionChunk)
		n, err := io.ReadFull(r, buf)
		req.Data, req.Last = buf[:n], errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !req.Last {
			return err
		}
		if _, err := onSession[api.Written](ctx, c, id, "write", req); err != nil {
			return err
		}
		req.Offset += int64(n)
	}
	return nil
}

// ListFiles returns the entries of a directory of a session, by name; a Name is as api.Text has it.
func (c *Client) ListFiles(ctx context.Context, id, path string) ([]api.SessionEntry, error) {
	return onSession[[]api.SessionEntry](ctx, c, id, "list", api.SessionPath{Path: api.Text(path)})
}

// CheckpointSession takes a checkpoint, stored when it returns. What runs is stopped while files are copied, and goes on; the
// checkpoint is fuzzy then.
func (c *Client) CheckpointSession(ctx context.Context, id string) (api.SessionCheckpoint, error) {
	return onSession[api.SessionCheckpoint](ctx, c, id, "checkpoint", nil)
}

// CheckpointIdleSession is CheckpointSession after the commands that run; beside detached ones it is still fuzzy.
func (c *Client) CheckpointIdleSession(ctx context.Context, id string) (api.SessionCheckpoint, error) {
	return onSession[api.SessionCheckpoint](ctx, c, id, "checkpoint", api.SessionCheckpoint{Wait: true})
}

// RollbackSession brings a session back to a checkpoint of its own lineage.
func (c *Client) RollbackSession(ctx context.Context, id, checkpoint string) (api.SessionCheckpoint, error) {
	return onSession[api.SessionCheckpoint](ctx, c, id, "rollback", api.SessionCheckpoint{Checkpoint: checkpoint})
}

// ForkSession starts another session, on any worker, from the present state of one: of a checkpoint that it takes.
func (c *Client) ForkSession(ctx context.Context, id string) (api.Session, error) {
	cp, err := c.CheckpointSession(ctx, id)
	if err != nil {
		return api.Session{}, err
	}
	return c.StartSession(ctx, api.SessionStart{Checkpoint: cp.Checkpoint})
}

// EndSession ends a session and returns the checkpoint to resume from. What runs in it is killed.
func (c *Client) EndSession(ctx context.Context, id string) (api.SessionCheckpoint, error) {
	return onSession[api.SessionCheckpoint](ctx, c, id, "end", nil)
}

// openSession sends a request whose answer comes in several messages.
func (c *Client) openSession(id, verb string, req any) (*nats.Subscription, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	if most := c.nc.MaxPayload(); int64(len(body)) > most {
		return nil, fmt.Errorf("client: %s in session %s: %w", verb, id, &events.SizeError{What: "request", Size: len(body), Max: int(most)})
	}
	sub, err := c.nc.SubscribeSync(c.nc.NewInbox())
	if err != nil {
		return nil, err
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return nil, err
	}
	return sub, c.nc.PublishRequest(c.subjects.Session(id, verb), sub.Subject, body)
}

func next(ctx context.Context, sub *nats.Subscription) (*nats.Msg, error) {
	m, err := sub.NextMsgWithContext(ctx)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, ErrNoSession
	}
	if err != nil {
		return nil, err
	}
	if code := m.Header.Get(micro.ErrorCodeHeader); code != "" {
		return nil, &Error{Code: code, Message: m.Header.Get(micro.ErrorHeader)}
	}
	return m, nil
}

func onSession[T any](ctx context.Context, c *Client, id, verb string, req any) (T, error) {
	reply, err := transferOn[T](ctx, c, c.subjects.Session(id, verb), req)
	if errors.Is(err, ErrNoScheduler) {
		err = ErrNoSession
	}
	return reply, err
}
