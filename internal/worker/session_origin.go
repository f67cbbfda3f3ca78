package worker

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

// sessionBox is the sandbox that a session starts in.
type sessionBox struct {
	sb                    *sandbox.Sandbox
	baseLayers            int
	source, image, commit string
	from                  checkpoint.Checkpoint // where it is resumed from
	// fresh brings it to the remote's tip and tells where that is; nil where it is there.
	fresh   func(context.Context) (tip, error)
	release func() // may be nil
	notes   []string
}

// tip is where a sandbox is once it was brought up to date.
type tip struct {
	commit     string
	baseLayers int
}

// sessionOrigin makes the sandbox of a session: of the checkpoint that was named if one was, else of the pool, the path
// or the repository.
func (w *Worker) sessionOrigin(ctx context.Context, id string, req api.SessionStart) (sessionBox, error) {
	switch {
	case req.Checkpoint != "":
		return w.resumedBox(ctx, id, req)
	case req.Pool != "":
		return w.pooledBox(ctx, id, req)
	default:
		return w.resourceBox(ctx, req)
	}
}

// resourceBox starts cold from a path that this worker allows, or from a repository.
func (w *Worker) resourceBox(ctx context.Context, req api.SessionStart) (sessionBox, error) {
	p, err := sessionPlan(req)
	if err != nil {
		return sessionBox{}, err
	}
	if p.Resource.Path != "" && p.Resource.Host != w.cfg.HostID {
		return sessionBox{}, refuse("invalid_resource", "path %q: is of host %q, this is %q", req.Path, req.Host, w.cfg.HostID)
	}
	t, err := w.resolve(ctx, p)
	if err == nil {
		err = w.meets(p)
	}
	if err != nil {
		return sessionBox{}, err
	}
	unlock, err := w.lockFor(ctx, p, t)
	if err != nil {
		return sessionBox{}, err
	}
	err = w.base(ctx, p, t)
	unlock()
	if err != nil {
		t.release()
		return sessionBox{}, err
	}
	box := sessionBox{baseLayers: len(t.chain), source: events.SourcePath, commit: t.head(), release: t.release, notes: w.networkNotes(p)}
	if t.path == "" {
		box.source = events.SourceCold
	}
	if box.sb, err = w.sessionSandbox(ctx, withNetwork(sandbox.Spec{Chain: t.chain, Limits: w.limitsOf(p)}, networkOf(req))); err != nil {
		t.release()
	}
	return box, err
}

// sessionPlan says what a session starts from as a plan would: the same checks hold.
func sessionPlan(req api.SessionStart) (*plan.Plan, error) {
	b, err := json.Marshal(map[string]any{
		"version": 1, "name": "session", "strategy": "copy_on_write", "apply": "never", "network": networkOf(req),
		"resource": plan.Resource{Path: req.Path, Host: req.Host, Repo: req.Repo, Ref: req.Ref},
		"steps":    []map[string]string{{"run": "true"}},
	})
	if err != nil {
		return nil, err
	}
	p, err := plan.ParseJSON(b)
	if err != nil {
		return nil, refuse("invalid_resource", "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	p.Defaults()
	return p, nil
}

func networkOf(req api.SessionStart) plan.Network {
	if n := askedNetwork(req); n != nil {
		return *n
	}
	return plan.Network{Mode: plan.NetworkNone}
}

func (w *Worker) sessionSandbox(ctx context.Context, spec sandbox.Spec) (*sandbox.Sandbox, error) {
	spec.ID, spec.Strategy = events.NewID(), sandbox.CopyOnWrite
	return sandbox.New(ctx, w.hostFor(""), spec)
}
