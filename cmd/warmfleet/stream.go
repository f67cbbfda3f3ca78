package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/warmfleet/warmfleet/internal/termsafe"
	"github.com/warmfleet/warmfleet/pkg/events"
)

func (a *app) planEvents() *cobra.Command {
	var follow bool
	c := &cobra.Command{
		Use: "events ID", Short: "Print a plan's events", Args: args(1, "a plan id"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := idArg("plan", args[0]); err != nil {
				return err
			}
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				records, err := h.Events(ctx, args[0])
				if err != nil {
					return h.explain(ctx, err, "show", "plan", args[0])
				}
				if follow {
					return a.tail(ctx, h, events.Filter{Plan: args[0]}, true)
				}
				return a.printEvents(records)
			})
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the plan is final")
	return c
}

func (a *app) eventsCommand() *cobra.Command {
	var subject string
	var follow bool
	c := &cobra.Command{
		Use: "events", Short: "Print the fleet's events", Args: args(0, "no arguments"),
		Example: `  warmfleet events -o jsonl
  warmfleet events --follow --subject 'fleet.evt.plan.*.applied'`,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				if err := h.checkSubject(subject); err != nil {
					return err
				}
				f := events.Filter{Subject: subject, Mark: !follow}
				if follow || a.format != "json" && a.format != "yaml" {
					return a.tail(ctx, h, f, false)
				}
				records, err := h.Follow(ctx, f)
				if err != nil {
					return err
				}
				var all []events.Record
				for r := range records {
					if r.Seq == 0 {
						return a.printEvents(all)
					}
					all = append(all, r)
				}
				return context.Cause(ctx)
			})
		},
	}
	c.Flags().StringVar(&subject, "subject", "", "NATS subject filter, as fleet.evt.plan.*.applied")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on as events come")
	return c
}

// checkSubject refuses a filter that no event can match: waiting for one would never end.
func (h *handle) checkSubject(subject string) error {
	all := strings.TrimSuffix(h.fleet.Subjects.Events(""), ">")
	if subject == "" || strings.HasPrefix(subject, all) && !strings.ContainsAny(subject, " \t") && !strings.Contains(subject+".", "..") {
		return nil
	}
	return usagef("--subject %q: write a filter that begins with %s, as in %splan.*.applied", subject, all, all)
}

// tail prints events as they come: until the mark, the end of the plan, or an interrupt.
func (a *app) tail(ctx context.Context, h *handle, f events.Filter, untilFinal bool) error {
	records, err := h.Follow(ctx, f)
	if err != nil {
		return err
	}
	for r := range records {
		if r.Seq == 0 {
			return nil
		}
		if err := a.printEvent(r.Event); err != nil {
			return err
		}
		if untilFinal && r.Event.Data.Final {
			return nil
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return &coded{exitInterrupted, nil}
	}
	return ctx.Err()
}

func (a *app) printEvents(records []events.Record) error {
	if a.format == "json" || a.format == "yaml" {
		all := make([]events.Event, len(records))
		for i, r := range records {
			all[i] = r.Event
		}
		return a.printer().encode(all)
	}
	for _, r := range records {
		if err := a.printEvent(r.Event); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) printEvent(e events.Event) error {
	switch a.format {
	case "table", "wide":
		_, err := fmt.Fprintln(a.stdout, strings.TrimRight(fmt.Sprintf("%s  %s  %-17s  %s", e.Time.Local().Format("15:04:05.000"), e.Subject, e.Kind(), termsafe.Line(eventDetail(e))), " "))
		return err
	case "name":
		_, err := fmt.Fprintln(a.stdout, e.ID)
		return err
	}
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.stdout, "%s\n", termsafe.JSON(b))
	return err
}

func eventDetail(e events.Event) string {
	d := e.Data
	switch {
	case d.Error != "":
		return oneLine(d.Error)
	case e.Kind() == events.TypeClaimed && e.Noun() == events.NounPlan:
		return fmt.Sprintf("%s, attempt %d, from %s", d.Worker, max(d.Attempt, 1), d.Source)
	case d.Step != "":
		return d.Step
	case d.Checkpoint != nil:
		return d.Checkpoint.Phase + " " + d.Checkpoint.ID
	default:
		return d.Reason
	}
}

func (a *app) planLogs() *cobra.Command {
	var q logQuery
	c := &cobra.Command{
		Use: "logs ID", Short: "Print what a plan's steps printed, byte for byte",
		Long: `Print what a plan's steps printed, byte for byte. On a terminal everything that would act on it is spelled out (^[ is the
escape character, <ff> a byte that is not UTF-8), unless --raw is given.`,
		Args: args(1, "a plan id"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := idArg("plan", args[0]); err != nil {
				return err
			}
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				return a.logs(ctx, h, args[0], q)
			})
		},
	}
	c.Flags().StringVar(&q.step, "step", "", "only this step's")
	c.Flags().BoolVarP(&q.follow, "follow", "f", false, "go on until the plan is final")
	c.Flags().BoolVar(&q.raw, "raw", false, "the exact bytes on a terminal too: what a step printed can then drive it")
	return c
}

// logQuery says what of a plan's output is printed, and how.
type logQuery struct {
	step        string
	follow, raw bool
}

func (a *app) logs(ctx context.Context, h *handle, id string, want logQuery) error {
	if want.raw {
		a.stdout = exact(a.stdout)
	}
	v, err := h.Plan(ctx, id)
	if err != nil {
		return h.explain(ctx, err, "print", "plan", id)
	}
	q := events.OutputQuery{PlanID: id}
	if want.step != "" {
		i := stepIndex(v, want.step)
		if i < 0 {
			return &coded{exitNotFound, fmt.Errorf("plan %s: has no step %q: see warmfleet plan show %s", id, want.step, id)}
		}
		q.Step = &i
	}
	if want.follow && !v.Final {
		return a.followLogs(ctx, h, q)
	}
	for c, err := range h.fleet.Output.Read(ctx, q) {
		if err := a.printChunk(c, err); err != nil {
			return err
		}
	}
	return nil
}

// followLogs prints output as it comes until the plan is final, then the rest of it.
func (a *app) followLogs(ctx context.Context, h *handle, q events.OutputQuery) error {
	live, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		defer stop()
		h.Wait(live, q.PlanID, nil)
	}()
	last := uint64(0)
	q.Follow = true
	for c, err := range h.fleet.Output.Read(live, q) {
		if live.Err() != nil {
			break
		}
		if err := a.printChunk(c, err); err != nil {
			return err
		}
		last = c.Seq
	}
	if ctx.Err() != nil {
		return &coded{exitInterrupted, nil}
	}
	q.Follow, q.From = false, last+1
	for c, err := range h.fleet.Output.Read(ctx, q) {
		if err := a.printChunk(c, err); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) printChunk(c events.Chunk, err error) error {
	if err != nil {
		return err
	}
	if c.Dropped > 0 {
		a.note("[%d bytes of step %d left out]", c.Dropped, c.Step+1)
	}
	_, err = a.stdout.Write(c.Data)
	return err
}

func stepIndex(v events.View, id string) int {
	for i, s := range v.Steps {
		if s.ID == id {
			return i
		}
	}
	return -1
}
