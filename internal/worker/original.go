package worker

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/gitcommit"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/plan/applier"
)

// checkWritable refuses a plan whose result could not be applied: every apply to a path needs to write at its top, where its
// journal lies. It is better said before the first step than after the last.
// One that was begun has to be finished, whatever it takes.
func (w *Worker) checkWritable(j *job, t *target) error {
	if t.path == "" || j.plan.Apply == plan.ApplyNever || j.writer.Fold().Intent != nil {
		return nil
	}
	err := unix.Access(t.path, unix.W_OK|unix.X_OK)
	if err == nil {
		return nil
	}
	return refuse("not_writable", "path %q: %s, and worker %s, as user %d, may not write there (%v), so nothing could be applied: run a worker as its owner, or use apply: never",
		t.path, ownerOf(t.path), w.cfg.Name, os.Geteuid(), err)
}

// ownerOf says whose a path is.
func ownerOf(path string) string {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "its owner is unknown"
	}
	return fmt.Sprintf("it belongs to user %d", st.Uid)
}

// openOriginal opens an original to apply to. Of the top of a git work tree the repository is opened too, and what a killed apply left in it
// before it began is removed.
func (w *Worker) openOriginal(ctx context.Context, t *target) (*applier.Session, *gitcommit.Repository, error) {
	var repo *gitcommit.Repository
	o := applier.Options{Log: w.log}
	if isTop(t.info) {
		var err error
		if repo, err = gitcommit.Open(ctx, w.repos.Git(), t.info); err != nil {
			return nil, nil, err
		}
		o.Extra = repo.Extra
	}
	s, err := applier.Open(ctx, t.path, o)
	if err != nil || repo == nil {
		return s, repo, err
	}
	if _, pending := s.Pending(); !pending {
		if err := repo.Sweep(); err != nil {
			return nil, nil, errors.Join(err, s.Close())
		}
	}
	return s, repo, nil
}
