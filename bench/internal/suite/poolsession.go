package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/warmfleet/warmfleet/bench/internal/bench"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/client"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// poolSessions measures how soon a client that asked for a session of the pool has read, and has written.
func poolSessions(ctx context.Context, p *poolRig) error {
	ready, err := p.fill(ctx, poolTarget, often)
	if err != nil {
		return err
	}
	if err := p.sessions(ctx, "", ready); err != nil {
		return err
	}
	if err := p.apply(ctx, poolTarget, always); err != nil {
		return err
	}
	return p.sessions(ctx, fmt.Sprintf(", %d commits behind", behind), func(ctx context.Context) error {
		if err := ready(ctx); err != nil {
			return err
		}
		_, err := p.remote.push(ctx, behind)
		return err
	})
}

// sessions measures them one after the other, each after ready.
func (p *poolRig) sessions(ctx context.Context, how string, ready func(context.Context) error) error {
	var reads, writes, ends bench.Samples
	for round := range pick(p.e, 30, 3) + 1 {
		if err := ready(ctx); err != nil {
			return err
		}
		read, write, end, err := p.session(ctx)
		if err != nil {
			return err
		}
		if round > 0 {
			reads.Take(read)
			writes.Take(write)
			ends.Take(end)
		}
	}
	return errors.Join(
		p.e.Add(bench.Result{What: "session start to first read" + how, Ours: reads}),
		p.e.Add(bench.Result{What: "session start to first write" + how, Ours: writes}),
		p.e.Add(bench.Result{What: "session end, its checkpoint stored" + how, Ours: ends}),
	)
}

// session starts one, reads as soon as that is served, writes, and ends it. read and write are times since the start was asked for.
func (p *poolRig) session(ctx context.Context) (read, write, end time.Duration, err error) {
	id, started := events.NewID(), make(chan error, 1)
	began := time.Now()
	go func() {
		_, err := p.client.StartSession(ctx, api.SessionStart{ID: id, Pool: poolName})
		started <- err
	}()
	err = until(ctx, "a read in a session", func() (bool, error) {
		err := p.client.ReadFile(ctx, id, api.SessionRead{Path: stable}, io.Discard)
		if errors.Is(err, client.ErrNoSession) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return 0, 0, 0, err
	}
	read = time.Since(began)
	if err := p.client.WriteFile(ctx, id, "written", 0o644, strings.NewReader("by the client\n")); err != nil {
		return 0, 0, 0, err
	}
	write = time.Since(began)
	if err := <-started; err != nil {
		return 0, 0, 0, err
	}
	if s, err := p.client.Session(ctx, id); err != nil || s.Source != events.SourceWarm {
		return 0, 0, 0, errors.Join(err, fmt.Errorf("session %s started %s, it should be warm", id, s.Source))
	}
	end, err = bench.Time(func() error {
		_, err := p.client.EndSession(ctx, id)
		return err
	})
	return read, write, end, err
}
