// Package suite is the benchmarks: what is measured and with what it is compared.
//
// It uses the project's own packages as the programs do, and lays nothing of the measured
// path aside. It must not know how results are printed.
package suite

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"github.com/warmfleet/warmfleet/bench/internal/bench"
)

// All is every benchmark, in the order of docs/benchmarks.md.
func All() []bench.Benchmark {
	return []bench.Benchmark{Start(), Exec(), Pool(), Checkpoint(), Rollback(), Base(), Throughput(), Recovery()}
}

// pick is n, or few if the run is to be quick.
func pick(e *bench.Env, n, few int) int {
	if e.Quick {
		return few
	}
	return n
}

// tool runs a program that is compared with, in a directory.
func tool(ctx context.Context, dir, name string, args ...string) error {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = dir
	var errs strings.Builder
	c.Stdout, c.Stderr = io.Discard, &errs
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return nil
}

// installed tells whether a program is there.
func installed(name string) bool {
	_, err := exec.LookPath(name)
	return err == nil
}
