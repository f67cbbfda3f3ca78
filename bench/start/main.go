// Command start measures how long it takes from a plan's submission until its first process runs.
package main

import (
	"os"

	"github.com/warmfleet/warmfleet/bench/internal/bench"
	"github.com/warmfleet/warmfleet/bench/internal/suite"
	"github.com/warmfleet/warmfleet/internal/isolate"
)

func main() {
	isolate.Main()
	os.Exit(bench.Main(suite.Start()))
}
