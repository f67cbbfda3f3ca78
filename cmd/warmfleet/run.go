package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/warmfleet/warmfleet/internal/fleet"
	"github.com/warmfleet/warmfleet/internal/worker"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

const (
	// localSlots is how many plans the worker in this process runs at once.
	localSlots = 2
	// localDrain is how long its running steps may go on when the command ends.
	localDrain = 2 * time.Second
	// applyAsk is manual with a question, of a command and not of plans.
	applyAsk = "ask"
)

// runFlags are the flags of `run`.
type runFlags struct {
	path, repo, ref, strategy, apply, isolation, layers string
	yes                                                 bool
	worker                                              worker.Config // of it only what the flags of run set
	inputs                                              []string
	shown                                               fleet.Shown
	cancelOnInterrupt                                   bool
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "run PLAN.yaml",
		Short: "Run one plan to its end and show what it changed",
		Long: `Run one plan to its end: on the fleet of the server that was given, else on one in this process, whose state
stays in the state directory. Progress goes to stderr; stdout gets the difference, or with -o json the plan.
A relative resource: {path: ...} in the file is relative to the current directory, as --path is, not to the file.

A plan with apply: manual is applied after you said yes to the difference (on a terminal), with --yes, or later by
"warmfleet plan approve". Ctrl-C cancels the plan and rolls it back; a plan on a server goes on without you.`,
		Example: `  warmfleet run examples/quickstart.yaml               # as the plan says
  warmfleet run fix.yaml --path ~/src/app              # on that directory; asks before it changes anything there
  warmfleet run fix.yaml --path . --yes                # apply without asking
  warmfleet run fix.yaml --path . --strategy git_worktree --apply never
  warmfleet run bump.yaml --input pkg=cobra -o json | jq -r .state`,
		Args: args(1, "one plan file"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.run(c.Context(), args[0], f)
		},
	}
	fl := c.Flags()
	f.register(fl, "auto, manual, never or ask")
	fl.BoolVar(&f.yes, "yes", false, "approve without asking")
	fl.BoolVar(&f.cancelOnInterrupt, "cancel-on-interrupt", false, "cancel the plan on Ctrl-C also where it would go on")
	fleet.ShownFlags(fl, &f.shown)
	fleet.SecretFlags(fl, &f.worker)
	fleet.AuthorFlag(fl, &f.worker)
	fleet.CgroupsFlag(fl, &f.worker)
	fleet.ReserveFlag(fl, &f.worker)
	fl.StringVar(&f.layers, "layers", "", layersHelp)
	return c
}

// register declares the flags that lay something over a plan file.
func (f *runFlags) register(fl *pflag.FlagSet, applies string) {
	fl.StringVar(&f.path, "path", "", "directory to work on, instead of the plan's resource; as there, relative to the current directory")
	fl.StringVar(&f.repo, "repo", "", "git URL to work on, instead of the plan's resource")
	fl.StringVar(&f.ref, "ref", "", "branch, tag or commit of --repo")
	fl.StringVar(&f.strategy, "strategy", "", "none, copy_on_write or git_worktree, instead of the plan's")
	fl.StringVar(&f.apply, "apply", "", applies+", instead of the plan's")
	fl.StringArrayVar(&f.inputs, "input", nil, "an input of the plan as name=value; may be repeated")
	fl.StringVar(&f.isolation, "isolation", "", "required or preferred: whether the plan may run where guarantees do not hold; strong: on gVisor, else not at all")
}

func (a *app) run(ctx context.Context, file string, f runFlags) error {
	p, err := a.readPlan(ctx, file, f)
	if err != nil {
		return err
	}
	if missing := p.Unsupported(); len(missing) > 0 {
		return &coded{exitGuarantee, errors.New(strings.Join(missing, "\n"))}
	}
	expose, caches, err := f.shown.Dirs()
	if err != nil {
		err = &coded{exitUsage, err}
	}
	if err == nil {
		err = errors.Join(checkLayers(f.layers), checkCgroups(f.worker.Cgroups), checkWorkerFlags(f.worker))
	}
	if err != nil {
		return err
	}
	return a.with(ctx, func(ctx context.Context, h *handle) error {
		if err := h.runsHere(ctx, "expose", len(expose) > 0, p); err != nil {
			return err
		}
		if err := h.runsHere(ctx, "cache", len(caches) > 0, p); err != nil {
			return err
		}
		if err := h.runsHere(ctx, "secrets-dir", f.worker.SecretsDir != "", p); err != nil {
			return err
		}
		if err := h.runsHere(ctx, "author", f.worker.Author.Whole(), p); err != nil {
			return err
		}
		if err := a.tellTakenUp(ctx, h, p); err != nil {
			return err
		}
		if err := h.work(ctx, resourceOf(p), worker.Config{
			Pools: poolsOf(p.Pool), Isolation: f.isolationPolicy(), Layers: f.layers, Expose: expose, Caches: caches,
			SecretsDir: f.worker.SecretsDir, Author: f.worker.Author, Cgroups: f.worker.Cgroups, DiskReserve: f.worker.DiskReserve,
		}); err != nil {
			return err
		}
		id, err := a.submitPlan(ctx, h, p, "")
		if err != nil {
			return err
		}
		return a.see(ctx, h, id, f)
	})
}

// resourceOf is the plan's resource as events name it.
func resourceOf(p *plan.Plan) events.Resource {
	if p.Resource == nil {
		return events.Resource{}
	}
	return events.Resource{Path: p.Resource.Path, Host: p.Resource.Host, Repo: p.Resource.Repo, Ref: p.Resource.Ref}
}

// isolationPolicy is the policy of the worker in this process.
func (f runFlags) isolationPolicy() worker.Isolation {
	if f.isolation == "" {
		return worker.Required
	}
	return worker.Isolation(f.isolation)
}

