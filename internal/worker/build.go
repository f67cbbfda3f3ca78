package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/mask"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/image"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/poolfile"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

const (
	// maxImageLayers is how many layers an image may have; then it is built from a new clone.
	maxImageLayers = 24
	// maxBuildAttempts is how many workers may be lost by one build; then it fails like any other.
	maxBuildAttempts = 3
)

// errSuperseded is a build whose pool builds another image meanwhile, or is gone.
var errSuperseded = errors.New("worker: another build took its place")

// build is one image being built.
type build struct {
	w      *Worker
	id     string
	pool   string
	params events.BuildParams
	record events.Pool
	spec   poolfile.Pool
	began  time.Time
	mask   *mask.Set // set once the values are known
}

// handleBuild works on a delivered build command and settles it: a build that failed is told in the pool's Latest, and its
// command is done. One that was cut short comes again.
func (w *Worker) handleBuild(life context.Context, d events.Delivery, cmd events.Command) {
	lease, stop := w.heartbeat(life, d)
	defer stop()
	ctx, cancel := context.WithCancelCause(lease)
	defer cancel(nil)
	go func() {
		select {
		case <-w.draining:
			cancel(errDrained) // it starts again elsewhere, at no loss but time
		case <-ctx.Done():
		}
	}()
	b := &build{w: w, id: cmd.PlanID, pool: cmd.Pool, began: time.Now()}
	err := b.run(ctx, cmd.Params)
	log := w.log.With().Str("image", b.id).Str("pool", b.pool).Logger()
	switch {
	case silent(ctx):
	case ctx.Err() != nil:
		b.handOver(life)
		w.nak(life, d, 0)
	case err != nil && !errors.Is(err, errSuperseded):
		log.Error().Err(err).Msg("could not go on with an image; the command comes again")
		w.nak(life, d, heartbeatEvery)
	default:
		w.settle(life, "ack", d.Ack)
	}
}

// run builds the image and records how that went. An error means that nothing could be recorded.
func (b *build) run(ctx context.Context, params json.RawMessage) error {
	if err := b.read(ctx, params); err != nil {
		return err
	}
	if done, err := b.readImage(ctx, b.id); err == nil {
		return b.finish(ctx, done) // only the last step was missing
	} else if !errors.Is(err, kv.ErrNotFound) {
		return err
	}
	var latest events.Latest
	err := b.change(ctx, func(l *events.Latest) error {
		if l.Asked != nil && l.Asked.ID != b.id {
			return errSuperseded
		}
		began := events.Build{ID: b.id, Worker: b.w.cfg.Name, WorkerStarted: b.w.started, Since: b.began.UTC(), Attempt: 1}
		if l.Build != nil && l.Build.ID == b.id {
			began.Attempt = l.Build.Attempt + 1
		}
		l.Build = &began
		latest = *l
		return nil
	})
	if err != nil {
		return err
	}
	if n := latest.Build.Attempt; n > maxBuildAttempts {
		return b.failed(ctx, fmt.Errorf("worker: build an image: %d workers were lost while they built it: it may need more memory or disk than they have", n-1))
	}
	b.tell("building", events.Data{})
	made, err := b.make(ctx, latest)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return b.failed(ctx, err)
	case made == nil:
		return b.skipped(ctx)
	}
	value, err := json.Marshal(made)
	if err != nil {
		return err
	}
	if _, err := b.w.fleet.Images.Create(ctx, b.id, value); err != nil && !errors.Is(err, kv.ErrExists) {
		return err
	}
	return b.finish(ctx, *made)
}

// handOver leaves the build to another worker, who does not count this one as lost.
func (b *build) handOver(ctx context.Context) {
	err := b.change(ctx, func(l *events.Latest) error {
		if l.Build == nil || l.Build.ID != b.id || l.Build.Worker != b.w.cfg.Name {
			return errSuperseded
		}
		l.Build.Attempt--
		return nil
	})
	if err != nil && !errors.Is(err, errSuperseded) {
		b.w.log.Warn().Err(err).Str("image", b.id).Msg("hand a build over")
	}
}

