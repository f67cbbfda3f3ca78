package worker

import (
	"context"
	"fmt"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

// resumedBox restores the checkpoint that was asked for. Whatever is warm here gives at most its running init, never its files.
func (w *Worker) resumedBox(ctx context.Context, id string, req api.SessionStart) (sessionBox, error) {
	r, release, err := w.restore(ctx, req.Checkpoint)
	if err != nil {
		return sessionBox{}, err
	}
	box := sessionBox{
		baseLayers: r.BaseLayers, source: events.SourceCheckpoint, commit: r.Metadata["commit"], image: r.Metadata["image"],
		from: r.Checkpoint, release: release,
	}
	c := poolClaim{id: id, network: askedNetwork(req), strategy: plan.CopyOnWrite}
	k := w.pooling.keeper(r.Metadata["pool"])
	if k != nil {
		c.complete(k.now())
	} else {
		n := networkOf(req)
		c.network = &n
	}
	p := &plan.Plan{Network: c.network, Limits: c.limits}
	if err := w.meets(p); err != nil {
		release()
		return sessionBox{}, err
	}
	box.notes = w.networkNotes(p)
	if k != nil {
		var b *warmBox
		var notes []string
		b, notes = k.resume(ctx, r, c)
		if box.notes = append(box.notes, notes...); b != nil {
			box.sb, box.release = b.sb, func() {
				b.end()
				release()
			}
			return box, nil
		}
	}
	box.sb, err = w.sessionSandbox(ctx, withNetwork(sandbox.Spec{Chain: r.Chain, Limits: w.stricterLimits(c.limits)}, *c.network))
	if err != nil {
		release()
	}
	return box, err
}

// resume shows a checkpoint in a warm sandbox of the pool, if its base begins with the image that those are made of. nil: it
// does not, or there is none; notes say why, or that it is warm.
func (k *keeper) resume(ctx context.Context, r checkpoint.Restored, c poolClaim) (b *warmBox, notes []string) {
	why := k.wantsOther(c)
	if why == "" {
		why = k.standsOnOther(r)
	}
	if why != "" {
		return nil, []string{"cold: " + why}
	}
	b, ok := k.warm.Claim()
	if !ok {
		return nil, []string{"cold: no warm sandbox was ready on worker " + k.w.cfg.Name}
	}
	b.take(c.id)
	if err := b.sb.Reset(ctx, r.Chain); err != nil {
		b.end()
		return nil, []string{"cold: a warm sandbox could not be used: " + err.Error()}
	}
	b.tell(b.sb.ID(), events.EnvExecuting)
	return b, []string{"warm: the checkpoint is shown in a warm sandbox of pool " + k.name}
}

// standsOnOther says why warm sandboxes of the pool are no base of a checkpoint, "" where they are.
func (k *keeper) standsOnOther(r checkpoint.Restored) string {
	image := k.current()
	if image == nil {
		return "the pool has no image on worker " + k.w.cfg.Name
	}
	defer image.done()
	if r.Metadata["image"] != image.ID || len(r.Chain) < len(image.chain) {
		return fmt.Sprintf("the checkpoint stands on image %s, the pool's is %s", r.Metadata["image"], image.ID)
	}
	for i, l := range image.chain {
		if r.Chain[i].ID != l.ID {
			return fmt.Sprintf("the checkpoint stands on other layers than image %s", image.ID)
		}
	}
	return ""
}
