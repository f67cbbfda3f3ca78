// Command warmfleet is the command line of a fleet: it runs plans, by itself or on a fleet,
// and shows what became of them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	a := &app{stdout: output(os.Stdout), stderr: output(os.Stderr), stdin: os.Stdin}
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err != nil {
		a.complain(err)
	}
	for _, w := range []io.Writer{a.stdout, a.stderr} {
		if t, ok := w.(*tty); ok {
			t.flush()
		}
	}
	return exitCode(err)
}

// complain prints an error as lines for people: what failed, on what, why, what to do.
func (a *app) complain(err error) {
	var c *coded
	switch {
	case errors.As(err, &c) && c.err == nil:
		return // what there is to say was said
	case exitCode(err) == exitInterrupted:
		a.note("warmfleet: interrupted")
		return
	}
	for line := range strings.Lines(plain(err)) {
		fmt.Fprintf(a.stderr, "warmfleet: %s\n", strings.TrimRight(line, "\n"))
	}
}

// packages are the names that errors begin with for those who read code.
var packages = []string{"natsboot", "fleet", "worker", "client", "checkpoint", "events", "plan", "poolfile", "isolate", "layer", "scheduler", "kv", "objectstore"}

// plain is an error's text without the package that it comes from.
func plain(err error) string {
	text := err.Error()
	for _, name := range packages {
		if rest, ok := strings.CutPrefix(text, name+": "); ok {
			return rest
		}
	}
	return text
}
