package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/warmfleet/warmfleet/internal/fault"
	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/plan/executor"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

// runClaim claims a plan and runs its steps from the last portable checkpoint, or from the start.
func (w *Worker) runClaim(ctx context.Context, j *job) error {
	fold := j.writer.Fold()
	t, refused := w.resolve(ctx, j.plan)
	var author *events.Author
	if refused == nil {
		author, refused = w.mayRun(ctx, j, t)
	}
	resume := fold.Checkpoint != nil && j.plan.Strategy != plan.InPlace && j.plan.Base != plan.BaseLive
	if refused == nil && t.path == "" && !resume {
		t.plan = j.id
		refused = w.base(ctx, j.plan, t) // fetched first: the claim names the commit
		defer t.release()
		if refused == nil && t.branch == "" && wantedBranch(j.plan) == "" && j.plan.Apply != plan.ApplyNever {
			refused = noBranch(j.plan.Resource.Ref)
		}
	}
	claim := events.Data{
		Worker: w.cfg.Name, Host: w.cfg.HostID, Strategy: string(j.plan.Strategy), Isolation: string(w.reportFor(j.plan).Rung), Source: events.SourceCold,
	}
	claim.Driver, claim.DriverWhy = w.driverOf(j.plan)
	claim.Guarantees = w.guaranteesOf(j.plan)
	claim.Author = author
	if t != nil {
		claim.Commit, claim.Notes = t.head(), slices.Concat(w.isolationNotes(j.plan), w.cacheNotes(), w.notes(j.plan, t), w.limitNotes(j.plan), w.networkNotes(j.plan), authorNotes(author))
		j.git, j.path = isGit(t.info) || t.path == "", t.path
		if t.path != "" {
			claim.Source = events.SourcePath
		}
		claim.Pool = j.plan.Pool
		t.claimed(&claim)
	}
	start := events.NewID()
	if resume {
		claim.Source = events.SourceCheckpoint
	} else {
		claim.Checkpoint = &events.CheckpointRef{ID: start, Phase: events.PhasePreExecute}
	}
	if err := j.writer.Claim(ctx, claim); err != nil {
		return settled(err)
	}
	if j.writer.Fold().CancelRequested {
		refused = events.ErrCancelRequested
	}
	if refused != nil {
		return w.conclude(ctx, j, w.backOut(ctx, j, refused))
	}
	from := ""
	if resume {
		from = fold.Checkpoint.ID
	}
	return w.conclude(ctx, j, w.run(ctx, j, attempt{target: t, start: start, from: from}))
}

// mayRun refuses what can be known before anything of the plan runs, and gets what it needs.
func (w *Worker) mayRun(ctx context.Context, j *job, t *target) (*events.Author, error) {
	if err := w.checkWritable(j, t); err != nil {
		return nil, err
	}
	if err := w.tryStrong(ctx, j.plan); err != nil {
		return nil, err
	}
	if err := w.meets(j.plan); err != nil {
		return nil, err
	}
	if err := w.provideSecrets(ctx, j); err != nil {
		return nil, err
	}
	return w.author(ctx, j, t)
}

// attempt is what one claim of a plan starts from.
type attempt struct {
	target *target
	start  string // id of the pre_execute checkpoint
	from   string // id of the checkpoint to go on from, "" for the start
}

// notes are what the first event says about where the sandbox starts.
func (w *Worker) notes(p *plan.Plan, t *target) []string {
	switch {
	case t.path == "":
		return nil
	case p.Strategy == plan.GitWorktree:
		return append([]string{"base: the commit only; uncommitted and untracked files are not in the sandbox"}, submoduleNotes(t.path)...)
	case p.Strategy == plan.InPlace:
		return []string{"base: works in place on " + t.path}
	}
	notes := []string{"base: the directory as it is, uncommitted and untracked files included"}
	if p.Base == plan.BaseLive {
		notes[0] = "base: live: the directory itself, uncommitted and untracked files included; what others change there while the plan runs shows in the sandbox, is reported, and is a conflict where the plan changes the same; checkpoints are not portable"
	}
	if t.info.Kind == gitrepo.KindLinkedWorkTree || t.info.Kind == gitrepo.KindSubmodule {
		notes = append(notes, "git: .git here only points to a repository outside, so git does not work in the sandbox; git_worktree gives it one of its own")
	}
	if w.layers.Why != "" {
		notes = append(notes, fmt.Sprintf("driver: %s; %s", w.layers.Driver, w.layers.Why))
	}
	if w.report.Rung.MountsAsUser() && w.layers.Driver == layer.Overlay {
		notes = append(notes, "driver: overlay of an ordinary user: renaming a directory of the base is EXDEV, as between file systems, and writing one of a base file's names leaves its other names as they were")
	}
	return notes
}

