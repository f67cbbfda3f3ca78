package worker

import (
	"context"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

// pooledBox takes a sandbox of a pool, warm where there is one. It is brought to the remote's tip behind the session's
// gate, so that reads are served meanwhile.
func (w *Worker) pooledBox(ctx context.Context, id string, req api.SessionStart) (sessionBox, error) {
	var notes []string
	claim := poolClaim{id: id, network: askedNetwork(req), later: true}
	if k := w.pooling.keeper(req.Pool); k != nil { // where there is none, claiming says so
		c := claim
		c.complete(k.now())
		p := &plan.Plan{Network: c.network, Limits: c.limits}
		if err := w.meets(p); err != nil {
			return sessionBox{}, err
		}
		notes = w.networkNotes(p)
	}
	p, err := w.claimPool(ctx, req.Pool, claim)
	if err != nil {
		return sessionBox{}, err
	}
	box := sessionBox{sb: p.sb, baseLayers: p.baseLayers, source: p.source, image: p.image, commit: p.commit, release: p.release, notes: append(notes, p.notes...)}
	if p.fresh != nil {
		box.fresh = func(ctx context.Context) (tip, error) {
			if err := p.fresh(ctx); err != nil {
				return tip{}, err
			}
			at := p.after()
			return tip{at.commit, at.baseLayers}, nil
		}
	}
	return box, nil
}
