package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/warmfleet/warmfleet/internal/worker"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/client"
	"github.com/warmfleet/warmfleet/pkg/events"
)

func (a *app) planUndo() *cobra.Command {
	return &cobra.Command{
		Use: "undo ID", Short: "Take back what an applied plan changed, whole or not at all",
		Long: `Take back what an applied plan changed, and wait until that is done. Every path becomes what it was before: content,
mode, owner, times, attributes and hard links. What was changed since on other paths stays; where a path of the plan was
changed since, nothing is undone and the exit code is 9. A plan that is undone already is success.`,
		Args: args(1, "a plan id"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := idArg("plan", args[0]); err != nil {
				return err
			}
			return a.with(c.Context(), func(ctx context.Context, h *handle) error { return a.undo(ctx, h, args[0]) })
		},
	}
}

func (a *app) undo(ctx context.Context, h *handle, id string) error {
	v, err := h.Plan(ctx, id)
	if err != nil {
		return explainUndo(err, id)
	}
	asked, err := h.Undo(ctx, id, user())
	if err != nil {
		return explainUndo(err, id)
	}
	if asked.Undone {
		a.note("plan %s: was undone already", id)
		return a.printUndo(asked)
	}
	if err := h.workIfNeeded(ctx, v.Resource, worker.Config{}); err != nil {
		return err
	}
	if served, err := h.served(ctx, v.Resource, nil); !h.works && err == nil && !served {
		a.note("no live worker allows %s: waiting for one", resource(v.Resource))
	}
	end, err := h.AwaitUndo(ctx, id)
	if ctx.Err() != nil {
		a.note("\nleft the undo of plan %s, which goes on: see warmfleet plan show %s", id, id)
		return &coded{exitInterrupted, nil}
	}
	if err != nil {
		return err
	}
	asked.Undoing = false
	if d := end.Event.Data; end.Event.Kind() == events.TypeUndoFailed {
		if err := a.printUndo(asked); err != nil {
			return err
		}
		return &coded{undoExit(d.Code), fmt.Errorf("plan %s: not undone: %s", id, d.Error)}
	}
	asked.Undone = true
	return a.printUndo(asked)
}

func (a *app) printUndo(u api.Undo) error {
	return a.printer().one(u, u.ID, func(w io.Writer) { fmt.Fprintln(w, u.ID) })
}

// explainUndo gives the refusals of an undo their exit codes: what is not there is 4, what cannot be undone is 1.
func explainUndo(err error, id string) error {
	var refused *client.Error
	switch {
	case !errors.As(err, &refused):
		return err
	case refused.Code == api.CodeNotFound && !strings.HasPrefix(refused.Message, "checkpoint "):
		return &coded{exitNotFound, fmt.Errorf("plan %s: not found: see warmfleet plan ls", id)}
	case refused.Code == api.CodeConflict:
		return &coded{exitError, err}
	}
	return err
}

// undoExit is the exit code of an undo that failed with a code.
func undoExit(code string) int {
	switch code {
	case "conflict", "half_undone", "half_applied":
		return exitConflict
	case "no_checkpoint":
		return exitNotFound
	case "path_not_allowed":
		return exitNotAllowed
	}
	return exitError
}