// run makes the sandbox, runs the steps and does what the plan wants at its end.
func (w *Worker) run(ctx context.Context, j *job, a attempt) error {
	unlock, err := w.lockFor(ctx, j.plan, a.target)
	if err != nil {
		j.stuck = j.plan.Strategy == plan.InPlace // nobody knows: the marker stays
		return err
	}
	defer unlock()
	inPlace := j.plan.Strategy == plan.InPlace
	if inPlace {
		if err := w.takeOver(ctx, j, a.target.path); err != nil {
			return err
		}
	}
	chain, baseLayers, err := w.origin(ctx, j, a)
	if err != nil {
		return err
	}
	defer a.target.release()
	if inPlace {
		if err := w.mark(ctx, j, a.target); err != nil {
			return err
		}
		fault.At("worker.marked")
	} else {
		unlock()
	}
	sb, err := w.sandboxFor(ctx, j, a.target, chain)
	if err != nil {
		return err
	}
	defer w.discard(sb)
	fault.At("worker.sandbox")
	w.cps.Adopt(sb, baseLayers)
	pre, err := w.cps.CreateAs(ctx, a.start, sb, checkpoint.Checkpoint{PlanID: j.id, Phase: checkpoint.PreExecute, Lost: a.target.lost()})
	if err != nil {
		return err
	}
	stored := w.storeBeside(ctx, pre)
	defer func() { stored(err == nil) }()
	err = w.steps(ctx, j, a.target, sb, pre)
	if inPlace {
		err = w.leaveInPlace(ctx, j, pre, err)
	}
	if err == nil && j.writer.Fold().State == events.StateApplied {
		w.committed(sb)
	}
	return err
}

// sandboxFor is the sandbox that was claimed from the plan's pool, else a new one on the chain.
func (w *Worker) sandboxFor(ctx context.Context, j *job, t *target, chain layer.Chain) (*sandbox.Sandbox, error) {
	if t.box != nil {
		return t.box.sb, nil
	}
	sb, err := sandbox.New(ctx, w.hostOf(j.plan, j.id), withNetwork(sandbox.Spec{
		ID: events.NewID(), Strategy: sandbox.Strategy(j.plan.Strategy), Chain: chain,
		Path: t.path, Index: t.index, Limits: w.limitsOf(j.plan),
	}, *j.plan.Network))
	if err != nil {
		return nil, unlivable(t, err)
	}
	return sb, nil
}

func (w *Worker) committed(sb *sandbox.Sandbox) {
	if err := sb.Commit(); err != nil {
		w.log.Warn().Err(err).Str("sandbox", sb.ID()).Msg("commit a sandbox")
	}
}

// lockFor keeps others from changing a path while its base is brought up to date, and for
// as long as a plan works in it in place.
func (w *Worker) lockFor(ctx context.Context, p *plan.Plan, t *target) (func(), error) {
	if t.path == "" || p.Strategy == plan.GitWorktree {
		return func() {}, nil
	}
	return w.lockPath(ctx, t.path, p.Strategy == plan.InPlace)
}

// origin returns the chain a sandbox starts from and how many of its layers are the base.
func (w *Worker) origin(ctx context.Context, j *job, a attempt) (layer.Chain, int, error) {
	if a.from != "" {
		r, release, err := w.restore(ctx, a.from)
		a.target.done = release
		return r.Chain, r.BaseLayers, err
	}
	if a.target.chain == nil {
		if err := w.base(ctx, j.plan, a.target); err != nil {
			return nil, 0, err
		}
	}
	return a.target.chain, len(a.target.chain), nil
}

// storeBeside makes the pre_execute checkpoint, and with it the base, portable while the
// steps run. The returned function waits for that, since steps may be faster, or gives it up.
func (w *Worker) storeBeside(ctx context.Context, pre checkpoint.Checkpoint) (end func(wait bool)) {
	ctx, cancel := context.WithCancel(ctx)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		standBack(ended)
		if _, err := w.cps.Store(ctx, pre.ID); err != nil && ctx.Err() == nil {
			w.log.Warn().Err(err).Str("checkpoint", pre.ID).Msg("base not portable yet")
		}
	}()
	return func(wait bool) {
		close(ended)
		if !wait {
			cancel()
		}
		<-done
		cancel()
	}
}

