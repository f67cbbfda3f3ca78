package worker

import (
	"context"
	"fmt"
	"slices"

	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

// author is who the plan's commit will be by, nil where it makes none: the plan's identity, else that of the repository's own
// configuration, of the pool, of the worker; never that of the machine. A claim before this one has settled it: the commit
// has to be the same whoever makes it. A plan that nobody is named for is refused with code no_identity.
func (w *Worker) author(ctx context.Context, j *job, t *target) (*events.Author, error) {
	if !commits(j.plan) || j.plan.Apply == plan.ApplyNever {
		return nil, nil
	}
	if j.writer.Fold().Epoch > 0 {
		records, err := w.fleet.Log.Events(ctx, j.id)
		if settled := authorIn(records); settled != nil || err != nil {
			return settled, err
		}
	}
	if id := j.plan.Identity; id != nil {
		return &events.Author{Name: id.Name, Email: id.Email, Of: events.AuthorOfPlan}, nil
	}
	if t.path != "" {
		own, err := w.repos.Git().FactsOf(ctx, t.info)
		if err != nil {
			return nil, err
		}
		if own.Author.Whole() {
			return authorOf(own.Author, events.AuthorOfRepository), nil
		}
	}
	if spec, _, served := w.poolSpec(j.plan.Pool); served && spec.Identity != nil {
		return authorOf(gitrepo.Identity(*spec.Identity), events.AuthorOfPool), nil
	}
	if w.cfg.Author.Whole() {
		return authorOf(w.cfg.Author, events.AuthorOfWorker), nil
	}
	return nil, refuse("no_identity", "commit: nobody is named for it: %s", howToName(j.plan, t))
}

func authorOf(id gitrepo.Identity, of string) *events.Author {
	return &events.Author{Name: id.Name, Email: id.Email, Of: of}
}

// howToName says where an identity can be given.
func howToName(p *plan.Plan, t *target) string {
	switch {
	case t.path != "":
		return fmt.Sprintf("give the plan identity: {name, email}, or set user.name and user.email in the configuration of %s, or start the worker with --author 'NAME <EMAIL>'", t.path)
	case p.Pool != "":
		return fmt.Sprintf("give the plan or the file of pool %s identity: {name, email}, or start the worker with --author 'NAME <EMAIL>'", p.Pool)
	}
	return "give the plan identity: {name, email}, or start the worker with --author 'NAME <EMAIL>'"
}

// authorIn is who the commit is by according to a plan's events, nil where they don't say.
func authorIn(records []events.Record) *events.Author {
	for _, r := range slices.Backward(records) {
		if a := r.Event.Data.Author; a != nil && r.Event.Kind() == events.TypeClaimed {
			return a
		}
	}
	return nil
}

// authorNotes say in the first event who the commit will be by, and who said so.
func authorNotes(a *events.Author) []string {
	if a == nil {
		return nil
	}
	return []string{fmt.Sprintf("author: %s <%s>, of the %s", a.Name, a.Email, a.Of)}
}
