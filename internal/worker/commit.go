package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/warmfleet/warmfleet/internal/gitcommit"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/plan/applier"
	"github.com/warmfleet/warmfleet/pkg/plan/executor"
)

// moveTries bounds how often a commit is made anew because its branch moved in between.
const moveTries = 8

// commits tells whether a plan's result is brought back as a commit.
func commits(p *plan.Plan) bool {
	return p.Strategy != plan.InPlace && (p.Commit != nil || p.Resource != nil && p.Resource.Repo != "")
}

// take makes the tree of the plan's commit. done means that the plan has ended: by conflicts, or with nothing to commit.
func (c *committing) take(ctx context.Context) (done bool, err error) {
	var found []applier.Conflict
	if c.taken, found, err = c.shop.Take(ctx, c.work); err != nil {
		return false, err
	}
	if len(found) > 0 {
		return true, c.conflict(ctx, found)
	}
	if c.taken.Changed == 0 {
		return true, c.applied(ctx, gitcommit.Made{}, "")
	}
	return false, nil
}

func (c *committing) conflict(ctx context.Context, found []applier.Conflict) error {
	return c.j.conflict(ctx, events.TypeConflict, events.Data{Code: "conflict", Error: summary(found)}, found)
}

// applied records what was made, which may be nothing.
func (c *committing) applied(ctx context.Context, made gitcommit.Made, branch string) error {
	d := events.Data{Changed: &made.Changed, Notes: c.taken.Notes}
	if made.Commit != "" {
		d.Commit, d.Onto, d.Branch = made.Commit, made.Onto, branch
	}
	return c.j.end(ctx, events.TypeApplied, d)
}

// intend records the commit before anything refers to it. An intent with just this commit is there already when an apply goes on.
func (c *committing) intend(ctx context.Context, made gitcommit.Made, branch string, pre *events.CheckpointRef) error {
	now := intent{made.Commit, branch, made.Onto, c.j.writer.Epoch()}
	if c.prior == now {
		return nil
	}
	d := events.Data{Checkpoint: pre, Commit: made.Commit, Onto: made.Onto, Branch: branch}
	if err := c.j.writer.Append(ctx, events.TypeApplyIntent, d); err != nil {
		return err
	}
	c.prior = now
	return nil
}

// refused ends a plan whose commit cannot be brought back as things are; the original is as it was.
func (w *Worker) refused(ctx context.Context, j *job, err error) error {
	var r *gitcommit.Refusal
	if !errors.As(err, &r) {
		return err
	}
	return j.end(ctx, events.TypeConflict, events.Data{
		Conflicts: []events.Conflict{{Path: r.What, Kind: r.Code}}, Code: r.Code, Error: r.Error(),
	})
}

// applyBare makes the plan's commit on a branch of a bare repository: there are no files.
func (w *Worker) applyBare(ctx context.Context, j *job, t *target) error {
	repo, err := gitcommit.Open(ctx, w.repos.Git(), t.info)
	if err != nil {
		return err
	}
	return w.applyCommit(ctx, j, nil, repo)
}

// applyCommit makes the plan's commit on a branch of the repository at its path.
func (w *Worker) applyCommit(ctx context.Context, j *job, s *applier.Session, repo *gitcommit.Repository) error {
	facts, err := repo.Facts(ctx)
	if err != nil {
		return err
	}
	c, err := w.beginCommit(ctx, j, facts)
	if err != nil {
		return err
	}
	defer func() { w.warnOn(c.close(), "close a workshop") }()
	for range moveTries {
		err = c.onBranch(ctx, s, repo)
		if !errors.Is(err, gitcommit.ErrMoved) {
			return w.refused(ctx, j, err)
		}
	}
	return err
}

func (w *Worker) warnOn(err error, what string) {
	if err != nil {
		w.log.Warn().Err(err).Msg(what)
	}
}

// onBranch makes the commit on the branch as it is now. ErrMoved: it moved meanwhile, and nothing was changed.
func (c *committing) onBranch(ctx context.Context, s *applier.Session, repo *gitcommit.Repository) error {
	target, err := repo.Target(ctx, wantedBranch(c.j.plan))
	if err != nil {
		return err
	}
	if target.Here {
		return c.here(ctx, s, repo)
	}
	if c.prior.commit != "" && c.prior.branch == target.Branch {
		there, err := repo.Contains(ctx, target, c.prior.commit)
		if err != nil {
			return err
		}
		if there { // a lost claim made it
			return c.w.recordRecovered(ctx, c.j)
		}
	}
	made, done, err := c.onto(ctx, target)
	if done || err != nil {
		return err
	}
	if err := repo.Keep(ctx, c.shop, made); err != nil {
		return err
	}
	if err := c.intend(ctx, made, target.Branch, nil); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	if err := repo.Move(ctx, target, made.Commit, c.reflog()); err != nil {
		return err
	}
	return c.applied(ctx, made, target.Branch)
}

