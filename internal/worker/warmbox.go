package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

// maxSynced is how many layers syncs may put on the image of an idle sandbox before another takes its place.
const maxSynced = 16

// warmBox is a sandbox of a pool: one that waits, or that a claim has taken.
type warmBox struct {
	w     *Worker
	pool  string
	image string // "" for a plain clone
	below int    // how many layers it was made of
	sb    *sandbox.Sandbox

	turn chan struct{} // held by who brings it to a commit

	mu     sync.Mutex
	at     gitrepo.Tip
	access string    // by which credential it got there, see accessOf
	lacks  *[]string // what of that commit is not filled in, nil where nobody looked
	plan   string    // whose it is
	taken  bool
	moving bool // it is being brought to a commit
	broken error
	// release ends the use of the layers that it was made of.
	release func()
}

// boxSpec says what a sandbox of a pool is made of.
type boxSpec struct {
	chain    layer.Chain
	image    string
	at       gitrepo.Tip
	access   string
	network  plan.Network
	limits   isolate.Limits
	strategy plan.Strategy
	plan     string // "" for one that is to wait
	release  func()
}

// newBox makes a sandbox. On error the layers are released.
func (w *Worker) newBox(ctx context.Context, pool string, s boxSpec) (*warmBox, error) {
	b := &warmBox{
		w: w, pool: pool, image: s.image, below: len(s.chain), at: s.at, access: s.access, plan: s.plan, taken: s.plan != "",
		turn: make(chan struct{}, 1), release: s.release,
	}
	id := events.NewID()
	b.tell(id, events.EnvCreating)
	var err error
	b.sb, err = sandbox.New(ctx, b.host(), withNetwork(sandbox.Spec{ID: id, Strategy: sandbox.Strategy(s.strategy), Chain: s.chain, Limits: s.limits}, s.network))
	if err != nil {
		s.release()
		return nil, err
	}
	w.cps.Adopt(b.sb, len(s.chain))
	return b, nil
}

// make makes a warm sandbox of an image, at the commit that the mirror is known to be at.
func (k *keeper) make(ctx context.Context, generation string) (*warmBox, error) {
	if err := k.w.roomFor("make a warm sandbox"); err != nil {
		return nil, err
	}
	k.rush.wait(ctx)
	image := k.current()
	if image == nil || image.ID != generation {
		image.done()
		return nil, fmt.Errorf("worker: make a sandbox of image %q: it was replaced", generation)
	}
	spec := k.now().spec
	b, err := k.w.newBox(ctx, k.name, boxSpec{
		chain: image.chain, image: image.ID, at: gitrepo.Tip{Commit: image.Commit, Branch: image.Branch, FetchedAt: image.BuiltAt},
		access: image.Access, network: *spec.PlanNetwork, limits: k.w.poolLimits(spec), strategy: plan.CopyOnWrite, release: image.done,
	})
	if err != nil {
		return nil, err
	}
	remote := k.w.poolRemote(spec)
	if tip, ok := k.w.repos.Known(remote); ok {
		if err := b.bring(ctx, remote, tip); err != nil {
			b.Close()
			return nil, err
		}
	}
	b.tell(b.sb.ID(), events.EnvReady)
	go func() { // ends with the sandbox
		<-b.sb.Done()
		k.warm.Check()
	}()
	return b, nil
}

// works tells whether an idle sandbox can be handed out.
func (b *warmBox) works() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.broken == nil && open(b.sb.Done())
}

// commit is the commit that the sandbox is at.
func (b *warmBox) commit() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.at.Commit
}

// tip is where the sandbox is, and since when that was known to be the remote's.
func (b *warmBox) tip() gitrepo.Tip {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.at
}

// bring brings the sandbox to a tip of its repository, and closes what that changed, so that it belongs to the base of
// whoever gets it. Where it is there already, with its submodules, since nothing ran in it, nothing is done. After an error the tree is unknown.
func (b *warmBox) bring(ctx context.Context, remote gitrepo.Remote, tip gitrepo.Tip) error {
	select {
	case b.turn <- struct{}{}:
		defer func() { <-b.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	at := b.tip()
	looked := b.looked() || len(remote.Submodules) == 0
	if at.Commit == tip.Commit && at.Branch == tip.Branch && looked {
		b.moved(remote, tip, b.look(ctx, remote, tip))
		return nil
	}
	b.tell(b.sb.ID(), events.EnvSyncing)
	b.setMoving(true)
	defer b.setMoving(false)
	brought, err := b.w.repos.Bring(ctx, remote, tip, workTree(b.sb))
	if err != nil {
		return fmt.Errorf("worker: bring sandbox %q of pool %q to %s: %w", b.sb.ID(), b.pool, tip.Commit, err)
	}
	chain, err := b.sb.Freeze(ctx)
	if err != nil {
		return err
	}
	b.w.cps.Adopt(b.sb, len(chain))
	b.moved(remote, tip, &brought.Notes)
	return nil
}

// moved notes where the sandbox is: at a tip that the remote gave for this credential.
func (b *warmBox) moved(remote gitrepo.Remote, tip gitrepo.Tip, lacks *[]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.at, b.access, b.lacks = tip, accessOf(remote), lacks
}

// gotBy tells whether what is in the sandbox was got by the credential of a remote.
func (b *warmBox) gotBy(remote gitrepo.Remote) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.access == accessOf(remote)
}

// look finds out what of the commit that the sandbox is at is not filled in, unless that is known. It is for people: where the
// mirror cannot tell it is asked again at the next sync.
func (b *warmBox) look(ctx context.Context, remote gitrepo.Remote, tip gitrepo.Tip) *[]string {
	b.mu.Lock()
	known := b.lacks
	b.mu.Unlock()
	if known != nil {
		return known
	}
	notes, err := b.w.repos.Lacks(ctx, remote, tip)
	if err != nil {
		b.w.log.Debug().Err(err).Str("sandbox", b.sb.ID()).Msg("look what a sandbox lacks")
		return nil
	}
	return &notes
}

// looked tells whether it is known what of its commit is not filled in.
func (b *warmBox) looked() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lacks != nil
}

