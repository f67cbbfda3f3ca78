package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/warmfleet/warmfleet/internal/natsboot"
	"github.com/warmfleet/warmfleet/internal/worker"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/client"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

// Exit codes; scripts rely on them.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2   // usage, or an invalid plan
	exitFailed      = 3   // the plan failed, and was rolled back
	exitNotFound    = 4   //
	exitNotAllowed  = 5   //
	exitCancelled   = 6   // cancelled or expired
	exitTimeout     = 7   // a wait timed out
	exitUnreachable = 8   // NATS does not answer
	exitConflict    = 9   // apply found a conflict
	exitGuarantee   = 10  // a required guarantee does not hold here
	exitInterrupted = 130 // Ctrl-C
)

// coded is an error that decides the exit code. A nil err prints nothing.
type coded struct {
	code int
	err  error
}

func (c *coded) Error() string {
	if c.err == nil {
		return fmt.Sprintf("exit code %d", c.code)
	}
	return c.err.Error()
}

func (c *coded) Unwrap() error { return c.err }

func usagef(format string, args ...any) error {
	return &coded{exitUsage, fmt.Errorf(format, args...)}
}

// idArg checks an id before anything is asked about it.
func idArg(noun, id string) error {
	if _, err := events.ParseID(id); err != nil {
		return usagef("%s id %q: is not one: ids are 26 upper-case letters and digits: see warmfleet %s ls", noun, id, noun)
	}
	return nil
}

// nameOrID is an id as it is, and any other name in quotes: it may hold anything.
func nameOrID(name string) string {
	if _, err := events.ParseID(name); err == nil {
		return name
	}
	return strconv.Quote(name)
}

// explain says of what an answer of the API means for people: not there, or not now.
func (h *handle) explain(ctx context.Context, err error, verb, noun, id string) error {
	var a *client.Error
	switch {
	case err == nil:
		return nil
	case exitCode(err) == exitNotFound && noun == "plan" && strings.Contains(err.Error(), "checkpoint"):
		return err // the plan is there
	case exitCode(err) == exitNotFound && !strings.Contains(err.Error(), "worker"):
		return &coded{exitNotFound, fmt.Errorf("%s %s: not found: see warmfleet %s ls", noun, nameOrID(id), noun)}
	case noun == "plan" && errors.As(err, &a) && a.Code == api.CodeConflict:
		if v, failed := h.Plan(ctx, id); failed == nil {
			return usagef("plan %s: nothing to %s: it is %s", id, verb, strings.ReplaceAll(v.State, "_", " "))
		}
	}
	return err
}

// exitCode is the code that an error ends the program with.
func exitCode(err error) int {
	var c *coded
	var a *client.Error
	var invalid *plan.Errors
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &c):
		return c.code
	case errors.As(err, &invalid):
		return exitUsage
	case errors.As(err, &a):
		return apiExit(a.Code)
	case errors.Is(err, events.ErrNotFound), errors.Is(err, checkpoint.ErrNotFound), errors.Is(err, client.ErrNoSession):
		return exitNotFound
	case errors.Is(err, natsboot.ErrUnreachable):
		return exitUnreachable
	case errors.Is(err, worker.ErrNoStrong):
		return exitGuarantee
	case errors.Is(err, natsboot.ErrRefused):
		return exitNotAllowed
	case errors.Is(err, events.ErrID), errors.Is(err, events.ErrTooLarge):
		return exitUsage
	case errors.Is(err, client.ErrNoScheduler), errors.Is(err, context.DeadlineExceeded):
		return exitUnreachable
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	default:
		return exitError
	}
}

func apiExit(code string) int {
	switch code {
	case api.CodeInvalid, api.CodeConflict:
		return exitUsage
	case api.CodeRefused:
		return exitNotAllowed
	case api.CodeNotFound:
		return exitNotFound
	case api.CodeTimeout:
		return exitTimeout
	default:
		return exitError
	}
}

// outcomeExit is the exit code of a plan that ended, or waits for approval, in a state with a code.
func outcomeExit(state, code string) int {
	switch state {
	case events.StateApplied, events.StateExecuted, events.StateAwaitingApproval:
		return exitOK
	case events.StateConflict:
		return exitConflict
	case events.StateCancelled, events.StateExpired:
		return exitCancelled
	}
	switch code {
	case "unmet_isolation", "unsupported":
		return exitGuarantee
	case "path_not_allowed":
		return exitNotAllowed
	case "invalid_plan", "invalid_submission", "invalid_resource", "invalid_strategy", "by_user":
		return exitUsage
	}
	if state == events.StateRejected {
		return exitUsage
	}
	return exitFailed
}
