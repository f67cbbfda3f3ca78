package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

// MessageClaimed is logged for debugging with each sandbox that a plan or session got of a pool: pool, source, and how many
// milliseconds it took, syncing included.
const MessageClaimed = "claimed a sandbox of a pool"

// poolClaim says what a plan or session wants of a pool. Zero values are the pool's own.
type poolClaim struct {
	id       string // of the plan or session
	ref      string
	network  *plan.Network
	limits   *plan.Limits
	strategy plan.Strategy
	// later leaves it to the caller to bring the sandbox to the tip, with poolBox.fresh.
	later bool
}

// poolBox is a sandbox of a pool that was claimed. Its holder closes the sandbox, and calls release after that.
type poolBox struct {
	sb *sandbox.Sandbox
	// baseLayers, commit and branch are as of the claim; after fresh, see after.
	baseLayers                    int
	source, image, commit, branch string
	// behind is how many commits the sandbox lacked when it was claimed, as far as known.
	behind int
	// fresh brings the sandbox to the remote's tip; nil where it is there. It kills what runs in the sandbox, and fails with
	// code stale_base where the remote cannot be asked and the pool allows no stale base.
	fresh   func(context.Context) error
	notes   []string
	release func()

	box *warmBox
}

// after is the claim as it is once fresh has returned.
func (p poolBox) after() poolBox {
	at := p.box.tip()
	p.baseLayers, p.commit, p.branch, p.fresh = len(p.sb.Chain()), at.Commit, at.Branch, nil
	return p
}

// claimPool takes a warm sandbox of a pool, else makes one: of the latest image, which is fetched where it is not here, or of
// a plain clone before there is an image. notes say why it is not warm.
func (w *Worker) claimPool(ctx context.Context, name string, c poolClaim) (poolBox, error) {
	began := time.Now()
	box, err := w.poolSandbox(ctx, name, c)
	if err == nil {
		w.log.Debug().Str("pool", name).Str("source", box.source).Dur("took", time.Since(began)).Msg(MessageClaimed)
	}
	return box, err
}

func (w *Worker) poolSandbox(ctx context.Context, name string, c poolClaim) (poolBox, error) {
	k := w.pooling.keeper(name)
	if k == nil {
		return poolBox{}, fmt.Errorf("worker: claim a sandbox of pool %q: %w", name, errNoPool)
	}
	c.complete(k.now())
	var notes []string
	if why := k.wantsOther(c); why != "" {
		notes = append(notes, "cold: "+why)
	} else if b, ok := k.warm.Claim(); ok {
		b.take(c.id)
		box, err := k.hand(ctx, b, c, events.SourceWarm)
		if err == nil || final(ctx, err) {
			return box, err
		}
		notes = append(notes, "cold: a warm sandbox could not be used: "+err.Error())
	} else {
		notes = append(notes, "cold: no warm sandbox was ready on worker "+w.cfg.Name)
	}
	return k.cold(ctx, c, notes)
}

// complete fills in what the pool says.
func (c *poolClaim) complete(s keeping) {
	if c.ref == "" {
		c.ref = s.spec.Resource.Ref
	}
	if c.network == nil {
		c.network = s.spec.PlanNetwork
	}
	if c.limits == nil {
		c.limits = s.spec.Limits
	}
	if c.strategy == "" {
		c.strategy = plan.CopyOnWrite
	}
}

// final tells whether another sandbox would fare no better.
func final(ctx context.Context, err error) bool {
	var refused *refusal
	return ctx.Err() != nil || errors.As(err, &refused) || errors.Is(err, gitrepo.ErrNoRef) || errors.Is(err, gitrepo.ErrRef) ||
		errors.Is(err, gitrepo.ErrUnborn) || errors.Is(err, gitrepo.ErrURL)
}

// cold makes a sandbox for a claim.
func (k *keeper) cold(ctx context.Context, c poolClaim, notes []string) (poolBox, error) {
	if err := k.openImage(ctx); err != nil {
		notes = append(notes, "image: "+err.Error())
	}
	image := k.current()
	if image == nil {
		notes = append(notes, "image: the pool has none yet: a plain clone, without what its recipe builds")
		return k.plain(ctx, c, notes)
	}
	b, err := k.w.newBox(ctx, k.name, boxSpec{
		chain: image.chain, image: image.ID, at: gitrepo.Tip{Commit: image.Commit, Branch: image.Branch, FetchedAt: image.BuiltAt},
		access: image.Access, network: *c.network, limits: k.w.stricterLimits(c.limits), strategy: c.strategy, plan: c.id, release: image.done,
	})
	if err != nil {
		return poolBox{}, err
	}
	box, err := k.hand(ctx, b, c, events.SourceCold)
	if err != nil && !final(ctx, err) {
		notes = append(notes, "image: cannot be brought to the commit: a plain clone, without what its recipe builds: "+err.Error())
		return k.plain(ctx, c, notes)
	}
	box.notes = slices.Concat(notes, box.notes)
	return box, err
}

