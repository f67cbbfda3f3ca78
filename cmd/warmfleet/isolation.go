package main

import (
	"maps"
	"slices"
	"strings"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// isolationOf is how a worker isolates, and that it was told not to.
func isolationOf(w events.Worker) string {
	if w.Policy == "off" {
		return w.Isolation + " (off)"
	}
	return w.Isolation
}

// notEnforced lists the guarantees that did not hold in full.
func notEnforced(states map[string]string) string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(states)) {
		if states[name] != string(isolate.Enforced) {
			names = append(names, name+" ("+states[name]+")")
		}
	}
	return strings.Join(names, ", ")
}
