// Command exec measures commands in sandboxes: the first, one more, what they print, what they do to files; and doctor.
package main

import (
	"os"

	"github.com/warmfleet/warmfleet/bench/internal/bench"
	"github.com/warmfleet/warmfleet/bench/internal/suite"
	"github.com/warmfleet/warmfleet/internal/isolate"
)

func main() {
	isolate.Main()
	os.Exit(bench.Main(suite.Exec()))
}
