// Command warmfleet is the command line of a fleet: it runs plans, by itself or on a fleet,
// and shows what became of them.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

func main() {
	isolate.Main()
	os.Exit(execute(context.Background(), os.Args[1:]))
}

// execute runs one command line and returns its exit code. The first interrupt ends the
// command's context, a second one the program.
func execute(ctx context.Context, args []string) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	a := &app{stdout: os.Stdout, stderr: os.Stderr, stdin: os.Stdin}
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	code := exitCode(err)
	if err != nil {
		a.complain(err)
	}
	return code
}

// complain prints an error as lines for people: what failed, on what, why, what to do.
func (a *app) complain(err error) {
	if c, ok := err.(*coded); ok && c.err == nil {
		return
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(a.stderr, "warmfleet: %s\n", strings.TrimRight(line, "\n"))
	}
}
