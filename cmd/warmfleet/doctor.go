package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/natsboot"
)

// doctorReport is what `doctor` prints.
type doctorReport struct {
	Isolation  string `json:"isolation"`
	Overlay    bool   `json:"overlay"`
	OverlayWhy string `json:"overlay_why,omitempty"`
	// Layers is how a worker here would make the trees of sandboxes.
	Layers     layer.Choice                 `json:"layers"`
	Guarantees map[string]isolate.Guarantee `json:"guarantees"`
	Missing    []string                     `json:"missing"`
}

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Try out what this machine can guarantee to a plan", Args: args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error { return a.doctor(c.Context()) },
	}
}

func (a *app) doctor(ctx context.Context) error {
	dir, err := natsboot.StateDir(a.stateDir)
	if err != nil {
		return &coded{exitUsage, err}
	}
	r, err := isolate.Probe(ctx, dir)
	if err != nil {
		return err
	}
	layers, err := a.tryLayers(dir, r)
	if err != nil {
		return err
	}
	out := doctorReport{
		Isolation: string(r.Rung), Overlay: r.Overlay, OverlayWhy: r.OverlayWhy, Layers: layers, Guarantees: r.Guarantees,
		Missing: r.Unmet(isolate.NetworkNone),
	}
	if out.Missing == nil {
		out.Missing = []string{}
	}
	err = a.printer().one(out, out.Isolation, func(w io.Writer) { out.write(w) })
	if err == nil && len(out.Missing) > 0 {
		return &coded{exitGuarantee, fmt.Errorf("required guarantees do not hold here: %s: run with --isolation preferred to do without", strings.Join(out.Missing, ", "))}
	}
	return err
}

// tryLayers chooses the driver as a worker of this state directory would.
func (a *app) tryLayers(dir string, r isolate.Report) (layer.Choice, error) {
	tmp, err := os.MkdirTemp(dir, "doctor-")
	if err != nil {
		return layer.Choice{}, fmt.Errorf("doctor: try how layers can be kept in %s: %w", dir, err)
	}
	defer layer.RemoveTree(tmp)
	o := layer.Options{Owner: os.Getuid(), Log: a.log()}
	if r.Rung == isolate.RungRoot {
		o.Owner, o.Trusted = isolate.HostID, true
	}
	cache, err := layer.OpenCache(filepath.Join(tmp, "layers"), o)
	if err != nil {
		return layer.Choice{}, err
	}
	choice, err := cache.Choose("", r.OverlayWhy)
	return choice, errors.Join(err, cache.Close())
}

func (r doctorReport) write(w io.Writer) {
	overlay := "works"
	if !r.Overlay {
		overlay = "does not work: " + r.OverlayWhy
	}
	layers := string(r.Layers.Driver)
	if r.Layers.Why != "" {
		layers += ": " + r.Layers.Why
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "isolation\t%s\noverlay\t%s\nlayers\t%s\n", r.Isolation, overlay, layers)
	for _, name := range slices.Sorted(maps.Keys(r.Guarantees)) {
		g := r.Guarantees[name]
		text := string(g.State)
		if g.Why != "" {
			text += ": " + g.Why
		}
		if g.Fix != "" {
			text += "; " + g.Fix
		}
		fmt.Fprintf(t, "%s\t%s\n", name, text)
	}
	t.Flush()
}
