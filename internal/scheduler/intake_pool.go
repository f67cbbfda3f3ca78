package scheduler

import (
	"context"
	"fmt"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/poolfile"
)

// Codes of rejections that a pool is the reason for.
const (
	codeUnknownPool = "unknown_pool"
	codeInvalidPlan = "invalid_plan"
)

// resourceFor is what a plan works on: what it says, or the repository of its pool as the pool is now. refused says why the
// plan can never run; err that nobody can tell now.
func (s *Scheduler) resourceFor(ctx context.Context, p *plan.Plan) (r events.Resource, refused *apiError, err error) {
	r = resourceOf(p)
	if p.Pool == "" {
		return r, nil, nil
	}
	_, spec, _, err := s.loadPool(ctx, p.Pool)
	if err != nil && errorCode(err) == api.CodeNotFound {
		return r, refuse(codeUnknownPool, "pool %s: there is no such pool: see warmfleet pool ls", p.Pool), nil
	}
	if err != nil {
		return r, nil, err
	}
	r, refused = poolResource(r, spec)
	return r, refused, nil
}

func refuse(code, format string, args ...any) *apiError {
	return &apiError{code: code, msg: fmt.Sprintf(format, args...)}
}

// poolResource joins what a plan and its pool say about the repository. A plan may want another ref of it.
func poolResource(r events.Resource, spec poolfile.Pool) (events.Resource, *apiError) {
	switch {
	case r.Path != "":
		return r, refuse(codeInvalidPlan, "pool %s: is of repository %s, and the plan works on path %s: remove pool or resource", spec.Name, spec.Resource.Repo, r.Path)
	case r.Repo != "" && !poolfile.SameRepo(r.Repo, spec.Resource.Repo):
		return r, refuse(codeInvalidPlan, "pool %s: is of repository %s, and the plan works on %s: remove pool or resource", spec.Name, spec.Resource.Repo, r.Repo)
	}
	r.Repo = spec.Resource.Repo
	if r.Ref == "" {
		r.Ref = spec.Resource.Ref
	}
	return r, nil
}