// lacking names what of its commit is not filled in, as far as known.
func (b *warmBox) lacking() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lacks == nil {
		return nil
	}
	return *b.lacks
}

func (b *warmBox) setMoving(is bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.moving = is
}

// freshen brings an idle sandbox to a tip and returns how many commits it lacks then. One that could not be brought there
// stays where it was, if it can be put back; if not, another takes its place.
func (b *warmBox) freshen(ctx context.Context, remote gitrepo.Remote, tip gitrepo.Tip) (behind int) {
	before := b.tip()
	err := b.bring(ctx, remote, tip)
	b.mu.Lock()
	taken := b.taken
	b.mu.Unlock()
	if taken { // meanwhile; its holder brings it where it has to be
		return 0
	}
	if err == nil {
		if before.Commit != tip.Commit {
			b.tell(b.sb.ID(), events.EnvReady)
		}
		if len(b.sb.Chain())-b.below > maxSynced {
			b.fail(errors.New("it has too many layers"))
		}
		return 0
	}
	if ctx.Err() != nil {
		return 0
	}
	b.w.log.Warn().Err(err).Str("sandbox", b.sb.ID()).Msg("freshen a warm sandbox")
	if err := b.sb.Reset(ctx, b.sb.Chain()); err != nil {
		b.fail(err)
		return 0
	}
	b.tell(b.sb.ID(), events.EnvReady)
	if behind, err = b.w.repos.Behind(ctx, remote, before.Commit, tip.Commit); err != nil {
		b.w.log.Debug().Err(err).Str("sandbox", b.sb.ID()).Msg("count the commits that a warm sandbox lacks")
	}
	return behind
}

// fail makes the sandbox one that is never handed out.
func (b *warmBox) fail(err error) {
	b.mu.Lock()
	b.broken = err
	b.mu.Unlock()
	if k := b.w.pooling.keeper(b.pool); k != nil {
		k.warm.Check()
	}
}

// take hands the sandbox to a plan or session.
func (b *warmBox) take(plan string) {
	b.mu.Lock()
	b.plan, b.taken = plan, true
	b.mu.Unlock()
}

// Close ends a sandbox that nobody used, and removes what syncs put on its image.
func (b *warmBox) Close() error {
	chain := b.sb.Chain()
	b.end()
	for _, l := range chain[min(b.below, len(chain)):] {
		if err := b.w.cache.Remove(l.ID); err != nil {
			b.w.log.Warn().Err(err).Str("layer", l.ID).Msg("remove layer")
		}
	}
	return nil
}

// end cleans the sandbox up. Ending it twice is fine.
func (b *warmBox) end() {
	b.w.discard(b.sb)
	b.mu.Lock()
	release := b.release
	b.release = func() {}
	b.mu.Unlock()
	release()
}

// host is what the sandbox is made of; the moves that matter to people are told as states of its environment too.
func (b *warmBox) host() sandbox.Host {
	h := b.w.hostFor("")
	h.Notify = func(c sandbox.Change) {
		b.mu.Lock()
		owner, used := b.plan, b.taken && !b.moving
		b.mu.Unlock()
		b.w.notify(owner, b.pool, c)
		switch {
		case c.To == sandbox.Checkpointed && used:
			b.tell(c.ID, events.EnvSnapshotting)
		case c.To == sandbox.Active && c.From == sandbox.Checkpointed && used:
			b.tell(c.ID, events.EnvExecuting)
		case c.To == sandbox.CleanedUp:
			b.tell(c.ID, events.EnvTerminated)
		}
	}
	return h
}

// tell stores a state of the sandbox's environment, beside the work.
func (b *warmBox) tell(id, state string) {
	b.mu.Lock()
	d := events.Data{
		SandboxID: id, PlanID: b.plan, Worker: b.w.cfg.Name, Host: b.w.cfg.HostID, Pool: b.pool, Image: b.image, Commit: b.at.Commit, State: state,
	}
	b.mu.Unlock()
	b.w.fact(events.NewEvent(events.TypeOf(events.NounSandbox, state), id, "/worker/"+b.w.cfg.Name, d))
}
