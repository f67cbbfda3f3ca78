package main

import (
	"context"
	"errors"

	"github.com/warmfleet/warmfleet/internal/fleet"
	"github.com/warmfleet/warmfleet/internal/natsboot"
	"github.com/warmfleet/warmfleet/internal/worker"
	"github.com/warmfleet/warmfleet/pkg/client"
)

// handle is how a command reaches a fleet.
type handle struct {
	*client.Client
	fleet *fleet.Fleet
	// local is the fleet of the state directory, nil when a server was given.
	local *fleet.Local
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

// work makes a local fleet able to run a plan on a path: with a worker in this process that
// allows it. A given server has workers of its own.
func (h *handle) work(ctx context.Context, isolation worker.Isolation, paths ...string) error {
	if h.local == nil {
		return nil
	}
	return h.local.AddWorker(ctx, worker.Config{
		HostID: fleet.HostID(""), Slots: localSlots, AllowPaths: paths, Isolation: isolation, DrainTimeout: localDrain,
	})
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
