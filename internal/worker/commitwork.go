package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/warmfleet/warmfleet/internal/gitcommit"
	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

// committing is the work on one plan's commit.
type committing struct {
	w        *Worker
	j        *job
	shop     *gitcommit.Workshop
	work     gitcommit.Work
	taken    gitcommit.Taken
	restored checkpoint.Restored
	release  func()
	// prior is the last intent of this plan, of this claim or one before it; zero for none.
	prior intent
	// pushedTo is where the remote's branch was at the last push.
	pushedTo string
}

// intent is what an apply_intent says of a commit.
type intent struct {
	commit, branch, onto string
	epoch                uint64
}

// beginCommit restores what a plan changed and opens a workshop on what facts tell of the repository.
func (w *Worker) beginCommit(ctx context.Context, j *job, facts gitrepo.Facts) (*committing, error) {
	cp := j.writer.Fold().Checkpoint
	if cp == nil || cp.Phase != events.PhasePostExecute {
		return nil, fmt.Errorf("worker: apply plan %q: %w", j.id, checkpoint.ErrNotFound)
	}
	c := &committing{w: w, j: j}
	var err error
	if c.restored, c.release, err = w.restore(ctx, cp.ID); err != nil {
		return nil, err
	}
	if err := c.prepare(ctx, facts); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *committing) close() error {
	var err error
	if c.shop != nil {
		err = c.shop.Close()
	}
	c.release()
	return err
}

func (c *committing) prepare(ctx context.Context, facts gitrepo.Facts) error {
	delta, err := checkpoint.GetDelta(ctx, c.w.fleet.Store, c.restored.Delta)
	if err != nil {
		return err
	}
	base := c.restored.Chain[:c.restored.BaseLayers]
	c.work = gitcommit.Work{
		Checkout: c.j.plan.Strategy == plan.GitWorktree || c.j.plan.Resource.Repo != "",
		Changes:  delta.Changes, Before: layer.NewTree(base), After: layer.NewTree(c.restored.Chain),
		Message: messageOf(c.j.plan),
	}
	if err := c.history(ctx); err != nil {
		return err
	}
	for _, l := range base { // a base of ours has its own objects
		if objects := filepath.Join(l.Dir, ".git", "objects"); c.work.Checkout {
			facts.Objects = append(facts.Objects, objects)
		}
	}
	if facts.Format == "" {
		facts.Format = gitrepo.FormatOf(c.work.Base)
	}
	c.shop, err = gitcommit.OpenWorkshop(ctx, c.w.repos.Git(), filepath.Join(c.w.cfg.StateDir, "scratch"), facts)
	return err
}

// recordRecovered records that an interrupted apply of a plan turned out to be made.
func (w *Worker) recordRecovered(ctx context.Context, j *job) error {
	prior := intent{}
	if i := j.writer.Fold().Intent; i != nil && i.Commit != "" {
		records, err := w.fleet.Log.Events(ctx, j.id)
		if err != nil {
			return err
		}
		prior = lastIntent(records)
	}
	return j.end(ctx, events.TypeApplied, events.Data{
		Changed: j.writer.Fold().Changed, Reason: "recovered", Commit: prior.commit, Branch: prior.branch, Onto: prior.onto,
	})
}

// lastIntent is the last apply_intent of a plan's events.
func lastIntent(records []events.Record) intent {
	for _, r := range slices.Backward(records) {
		if d := r.Event.Data; r.Event.Kind() == events.TypeApplyIntent {
			return intent{commit: d.Commit, branch: d.Branch, onto: d.Onto, epoch: d.Epoch}
		}
	}
	return intent{}
}

// history reads from the log and the base what makes the commit the same whoever makes it, and how often.
func (c *committing) history(ctx context.Context) error {
	records, err := c.w.fleet.Log.Events(ctx, c.j.id)
	if err != nil {
		return err
	}
	for _, r := range records {
		d := r.Event.Data
		switch r.Event.Kind() {
		case events.TypeClaimed:
			if d.Source != events.SourceCheckpoint {
				c.work.Base = d.Commit
			}
		case events.TypeExecuted:
			c.work.Time = r.Event.Time.Truncate(time.Second)
		}
	}
	author := authorIn(records)
	if author == nil {
		return refuse("no_identity", "commit: the events of plan %s don't say who it is by: submit it again", c.j.id)
	}
	c.work.Author = gitrepo.Identity{Name: author.Name, Email: author.Email}
	c.prior = lastIntent(records)
	tree := c.work.Before
	if commit, _, ok := gitrepo.HeadIn(func(p string) (io.ReadCloser, error) { return tree.Open(layer.Path(p)) }); ok {
		c.work.Base = commit // of the very moment that the base was made
	}
	return nil
}

// messageOf is a commit's message, the plan's name where none is given.
func messageOf(p *plan.Plan) string {
	if p.Commit != nil {
		return p.Commit.Message
	}
	return p.Name
}

// wantedBranch is the branch that a plan asks for, "" for none.
func wantedBranch(p *plan.Plan) string {
	if p.Commit == nil {
		return ""
	}
	return p.Commit.Branch
}
