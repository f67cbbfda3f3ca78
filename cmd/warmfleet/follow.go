package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/warmfleet/warmfleet/pkg/events"
)

const (
	// restLimit bounds the look for the last output of a step.
	restLimit = 2 * time.Second
	// cancelWait bounds the wait for a cancelled plan to be rolled back after Ctrl-C.
	cancelWait = 30 * time.Second
)

// follow shows a plan's progress and its steps' output on stderr until it is final or
// awaits approval, and returns that event.
func (a *app) follow(ctx context.Context, h *handle, id string) (events.Record, error) {
	return a.followFrom(ctx, h, id, 0)
}

// followFrom is follow for a plan whose events up to a sequence were shown before.
func (a *app) followFrom(ctx context.Context, h *handle, id string, shown uint64) (events.Record, error) {
	showing, stop := context.WithCancel(ctx)
	p := newProgress(a.stderr)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer stop()
	tasks.Go(func() { p.animate(showing.Done()) })
	if shown == 0 { // else the steps are done
		tasks.Go(func() {
			for c, err := range h.fleet.Output.Read(showing, events.OutputQuery{PlanID: id, Follow: true}) {
				if err != nil {
					return
				}
				p.chunk(c)
			}
		})
	}
	last, err := h.Wait(ctx, id, func(r events.Record) bool {
		if r.Seq <= shown {
			return false
		}
		if r.Event.Kind() == events.TypeStepFinished {
			p.rest(outputAfter(ctx, h, id, r.Event.Data.StepIndex, p.shown()))
		}
		p.event(r.Event)
		return r.Event.Kind() == events.TypeAwaitingApproval
	})
	if err == nil {
		if shown == 0 {
			p.rest(outputAfter(ctx, h, id, nil, p.shown()))
		}
		p.end(last.Event)
	}
	return last, err
}

// outputAfter is the stored output of a step, or of all, behind a place. Showing a part of
// it is better than to fail: plan logs has all.
func outputAfter(ctx context.Context, h *handle, id string, step *int, after uint64) []events.Chunk {
	ctx, cancel := context.WithTimeout(ctx, restLimit)
	defer cancel()
	var out []events.Chunk
	for c, err := range h.fleet.Output.Read(ctx, events.OutputQuery{PlanID: id, Step: step, From: after + 1}) {
		if err != nil {
			return out
		}
		out = append(out, c)
	}
	return out
}

// interrupted ends following after Ctrl-C. The plan goes on where others work on it; the
// plan of a fleet that ends with this process, or one that is to be cancelled, is rolled back.
func (a *app) interrupted(ctx context.Context, h *handle, id string, cancel bool) error {
	if !cancel && h.works {
		a.note("\nleft plan %s, which %s", id, h.afterwards(context.WithoutCancel(ctx), id))
		return &coded{exitInterrupted, nil}
	}
	if !cancel {
		a.note("\nleft plan %s, which goes on; to come back: warmfleet plan events %s --follow, warmfleet plan logs %s --follow; to stop it: warmfleet plan cancel %s", id, id, id, id)
		return &coded{exitInterrupted, nil}
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelWait)
	defer stop()
	a.note("\ncancelling plan %s; Ctrl-C again ends at once", id)
	if _, err := h.Cancel(ctx, id, user()); err != nil {
		a.note("warmfleet: %s", plain(err))
	}
	if _, err := h.Wait(ctx, id, nil); err == nil {
		v, err := h.Plan(ctx, id)
		if err == nil && !a.forPeople() {
			err = a.printPlan(v)
		}
		if err == nil {
			a.note("plan %s %s", id, v.State)
		}
	}
	return &coded{exitInterrupted, nil}
}

// conclude prints a plan that ended, or waits for approval, and returns its exit code.
func (a *app) conclude(ctx context.Context, h *handle, last events.Record) error {
	if err := a.show(ctx, h, last.Event.Subject); err != nil {
		return err
	}
	f := last.Event.Data.Plan
	if f == nil {
		return errors.New("the plan ended without a state")
	}
	if code := outcomeExit(f.State, f.Code); code != exitOK {
		return &coded{code, nil}
	}
	return nil
}

// show prints a plan: its JSON, or for people what it changed.
func (a *app) show(ctx context.Context, h *handle, id string) error {
	v, err := h.Plan(ctx, id)
	if err != nil {
		return err
	}
	if !a.forPeople() {
		return a.printPlan(v)
	}
	if v.Changed == nil || *v.Changed == 0 || a.diffShown {
		return nil
	}
	diff, err := h.Diff(ctx, id)
	if err != nil {
		return err
	}
	_, err = diffWriter(a.stdout).Write(textOf(diff))
	return err
}

// showDiff shows a difference that somebody is asked about: once, where stdout is read by
// the same person.
func (a *app) showDiff(diff []byte) {
	if _, ok := a.stdout.(*tty); ok && a.forPeople() {
		diffWriter(a.stdout).Write(diff)
		a.diffShown = true
		return
	}
	diffWriter(a.stderr).Write(diff)
}