// steps runs the plan's steps in the sandbox and appends how they ended.
func (w *Worker) steps(ctx context.Context, j *job, t *target, sb *sandbox.Sandbox, pre checkpoint.Checkpoint) error {
	out, err := executor.Run(ctx, executor.Config{
		PlanID: j.id, Plan: j.plan, Sandbox: sb, Events: j.writer, Checkpoints: w.cps, Start: pre,
		From: j.writer.Fold().Cursor, Stop: w.draining, Log: w.log,
		Bash: hasBash(), Grace: w.cfg.Grace, Secrets: j.secrets, Mask: j.mask,
		Output: func(step, try int) executor.Output {
			return events.NewOutputWriter(w.fleet.Output, events.OutputOptions{PlanID: j.id, Step: step, Epoch: j.writer.Epoch(), Try: try})
		},
	})
	if err != nil {
		return err
	}
	if f := out.Failed; f != nil {
		d := events.Data{
			Step: f.Step, StepIndex: &f.Index, ExitCode: f.Result.ExitCode, Signal: f.Result.Signal, Cause: string(f.Result.Cause),
			Code: "step_failed", Error: fmt.Sprintf("step %q: %s", f.Step, f.Message), RolledBack: f.RolledBack,
		}
		if f.Kept.ID != "" {
			d.Checkpoint = executor.Ref(f.Kept, f.Index)
		}
		return j.end(ctx, events.TypeFailed, d)
	}
	d, err := t.drifted(ctx, out.Delta.Changes)
	if err != nil {
		return err
	}
	return w.executed(ctx, j, out.Delta, d)
}

// executed says that the steps are done, and goes on to apply where nobody has to be asked.
func (w *Worker) executed(ctx context.Context, j *job, delta checkpoint.Delta, d drift) error {
	changed := j.applicable(delta.Changes)
	if changed == 0 && j.plan.Apply != plan.ApplyNever {
		return j.end(ctx, events.TypeApplied, events.Data{Changed: &changed, Drift: d.paths, DriftTotal: d.total})
	}
	if err := j.writer.Append(ctx, events.TypeExecuted, events.Data{Changed: &changed, Drift: d.paths, DriftTotal: d.total}); err != nil {
		return err
	}
	switch {
	case len(d.conflicts) > 0 && j.plan.Apply != plan.ApplyNever:
		return j.conflict(ctx, events.TypeConflict, d.conflict(), d.conflicts)
	case j.plan.Apply == plan.ApplyManual:
		return j.writer.Append(ctx, events.TypeAwaitingApproval, events.Data{Changed: &changed})
	case j.plan.Apply == plan.ApplyNever:
		return nil
	case j.plan.Strategy == plan.InPlace:
		return j.end(ctx, events.TypeApplied, events.Data{Changed: &changed})
	default:
		return w.apply(ctx, j)
	}
}

// leaveInPlace settles an original that was changed in place: it stays changed only if the
// plan was applied or its failed tree is to be kept.
func (w *Worker) leaveInPlace(ctx context.Context, j *job, pre checkpoint.Checkpoint, ran error) error {
	if fenced(ran) || silent(ctx) || errors.Is(ran, events.ErrUnknown) {
		return ran // the log knows how it ended: the next holder recovers from the marker
	}
	if !j.writer.Fold().Final() {
		if err := w.cps.RollbackTo(context.WithoutCancel(ctx), pre); err != nil {
			j.stuck = true
			return errors.Join(ran, err)
		}
	}
	return errors.Join(ran, unmark(w.markerPath(j.id), j.path))
}

// backOut rolls back what a lost worker left changed in place, before its plan ends for a
// reason without being run again.
func (w *Worker) backOut(ctx context.Context, j *job, why error) error {
	if j.writer.Epoch() == 1 {
		return why // nobody ran it before
	}
	_, err := w.undoInPlace(ctx, j.plan)
	j.stuck = err != nil
	return errors.Join(why, err)
}

func (w *Worker) discard(sb *sandbox.Sandbox) {
	fault.At("worker.discard")
	w.cps.Forget(sb.ID())
	if err := sb.Close(); err != nil {
		w.log.Warn().Err(err).Str("sandbox", sb.ID()).Msg("clean a sandbox up")
	}
}