// read reads what is to be built.
func (b *build) read(ctx context.Context, params json.RawMessage) error {
	if len(params) > 0 {
		if err := json.Unmarshal(params, &b.params); err != nil {
			return fmt.Errorf("%w: its parameters are unreadable: %w", errSuperseded, err)
		}
	}
	e, err := b.w.fleet.Pools.Get(ctx, b.pool)
	if errors.Is(err, kv.ErrNotFound) {
		return fmt.Errorf("%w: the pool was removed", errSuperseded)
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(e.Value, &b.record); err != nil {
		return err
	}
	if err := json.Unmarshal(b.record.Spec, &b.spec); err != nil {
		return err
	}
	b.spec.Defaults()
	return nil
}

func (b *build) readImage(ctx context.Context, id string) (events.Image, error) {
	var i events.Image
	e, err := b.w.fleet.Images.Get(ctx, id)
	if err != nil {
		return i, err
	}
	return i, json.Unmarshal(e.Value, &i)
}

// change changes the pool's Latest by compare-and-set.
func (b *build) change(ctx context.Context, change func(*events.Latest) error) error {
	return kv.Change(ctx, b.w.fleet.Images, events.LatestKey(b.pool), func(l *events.Latest) error {
		l.Pool = b.pool
		return change(l)
	})
}

// settleBuild ends the build in the pool's Latest, unless another one took its place.
func (b *build) settleBuild(ctx context.Context, say func(*events.Latest)) error {
	return b.change(ctx, func(l *events.Latest) error {
		if l.Image != b.id && (l.Build == nil || l.Build.ID != b.id) {
			return errSuperseded
		}
		l.Build = nil
		say(l)
		return nil
	})
}

func (b *build) finish(ctx context.Context, i events.Image) error {
	err := b.settleBuild(ctx, func(l *events.Latest) {
		l.Image, l.Commit, l.BuiltAt, l.CheckedAt = i.ID, i.Commit, i.BuiltAt, time.Now().UTC()
		l.Generation, l.Recipe = b.record.Generation, i.Recipe
		l.Error, l.Failures = "", 0
	})
	if err == nil {
		b.tell("built", events.Data{Commit: i.Commit, Checkpoint: &events.CheckpointRef{ID: i.Checkpoint, Phase: events.PhaseImage, SizeBytes: i.SizeBytes, Portable: true}, Notes: i.Warnings})
	}
	return err
}

func (b *build) skipped(ctx context.Context) error {
	err := b.settleBuild(ctx, func(l *events.Latest) {
		l.CheckedAt, l.Generation, l.Error, l.Failures = time.Now().UTC(), b.record.Generation, "", 0
	})
	if err == nil {
		b.tell("skipped", events.Data{Reason: "nothing moved"})
	}
	return err
}

// failed says why; the last good image stays.
func (b *build) failed(ctx context.Context, cause error) error {
	why := b.mask.Text(oneLine(cause.Error()))
	b.w.log.Warn().Str("pool", b.pool).Str("image", b.id).Str("error", why).Msg("an image could not be built")
	err := b.settleBuild(ctx, func(l *events.Latest) {
		l.Error, l.FailedAt, l.Failures = why, time.Now().UTC(), l.Failures+1
	})
	if err == nil {
		b.tell("failed", events.Data{Error: why})
	}
	return err
}

func (b *build) tell(typ string, d events.Data) {
	d.Pool, d.Image, d.Worker = b.pool, b.id, b.w.cfg.Name
	b.w.fact(events.NewEvent(events.TypeOf(events.NounImage, typ), b.id, "/worker/"+b.w.cfg.Name, d))
}

// make makes the image, nil when nothing moved since the last one.
func (b *build) make(ctx context.Context, latest events.Latest) (*events.Image, error) {
	remote := b.w.poolRemote(b.spec)
	tip, err := b.w.repos.Sync(ctx, remote)
	if err != nil {
		return nil, err
	}
	made := events.Image{
		ID: b.id, Pool: b.pool, Repo: b.spec.Resource.Repo, Ref: b.spec.Resource.Ref, Branch: tip.Branch, Commit: tip.Commit, Access: accessOf(remote),
		Recipe: image.Digest(b.spec.Image, b.spec.Network.String()), Worker: b.w.cfg.Name,
	}
	parent, release := b.parent(ctx, latest, made)
	defer release()
	if parent != nil && parent.Commit == made.Commit && parent.Branch == made.Branch && parent.Access == made.Access && !b.params.Force {
		return nil, nil
	}
	origin := buildOrigin{remote: remote, tip: tip}
	if parent != nil {
		origin.chain, origin.steps, made.Parent = parent.chain, parent.Steps, parent.ID
		err := b.fill(ctx, origin, &made)
		if !errors.Is(err, errUnsynced) && !errors.Is(err, image.ErrSteps) {
			return &made, err
		}
		made.Parent, made.Warnings, origin.steps = "", []string{"built from a new clone: " + oneLine(err.Error())}, ""
	}
	base, err := b.w.repos.FromMirror(ctx, remote, tip)
	if err != nil {
		return nil, err
	}
	defer b.w.shelf.Nudge()
	defer base.Release()
	made.Warnings = append(made.Warnings, base.Notes...)
	origin.chain = base.Chain
	return &made, b.fill(ctx, origin, &made)
}

// parent is the image to build on, nil to build from a new clone: where that is asked for, the recipe is another, so that
// results of its old steps would stay, or there are too many layers. The returned function ends its use.
func (b *build) parent(ctx context.Context, latest events.Latest, made events.Image) (*poolImage, func()) {
	none := func() {}
	if latest.Image == "" || b.params.Scratch || latest.Recipe != made.Recipe {
		return nil, none
	}
	p, err := b.w.fetchImage(ctx, latest.Image)
	if err != nil {
		b.w.log.Warn().Err(err).Str("pool", b.pool).Msg("the last image cannot be built on")
		return nil, none
	}
	if len(p.chain) >= maxImageLayers || !poolfile.SameRepo(p.Repo, made.Repo) {
		p.done()
		return nil, none
	}
	return p, p.done
}

// buildOrigin is where a build starts: the last image, or a new base. Either is brought to the tip, which gives a base what a clone
// has beside the commit.
type buildOrigin struct {
	chain  layer.Chain
	steps  string // of the last image
	remote gitrepo.Remote
	tip    gitrepo.Tip
}

// errUnsynced is an image that could not be brought to the commit.
var errUnsynced = errors.New("what it starts from cannot be brought to the commit")

// fill runs the recipe in a sandbox and keeps what it made.
func (b *build) fill(ctx context.Context, o buildOrigin, made *events.Image) error {
	secrets, hide, err := b.w.secretValues(ctx, b.spec.Image.Secrets)
	if err != nil {
		return err
	}
	b.mask = hide
	sb, err := sandbox.New(ctx, b.w.hostFor(""), withNetwork(sandbox.Spec{
		ID: events.NewID(), Strategy: sandbox.CopyOnWrite, Chain: o.chain, Limits: b.w.poolLimits(b.spec),
	}, *b.spec.Network))
	if err != nil {
		return err
	}
	defer b.w.discard(sb)
	b.w.cps.Adopt(sb, len(o.chain))
	job := image.Job{
		Box: imageBox{sb}, Commit: made.Commit, Recipe: image.FromPool(b.spec.Image), Auto: b.spec.Image.Auto, Steps: o.steps, Shell: plan.DefaultShell(hasBash()), Secrets: secrets,
	}
	job.Sync = func(ctx context.Context) error {
		brought, err := b.w.repos.Bring(ctx, o.remote, o.tip, workTree(sb))
		if err != nil {
			return fmt.Errorf("%w: %w", errUnsynced, err)
		}
		made.Warnings = append(made.Warnings, brought.Notes...)
		return nil
	}
	result, err := image.Build(ctx, job)
	if err != nil {
		return err
	}
	cp, err := b.w.cps.Create(ctx, sb, "", checkpoint.Image, map[string]string{"pool": b.pool, "image": b.id, "commit": made.Commit})
	if err != nil {
		return err
	}
	unsearched, err := searchLayers(ctx, sb.Chain()[len(o.chain):], secrets)
	if err != nil {
		return err
	}
	if cp, err = b.w.cps.Store(ctx, cp.ID); err != nil {
		return err
	}
	made.Steps, made.Warnings = result.Steps, append(made.Warnings, unsearched...)
	made.Checkpoint, made.SizeBytes, made.Layers = cp.ID, cp.SizeBytes, len(sb.Chain())
	made.Warnings = append(made.Warnings, result.Warnings...)
	made.BuiltAt, made.Took = time.Now().UTC(), time.Since(b.began)
	return nil
}