// plain makes a sandbox of a clone.
func (k *keeper) plain(ctx context.Context, c poolClaim, notes []string) (poolBox, error) {
	remote := k.remote(c)
	tip, stale, err := k.aim(ctx, remote, nil)
	if err != nil {
		return poolBox{}, err
	}
	base, err := k.w.repos.FromMirror(ctx, remote, tip)
	if err != nil {
		return poolBox{}, err
	}
	defer k.w.shelf.Nudge()
	b, err := k.w.newBox(ctx, k.name, boxSpec{
		chain: base.Chain, at: tip, access: accessOf(remote), network: *c.network, limits: k.w.stricterLimits(c.limits), strategy: c.strategy, plan: c.id, release: base.Release,
	})
	if err != nil {
		return poolBox{}, err
	}
	if len(remote.Submodules) > 0 { // the clone is without
		if err := b.bring(ctx, remote, tip); err != nil {
			b.Close()
			return poolBox{}, err
		}
	}
	b.tell(b.sb.ID(), events.EnvExecuting)
	box := b.handed(events.SourceCold)
	box.notes = slices.Concat(notes, stale, base.Notes, b.lacking())
	return box, nil
}

func (k *keeper) remote(c poolClaim) gitrepo.Remote {
	spec := k.now().spec
	spec.Resource.Ref = c.ref
	return k.w.poolRemote(spec)
}

// aim is the tip that a sandbox of a pool has to be at: the remote's as last fetched, unless that is longer ago than the pool's
// max_staleness: then it is asked anew. Where it cannot be asked, aim refuses, or, if the pool allows a stale base, is what
// was last heard, else where the sandbox is (nil: there is none) if it got there by the same credential, and says so in notes. A remote
// that denies access was asked: nothing of it is handed out.
func (k *keeper) aim(ctx context.Context, remote gitrepo.Remote, b *warmBox) (tip gitrepo.Tip, notes []string, err error) {
	spec := k.now().spec
	known, ok := k.w.repos.Known(remote)
	if ok && time.Since(known.FetchedAt) < time.Duration(*spec.MaxStaleness) {
		return known, nil, nil
	}
	if tip, err = k.sync(ctx, remote); err == nil || final(ctx, err) {
		return tip, nil, err
	}
	if errors.Is(err, gitrepo.ErrDenied) {
		return tip, nil, refuse("remote_denied", "pool %q: %v: nothing of it is used, also with allow_stale: mend its token", k.name, err)
	}
	if !ok && b != nil && remote.Ref == spec.Resource.Ref && b.gotBy(remote) {
		known, ok = b.tip(), true
	}
	if !ok {
		return tip, nil, refuse("remote_unreachable", "pool %q: %v: nothing of that ref is on worker %s: mend the remote or its token", k.name, err, k.w.cfg.Name)
	}
	since := time.Since(known.FetchedAt).Round(time.Second)
	if !spec.AllowStale {
		return tip, nil, refuse("stale_base", "pool %q: base is stale: %s was the remote's commit %s ago, and it cannot be asked now: %v: mend the remote or its token, or set allow_stale in the pool file",
			k.name, short(known.Commit), since, err)
	}
	return known, []string{fmt.Sprintf("stale: %s was the remote's commit %s ago, and it cannot be asked now: %v", short(known.Commit), since, err)}, nil
}

// hand gives a sandbox to its claim, at the remote's tip unless that is left for later. On error the sandbox is gone.
func (k *keeper) hand(ctx context.Context, b *warmBox, c poolClaim, source string) (poolBox, error) {
	if remote := k.remote(c); c.later && (b.gotBy(remote) || k.heard(remote)) {
		b.tell(b.sb.ID(), events.EnvExecuting)
		box := b.handed(source)
		box.fresh = func(ctx context.Context) error {
			_, _, err := k.fresh(ctx, b, c)
			return err
		}
		if known, ok := k.w.repos.Known(k.remote(c)); ok {
			box.behind = k.behind(ctx, b, c, known)
		}
		return box, nil
	}
	behind, notes, err := k.fresh(ctx, b, c)
	if err != nil {
		b.Close()
		return poolBox{}, err
	}
	box := b.handed(source)
	box.behind, box.notes = behind, notes
	return box, nil
}

// heard tells whether the remote gave this worker something for its present credential.
func (k *keeper) heard(remote gitrepo.Remote) bool {
	_, ok := k.w.repos.Known(remote)
	return ok
}

func (b *warmBox) handed(source string) poolBox {
	at := b.tip()
	return poolBox{
		sb: b.sb, baseLayers: len(b.sb.Chain()), source: source, image: b.image, commit: at.Commit, branch: at.Branch,
		release: b.end, box: b,
	}
}

// fresh brings a claimed sandbox to where it has to be, and returns how many commits it was behind.
func (k *keeper) fresh(ctx context.Context, b *warmBox, c poolClaim) (behind int, notes []string, err error) {
	defer k.rush.enter()()
	remote := k.remote(c)
	tip, notes, err := k.aim(ctx, remote, b)
	if err != nil {
		return 0, nil, err
	}
	behind = k.behind(ctx, b, c, tip)
	if err := b.bring(ctx, remote, tip); err != nil {
		return 0, nil, err
	}
	b.tell(b.sb.ID(), events.EnvExecuting)
	return behind, slices.Concat(notes, b.lacking()), nil
}

// behind counts the commits that a sandbox lacks; it is for people, so that it cannot be counted is 0.
func (k *keeper) behind(ctx context.Context, b *warmBox, c poolClaim, tip gitrepo.Tip) int {
	at := b.tip()
	if at.Commit == tip.Commit {
		return 0
	}
	n, err := k.w.repos.Behind(ctx, k.remote(c), at.Commit, tip.Commit)
	if err != nil {
		k.w.log.Debug().Err(err).Str("pool", k.name).Msg("count the commits that a sandbox lacks")
	}
	return n
}

// short is a commit as people read it.
func short(commit string) string { return commit[:min(len(commit), 12)] }