// planFile is what messages call one.
const planFile = "plan file"

// readPlan reads a plan file and lays the flags over it.
func (a *app) readPlan(ctx context.Context, file string, f runFlags) (*plan.Plan, error) {
	src, err := source(ctx, planFile, file)
	if err != nil {
		return nil, err
	}
	opts, err := f.options()
	if err != nil {
		return nil, err
	}
	p, err := plan.ParseYAML(file, src, opts...)
	if err != nil {
		return nil, err
	}
	inputs, err := f.inputValues()
	if err != nil {
		return nil, err
	}
	if err := p.Bind(inputs); err != nil {
		return nil, err
	}
	if err := localise(p); err != nil {
		return nil, err
	}
	if f.isolation != "" {
		p.Isolation = plan.Isolation(f.isolation)
	}
	network := p.Network
	p.Defaults()
	if p.Pool != "" {
		p.Network = network // absent is what the pool says
	}
	return p, p.Validate(plan.Submitted())
}

func (f runFlags) options() ([]plan.Option, error) {
	var opts []plan.Option
	switch {
	case f.path != "" && f.repo != "":
		return nil, usagef("--path and --repo: give one of them")
	case f.ref != "" && f.repo == "":
		return nil, usagef("--ref %q: goes with --repo", f.ref)
	case f.path != "":
		opts = append(opts, plan.WithResource(plan.Resource{Path: f.path}))
	case f.repo != "":
		opts = append(opts, plan.WithResource(plan.Resource{Repo: f.repo, Ref: f.ref}))
	}
	for _, flag := range []struct {
		name, value, use string
		values           []string
	}{
		{"--strategy", f.strategy, "none, copy_on_write or git_worktree", []string{"none", "copy_on_write", "git_worktree"}},
		{"--apply", f.apply, "auto, manual, never or ask", []string{"auto", "manual", "never", applyAsk}},
		{"--isolation", f.isolation, "required, preferred or strong", []string{"required", "preferred", "strong"}},
	} {
		if flag.value != "" && !slices.Contains(flag.values, flag.value) {
			return nil, usagef("%s %q: use %s", flag.name, flag.value, flag.use)
		}
	}
	apply := f.apply
	if apply == applyAsk {
		apply = string(plan.ApplyManual)
	}
	return append(opts, plan.WithStrategy(plan.Strategy(f.strategy)), plan.WithApply(plan.Apply(apply))), nil
}

func (f runFlags) inputValues() (map[string]string, error) {
	values := map[string]string{}
	for _, pair := range f.inputs {
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, usagef("--input %q: write name=value", pair)
		}
		values[name] = value
	}
	return values, nil
}

// localise makes a relative path absolute and names this host, which only the command line can.
func localise(p *plan.Plan) error {
	if p.Resource == nil || p.Resource.Path == "" || p.Resource.Host != "" {
		return nil
	}
	abs, err := filepath.Abs(p.Resource.Path)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return usagef("path %q: %w: name a directory that exists", p.Resource.Path, bare(err))
	}
	if fi, err := os.Stat(abs); err == nil && !fi.IsDir() {
		return usagef("path %q: is not a directory", p.Resource.Path)
	}
	host := fleet.HostID("")
	if host == "" {
		return usagef("path %q: this host has no id: there is no /etc/machine-id", p.Resource.Path)
	}
	p.Resource.Path, p.Resource.Host = abs, host
	return nil
}

// see follows a plan to its end, asks for approval where that is wanted, and prints it.
func (a *app) see(ctx context.Context, h *handle, id string, f runFlags) error {
	last, err := a.follow(ctx, h, id)
	if err == nil && last.Event.Kind() == events.TypeAwaitingApproval {
		last, err = a.decideApproval(ctx, h, last, f)
	}
	if ctx.Err() != nil {
		return a.interrupted(ctx, h, id, h.local != nil || f.cancelOnInterrupt)
	}
	if err != nil {
		return err
	}
	return a.conclude(ctx, h, last)
}

// decideApproval approves, asks, or leaves the plan waiting.
func (a *app) decideApproval(ctx context.Context, h *handle, last events.Record, f runFlags) (events.Record, error) {
	id := last.Event.Subject
	if !f.yes && !(terminal(a.stdin) && (f.apply == "" || f.apply == applyAsk)) {
		a.note("to apply it: warmfleet plan approve %s; to drop it: warmfleet plan reject %s", id, id)
		return last, nil
	}
	if !f.yes {
		diff, err := h.Diff(ctx, id)
		if err != nil {
			return last, err
		}
		a.showDiff(textOf(diff))
		yes, err := a.ask(ctx, "apply this?")
		if err != nil {
			return last, err
		}
		if !yes {
			if _, err := h.Reject(ctx, id, user()); err != nil {
				return last, err
			}
			return a.followFrom(ctx, h, id, last.Seq)
		}
	}
	if _, err := h.Approve(ctx, id, user()); err != nil {
		return last, err
	}
	return a.followFrom(ctx, h, id, last.Seq)
}

// ask asks a question whose answer is no unless it is yes.
func (a *app) ask(ctx context.Context, question string) (bool, error) {
	fmt.Fprintf(a.stderr, "%s [y/N] ", question)
	answer := make(chan string, 1)
	go func() { // ends with the program, where nobody answers
		line, _ := bufio.NewReader(a.stdin).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case got := <-answer:
		return got == "y" || got == "yes", nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// user says who approves or cancels.
func user() string {
	for _, name := range []string{"USER", "LOGNAME"} {
		if u := os.Getenv(name); u != "" {
			return u
		}
	}
	return fmt.Sprintf("uid %d", os.Getuid())
}