func (c *committing) reflog() gitcommit.Reflog {
	return gitcommit.Reflog{Message: "commit: by plan " + c.j.id, By: c.work.Author, At: c.work.Time.Unix()}
}

// onto makes the commit on a branch's tip. done means that the plan has ended.
func (c *committing) onto(ctx context.Context, target gitcommit.Target) (made gitcommit.Made, done bool, err error) {
	if c.taken.Tree == "" {
		if done, err := c.take(ctx); done || err != nil {
			return made, done, err
		}
	}
	made, found, err := c.shop.Onto(ctx, c.taken, target.Tip)
	switch {
	case err != nil:
		return made, false, err
	case len(found) > 0:
		return made, true, c.conflict(ctx, found)
	case made.Commit == "":
		return made, true, c.applied(ctx, made, "")
	}
	return made, false, nil
}

// here makes the commit where its branch is checked out: files, index and branch in one journal, under git's index lock.
func (c *committing) here(ctx context.Context, s *applier.Session, repo *gitcommit.Repository) error {
	lock, err := repo.Lock(ctx)
	if err != nil {
		return err
	}
	release := lock.Release
	defer func() {
		if _, pending := s.Pending(); pending {
			release = lock.Abandon // what is half made stays locked until it is recovered
		}
		c.w.warnOn(release(), "release the index lock")
	}()
	target, err := repo.Target(ctx, wantedBranch(c.j.plan)) // again: until now git could move it
	if err != nil {
		return err
	}
	if !target.Here {
		return gitcommit.ErrMoved
	}
	if target.Tip == "" && c.work.Base != "" {
		return &gitcommit.Refusal{Code: gitcommit.CodeGone, What: target.Branch, Why: "the branch had a commit when the plan started, and has none now: commit to another branch"}
	}
	made, done, err := c.onto(ctx, target)
	if done || err != nil {
		return err
	}
	here, found, err := c.shop.Here(ctx, gitcommit.Checkout{Lock: lock, Original: s, Target: target}, c.taken, made)
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return c.conflict(ctx, found)
	}
	return c.write(ctx, s, repo, hereTo{here: here, made: made, branch: target.Branch, unlock: lock.Release})
}

// hereTo is a commit that is ready to be written where its branch is checked out.
type hereTo struct {
	here   gitcommit.Here
	made   gitcommit.Made
	branch string
	unlock func() error
}

func (c *committing) write(ctx context.Context, s *applier.Session, repo *gitcommit.Repository, to hereTo) error {
	preview, found, err := s.Check(ctx, applier.Request{
		Plan: c.j.id, Epoch: c.j.writer.Epoch(), Git: true, AllowSpecial: c.j.plan.AllowSpecial,
		Changes: to.here.Changes, Content: to.here.Content, Extras: to.here.Extras,
	})
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return c.conflict(ctx, found)
	}
	if err := repo.Keep(ctx, c.shop, to.made); err != nil {
		return err
	}
	if err := s.Stage(ctx, preview); err != nil {
		return err
	}
	pre, err := c.w.preApply(ctx, c.j, s, preview)
	if err != nil {
		return err
	}
	if err := c.intend(ctx, to.made, to.branch, executor.Ref(pre, len(c.j.plan.Steps))); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	err = s.Commit(ctx)
	if _, pending := s.Pending(); pending {
		return fmt.Errorf("%w: %w", errUnsettled, err)
	}
	var late *applier.LateConflict
	switch {
	case errors.As(err, &late) && late.Conflict.Kind == applier.KindMoved:
		return fmt.Errorf("%w: %w", gitcommit.ErrMoved, err)
	case errors.As(err, &late):
		return c.conflict(ctx, []applier.Conflict{late.Conflict})
	case err != nil:
		return err
	}
	c.w.warnOn(to.unlock(), "release the index lock")
	if err := c.applied(ctx, to.made, to.branch); err != nil {
		return err // the journal stays: it says that the change is made
	}
	return s.Finish(ctx)
}
