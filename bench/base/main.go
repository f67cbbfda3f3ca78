// Command base measures the first base image of a path, and bringing it up to date.
package main

import (
	"os"

	"github.com/warmfleet/warmfleet/bench/internal/bench"
	"github.com/warmfleet/warmfleet/bench/internal/suite"
	"github.com/warmfleet/warmfleet/internal/isolate"
)

func main() {
	isolate.Main()
	os.Exit(bench.Main(suite.Base()))
}
