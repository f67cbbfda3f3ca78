package worker

import (
	"context"
	"fmt"
	"io"
	"path/filepath"

	"github.com/warmfleet/warmfleet/internal/gitcommit"
	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/layer"
)

// applyPush makes the plan's commit on a branch of a remote. Any worker can go on with what another one began: the commit is the
// same, and the remote says whether it is there.
func (w *Worker) applyPush(ctx context.Context, j *job) error {
	c, err := w.beginCommit(ctx, j, gitrepo.Facts{})
	if err != nil {
		return err
	}
	defer func() { w.warnOn(c.close(), "close a workshop") }()
	branch, err := c.remoteBranch()
	if err != nil {
		return err
	}
	var pushed error
	remote := w.planRemote(j.plan)
	for range moveTries {
		tip, err := w.repos.Tip(ctx, remote, branch)
		if err != nil && c.prior.commit != "" {
			return fmt.Errorf("%w: %w", errUnsettled, err) // it may have arrived: only the remote knows
		}
		if err != nil {
			return refuse("remote_unreachable", "apply to %s: %v", j.plan.Resource.Repo, err)
		}
		done, err := c.pushed(ctx, tip, branch)
		if done || err != nil {
			return err
		}
		made, done, err := c.ontoRemote(ctx, tip, pushed)
		if done || err != nil {
			return err
		}
		if err := c.intend(ctx, made, branch, nil); err != nil {
			return err
		}
		pushed = w.repos.Push(ctx, gitrepo.Push{
			To: remote, Branch: branch, GitDir: c.shop.GitDir(), Alternates: c.shop.Alternates(), Commit: made.Commit, Old: tip.Commit,
		})
		if pushed == nil {
			return c.applied(context.WithoutCancel(ctx), made, branch)
		}
		c.pushedTo = tip.Commit
	}
	return refuse("push_refused", "apply to %s: branch %s moves faster than it can be pushed to: %v", j.plan.Resource.Repo, branch, pushed)
}

// remoteBranch is the branch to push to: the plan's, else the one that the sandbox started from.
func (c *committing) remoteBranch() (string, error) {
	if branch := wantedBranch(c.j.plan); branch != "" {
		return branch, nil
	}
	tree := c.work.Before
	_, branch, _ := gitrepo.HeadIn(func(p string) (io.ReadCloser, error) { return tree.Open(layer.Path(p)) })
	if branch == "" {
		return "", noBranch(c.j.plan.Resource.Ref)
	}
	return branch, nil
}

func noBranch(ref string) error {
	return refuse("invalid_resource", "resource.ref: %q is no branch, so there is nothing to push to: name one in commit.branch, or use apply: never", ref)
}

// pushed tells whether the commit of the last intent is on the branch, and ends the plan then.
func (c *committing) pushed(ctx context.Context, tip gitrepo.Mirror, branch string) (bool, error) {
	if c.prior.commit == "" || c.prior.branch != branch || tip.Commit == "" {
		return false, nil
	}
	there, err := c.w.repos.Git().Contains(ctx, tip.Dir, tip.Commit, c.prior.commit)
	if !there || err != nil {
		return false, err
	}
	return true, c.w.recordRecovered(ctx, c.j)
}

// ontoRemote makes the commit on a remote's tip; last is how the last push failed. done means that the plan has ended.
func (c *committing) ontoRemote(ctx context.Context, tip gitrepo.Mirror, last error) (made gitcommit.Made, done bool, err error) {
	if last != nil && tip.Commit == c.pushedTo {
		return made, false, refuse("push_refused", "apply to %s: %v", c.j.plan.Resource.Repo, last)
	}
	if tip.Commit == "" && c.startedOn(tip.Branch) {
		return made, true, c.w.refused(ctx, c.j, &gitcommit.Refusal{
			Code: gitcommit.CodeGone, What: tip.Branch, Why: "the branch that the plan started from is gone from the remote: name another in commit.branch",
		})
	}
	c.shop.Borrow(filepath.Join(tip.Dir, "objects"))
	return c.onto(ctx, gitcommit.Target{Branch: tip.Branch, Tip: tip.Commit})
}

// startedOn tells whether the sandbox started from a branch of this name.
func (c *committing) startedOn(name string) bool {
	tree := c.work.Before
	_, branch, _ := gitrepo.HeadIn(func(p string) (io.ReadCloser, error) { return tree.Open(layer.Path(p)) })
	return branch == name
}
