package worker

import (
	"fmt"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

// chooseLayers picks the driver of all views but those in place: the best that works here, unless one was asked for.
func (w *Worker) chooseLayers() error {
	want, err := layer.ParseDriver(w.cfg.Layers)
	if err != nil {
		return fmt.Errorf("worker: config: %w", err)
	}
	noOverlay := w.report.OverlayWhy
	if noOverlay == "" && !w.report.Overlay {
		noOverlay = "cannot be mounted here"
	}
	if w.layers, err = w.cache.Choose(want, noOverlay); err != nil {
		return fmt.Errorf("worker: layers %s: %w: use auto, or another", w.cfg.Layers, err)
	}
	if w.layers.Why != "" {
		w.log.Info().Str("driver", string(w.layers.Driver)).Str("why", w.layers.Why).Msg("layers")
	}
	return nil
}

// driverOf is what shows a plan's tree, and why not something better.
func (w *Worker) driverOf(p *plan.Plan) (driver, why string) {
	if p.Strategy == plan.InPlace {
		return string(layer.InPlace), "strategy none works in the original"
	}
	return string(w.layers.Driver), w.layers.Why
}
