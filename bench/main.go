// Command bench measures how fast everything is, beside what it is compared with.
//
//	go run ./bench              all of them
//	go run ./bench/NAME         one: start, exec, pool, checkpoint, rollback, base, throughput, recovery
//	go run ./bench -json        one JSON object a row
//	go run ./bench -quick       few samples, which only shows that everything runs
package main

import (
	"os"

	"github.com/warmfleet/warmfleet/bench/internal/bench"
	"github.com/warmfleet/warmfleet/bench/internal/suite"
	"github.com/warmfleet/warmfleet/internal/isolate"
)

func main() {
	isolate.Main()
	os.Exit(bench.Main(suite.All()...))
}
