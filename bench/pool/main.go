// Command pool measures pools: claims, refills, freshness, sessions, and what idle sandboxes take.
package main

import (
	"os"

	"github.com/warmfleet/warmfleet/bench/internal/bench"
	"github.com/warmfleet/warmfleet/bench/internal/suite"
	"github.com/warmfleet/warmfleet/internal/isolate"
)

func main() {
	isolate.Main()
	os.Exit(bench.Main(suite.Pool()))
}
