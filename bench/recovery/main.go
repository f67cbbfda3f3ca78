// Command recovery measures how long a killed worker's plan stands still.
package main

import (
	"os"

	"github.com/warmfleet/warmfleet/bench/internal/bench"
	"github.com/warmfleet/warmfleet/bench/internal/suite"
	"github.com/warmfleet/warmfleet/internal/isolate"
)

func main() {
	isolate.Main()
	os.Exit(bench.Main(suite.Recovery()))
}
