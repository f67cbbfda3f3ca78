package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/warmfleet/warmfleet/internal/fleet"
	"github.com/warmfleet/warmfleet/internal/worker"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/client"
)

// diffTimeout bounds one page of a difference, for which a worker may have to fetch layers first.
const diffTimeout = 10 * time.Minute

func (a *app) checkpointDiff() *cobra.Command {
	var f diffFlags
	c := &cobra.Command{
		Use: "diff ID [ID2]", Short: "Print how a checkpoint differs from its base, or two from each other",
		Long: "Print how a checkpoint differs from its base or, with two, what it takes to get from the first to the second, which may be\n" +
			"of other plans.\n\n" + diffForms,
		Example: `  warmfleet checkpoint diff ID --stat
  warmfleet checkpoint diff ID ID2 -o json`,
		Args: func(c *cobra.Command, got []string) error {
			if len(got) == 2 {
				return nil
			}
			return args(1, "one or two checkpoint ids")(c, got)
		},
		RunE: func(c *cobra.Command, args []string) error {
			for _, id := range args {
				if err := idArg("checkpoint", id); err != nil {
					return err
				}
			}
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				return a.compareCheckpoints(ctx, h, args, f)
			})
		},
	}
	f.register(c)
	return c
}

func (a *app) compareCheckpoints(ctx context.Context, h *handle, ids []string, f diffFlags) error {
	req := api.CheckpointDiff{To: ids[len(ids)-1]}
	if len(ids) == 2 {
		req.From = ids[0]
	}
	p := pager{h: h, req: req}
	err := a.printDifference(difference{
		files: func() (json.RawMessage, error) {
			r := req
			r.Files = true
			page, err := p.page(ctx, r)
			return page.Files, err
		},
		patch: func(w io.Writer) error { return p.copy(ctx, w) },
	}, f)
	err = errors.Join(err, p.close())
	for _, id := range ids {
		if exitCode(err) == exitNotFound && strings.Contains(err.Error(), id) {
			return h.explain(ctx, err, "compare", "checkpoint", id)
		}
	}
	return err
}

// pager gets a difference of checkpoints page by page, all from where the first was found: a worker that has what it
// takes, or can fetch it, or else this process.
type pager struct {
	h     *handle
	req   api.CheckpointDiff
	ask   func(ctx context.Context, req api.CheckpointDiff) (api.DiffPage, error)
	local *fleet.Reader
}

func (p *pager) close() error {
	if p.local == nil {
		return nil
	}
	return p.local.Close()
}

// copy writes all pages.
func (p *pager) copy(ctx context.Context, w io.Writer) error {
	for req := p.req; ; {
		page, err := p.page(ctx, req)
		if err != nil {
			return err
		}
		if _, err := w.Write(page.Patch); err != nil {
			return err
		}
		if req.After = page.Next; page.Next == "" {
			return nil
		}
	}
}

func (p *pager) page(ctx context.Context, req api.CheckpointDiff) (api.DiffPage, error) {
	ctx, cancel := context.WithTimeout(ctx, diffTimeout)
	defer cancel()
	if p.ask != nil {
		return p.ask(ctx, req)
	}
	workers, err := p.workers(ctx)
	if err != nil {
		return api.DiffPage{}, err
	}
	for _, name := range workers {
		ask := func(ctx context.Context, req api.CheckpointDiff) (api.DiffPage, error) {
			return p.h.CheckpointDiff(ctx, name, req)
		}
		page, err := ask(ctx, req)
		if err == nil {
			p.ask = ask
		}
		if !errors.Is(err, client.ErrNoScheduler) && exitCode(err) != exitNotFound {
			return page, err
		}
	}
	if p.ask, err = p.here(ctx); err != nil {
		return api.DiffPage{}, err
	}
	return p.ask(ctx, req)
}

// workers are the live ones, first those that took the checkpoints.
func (p *pager) workers(ctx context.Context) ([]string, error) {
	live, err := p.h.Workers(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, w := range live {
		names = append(names, w.Name)
	}
	for _, id := range []string{p.req.From, p.req.To} {
		if id == "" {
			continue
		}
		cp, err := checkpoint.Load(ctx, p.h.fleet.Checkpoints, id)
		if i := slices.Index(names, cp.Worker); err == nil && i > 0 {
			names = slices.Insert(slices.Delete(names, i, i+1), 0, cp.Worker)
		}
	}
	return names, nil
}

// here compares in this process. What a worker has not stored yet it is asked to.
func (p *pager) here(ctx context.Context) (func(context.Context, api.CheckpointDiff) (api.DiffPage, error), error) {
	for _, id := range []string{p.req.From, p.req.To} {
		if id == "" {
			continue
		}
		_, err := checkpoint.Load(ctx, p.h.fleet.Checkpoints, id)
		if errors.Is(err, checkpoint.ErrNotFound) {
			_, err = p.h.storeNow(ctx, id)
		}
		if errors.Is(err, checkpoint.ErrNotFound) {
			return nil, fmt.Errorf("%w: %q", checkpoint.ErrNotFound, id)
		}
		if err != nil {
			return nil, err
		}
	}
	var cps *fleet.Reader
	var err error
	if p.h.local != nil {
		cps, err = p.h.local.Reader(ctx)
	} else {
		cps, err = p.h.fleet.Reader(zerolog.Nop())
	}
	if err != nil {
		return nil, err
	}
	p.local = cps
	return func(ctx context.Context, req api.CheckpointDiff) (api.DiffPage, error) {
		return worker.CheckpointDiff(ctx, req, func(ctx context.Context, id string) (checkpoint.Restored, func(), error) {
			r, err := cps.Restore(ctx, id)
			return r, r.Release, err
		})
	}, nil
}
