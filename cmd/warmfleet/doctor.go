package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/warmfleet/warmfleet/internal/doctor"
	"github.com/warmfleet/warmfleet/internal/limit"
	"github.com/warmfleet/warmfleet/internal/natsboot"
	"github.com/warmfleet/warmfleet/internal/worker"
)

func (a *app) doctorCommand() *cobra.Command {
	var cgroups string
	c := &cobra.Command{
		Use: "doctor", Short: "Try out what this machine can guarantee to a plan", Args: args(0, "no arguments"),
		Long: `Try out what this machine can guarantee to a plan: a sandbox is started and commands in it try to break out and to
exceed limits. Each guarantee is enforced, best_effort or absent, with why and what to do. Needs no server.
Exit code 10: something that --isolation required (the default of workers) asks for is not enforced.`,
		RunE: func(c *cobra.Command, _ []string) error { return a.doctor(c.Context(), cgroups) },
	}
	c.Flags().StringVar(&cgroups, "cgroups", "", "control groups to try: auto, v2, v1 or none (default auto)")
	return c
}

func (a *app) doctor(ctx context.Context, cgroups string) error {
	if err := checkCgroups(cgroups); err != nil {
		return err
	}
	dir, err := natsboot.StateDir(a.stateDir)
	if err != nil {
		return &coded{exitUsage, err}
	}
	r, err := doctor.Examine(ctx, doctor.Options{StateDir: dir, Cgroups: limit.Version(cgroups), Log: a.log()})
	if err != nil {
		return err
	}
	err = a.printer().one(r, r.Isolation, func(w io.Writer) { writeDoctor(w, r) })
	if err == nil && len(r.Missing) > 0 {
		return &coded{exitGuarantee, fmt.Errorf(
			"required guarantees do not hold here: %s: mend it as said above, or run plans without by --isolation preferred", strings.Join(r.Missing, ", "))}
	}
	return err
}

// checkCgroups refuses a value of --cgroups.
func checkCgroups(version string) error {
	if _, err := limit.ParseVersion(version); err != nil {
		return usagef("--cgroups %q: use auto, v2, v1 or none", version)
	}
	return nil
}

// checkWorkerFlags refuses values of --disk-reserve and --secrets-dir.
func checkWorkerFlags(c worker.Config) error {
	if c.DiskReserve < worker.Unbounded {
		return usagef("--disk-reserve %d: use a number of bytes, 0 for the default or -1 for none", c.DiskReserve)
	}
	if c.SecretsDir == "" {
		return nil
	}
	if st, err := os.Stat(c.SecretsDir); err != nil || !st.IsDir() {
		return usagef("--secrets-dir %q: no such directory: name one that exists", c.SecretsDir)
	}
	return nil
}

func writeDoctor(w io.Writer, r doctor.Report) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, text string, more ...string) {
		for _, m := range more {
			if m != "" {
				text += ": " + m
			}
		}
		fmt.Fprintf(t, "%s\t%s\n", name, text)
	}
	works := func(why string) string {
		if why == "" {
			return "works"
		}
		return "no: " + why
	}
	row("isolation", r.Isolation, r.IsolationWhy)
	if r.IsolationFix != "" {
		row("", "to do: "+r.IsolationFix)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Guarantees)) {
		g := r.Guarantees[name]
		row("  "+name, string(g.State), g.Why)
		if g.Fix != "" {
			row("", "to do: "+g.Fix)
		}
	}
	s := r.System
	row("kernel", fmt.Sprintf("%s %s, user %d", s.Kernel, s.Arch, s.UID))
	row("  user namespaces", works(s.UserNamespaces))
	row("  idmap", works(s.IDMap))
	row("  seccomp", works(s.Seccomp))
	row("  landlock", fmt.Sprintf("ABI %d", s.Landlock))
	row("  cgroups", s.Cgroups)
	row("  strong (gVisor)", works(s.Strong))
	row("layers", string(r.Layers.Driver))
	for _, d := range slices.Sorted(maps.Keys(r.Drivers)) {
		row("  "+d, works(r.Drivers[d]))
	}
	row("state", r.State.Path)
	row("  file system", fmt.Sprintf("%s, %d MB free", r.State.FileSystem, r.State.FreeBytes>>20), r.State.Warning)
	row("programs", "")
	for _, p := range r.Programs {
		switch {
		case p.Path == "":
			row("  "+p.Name, "not found")
		case p.Visible:
			row("  "+p.Name, strings.TrimSpace(p.Version+" "+p.Path))
		default:
			row("  "+p.Name, strings.TrimSpace(p.Version+" "+p.Path), "not in sandboxes", p.Why)
		}
	}
	t.Flush()
	fmt.Fprintf(w, "tried in %d ms\n", r.TookMilli)
}
