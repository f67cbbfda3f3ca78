package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/poolfile"
)

// ofItsPool fills in what a plan leaves to its pool: the repository as it was when the plan was accepted, and the network.
func (w *Worker) ofItsPool(p *plan.Plan, accepted *events.Fold) {
	if p.Pool == "" {
		return
	}
	spec, _, served := w.poolSpec(p.Pool)
	if p.Resource == nil && accepted != nil && accepted.Resource.Repo != "" {
		p.Resource = &plan.Resource{Repo: accepted.Resource.Repo, Ref: accepted.Resource.Ref}
	}
	if p.Resource == nil && served {
		p.Resource = &plan.Resource{Repo: spec.Resource.Repo, Ref: spec.Resource.Ref}
	}
	if p.Network == nil && served {
		p.Network = spec.PlanNetwork
	}
}

// ofPool tells whether an operator lets a plan's local repository be used by having applied its pool. The scheduler takes no plan
// whose resource is not its pool's, so that of a pool which is gone since was.
func (w *Worker) ofPool(p *plan.Plan) bool {
	if p.Pool == "" {
		return false
	}
	spec, _, served := w.poolSpec(p.Pool)
	return !served || poolfile.SameRepo(spec.Resource.Repo, p.Resource.Repo)
}

// planRemote is the repository of a plan that works on a URL. With a pool, the pool's credential goes with it, but to no other
// repository than the pool's.
func (w *Worker) planRemote(p *plan.Plan) gitrepo.Remote {
	r := gitrepo.Remote{URL: p.Resource.Repo, Ref: p.Resource.Ref}
	if p.Pool == "" {
		return r
	}
	if spec, _, served := w.poolSpec(p.Pool); served && poolfile.SameRepo(spec.Resource.Repo, r.URL) {
		spec.Resource = poolfile.Resource{Repo: r.URL, Ref: r.Ref}
		return w.poolRemote(spec)
	}
	return r
}

// poolBase claims the sandbox of a plan with a pool. Where the pool is gone, or of another repository since, it is made of a
// plain clone.
func (w *Worker) poolBase(ctx context.Context, p *plan.Plan, t *target) error {
	spec, _, served := w.poolSpec(p.Pool)
	why := "the pool was removed since"
	if served {
		why = "the pool is of another repository since"
	}
	if !served || !poolfile.SameRepo(spec.Resource.Repo, p.Resource.Repo) {
		b, err := w.repos.FromURL(ctx, p.Resource.Repo, p.Resource.Ref)
		t.chain, t.commit, t.branch, t.done = b.Chain, b.Commit, b.Branch, b.Release
		t.notes = append([]string{"cold: " + why + ": a plain clone, without what its recipe built"}, b.Notes...)
		return err
	}
	box, err := w.claimPool(ctx, p.Pool, poolClaim{
		id: t.plan, ref: p.Resource.Ref, network: p.Network, limits: p.Limits, strategy: p.Strategy,
	})
	if errors.Is(err, errNoPool) { // removed just now
		return fmt.Errorf("%w: %w", errAgain, err)
	}
	if err != nil {
		return err
	}
	t.box, t.chain, t.commit, t.branch, t.notes = &box, box.sb.Chain(), box.commit, box.branch, box.notes
	t.done = func() {
		w.discard(box.sb)
		box.release()
	}
	return nil
}

// claimed says in a plan's claim where its sandbox came from.
func (t *target) claimed(d *events.Data) {
	d.Notes = append(d.Notes, t.notes...)
	if t.box == nil {
		return
	}
	d.Source, d.Image, d.SandboxID = t.box.source, t.box.image, t.box.sb.ID()
	if n := t.box.behind; n > 0 {
		d.Behind = &n
	}
}
