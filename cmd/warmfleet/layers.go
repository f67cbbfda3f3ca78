package main

import "github.com/warmfleet/warmfleet/internal/layer"

const layersHelp = "how the worker of this process makes sandboxes' trees: auto, overlay, reflink or copy ($WARMFLEET_LAYERS; default auto)"

// checkLayers refuses what is no driver, before anything is started.
func checkLayers(name string) error {
	if _, err := layer.ParseDriver(name); err != nil {
		return usagef("--%v", err)
	}
	return nil
}
