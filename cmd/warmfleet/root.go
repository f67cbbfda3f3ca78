package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/warmfleet/warmfleet/internal/natsboot"
)

// app is one run of the program.
type app struct {
	stdout, stderr io.Writer
	stdin          *os.File

	conn     natsboot.ConnFlags
	stateDir string
	format   string
	json     bool
	verbose  bool
	// diffShown: the difference was shown with a question already.
	diffShown bool
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "warmfleet",
		Short: "Run plans in sandboxes, look at what they changed, apply or roll back",
		Long: `warmfleet runs plans (shell steps and file edits) on directories and repositories. Each runs in a sandbox, leaves
checkpoints to go back to, and changes the original only when it is applied: whole, or not at all.`,
		Example: `  warmfleet run plan.yaml --path ~/src/app    # needs nothing else: brings its own server and worker
  warmfleet plan ls                           # what became of plans
  warmfleet doctor                            # what this machine can guarantee`,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return a.checkFlags()
		},
	}
	f := root.PersistentFlags()
	a.conn.Register(f)
	hideRare(f)
	f.StringVar(&a.stateDir, "state-dir", "", "directory of the local fleet ($WARMFLEET_STATE_DIR; default $XDG_STATE_HOME/warmfleet, ~/.local/state/warmfleet)")
	f.StringVarP(&a.format, "output", "o", "table", "output: "+strings.Join(formats, ", "))
	f.BoolVarP(&a.json, "json", "j", false, "the same as -o json")
	f.BoolVar(&a.verbose, "verbose", false, "log what the fleet in this process does")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usagef("%s%w: see %s --help", inCommand(c), err, c.CommandPath())
	})
	root.AddCommand(
		a.runCommand(), a.upCommand(), a.submitCommand(), a.planCommand(), a.checkpointCommand(),
		a.poolCommand(), a.imageCommand(), a.sessionCommand(), a.workerCommand(), a.eventsCommand(), a.verifyCommand(), a.gcCommand(), a.doctorCommand(), a.versionCommand(),
	)
	root.AddCommand(topics()...)
	for _, c := range root.Commands() {
		requireVerb(c)
	}
	requireVerb(root)
	return root
}

// unbuilt are the nouns and verbs of the product that this version does not have.
var unbuilt = map[string][]string{
	"warmfleet":        {"schedule", "dlq", "check", "schema", "config"},
	"warmfleet plan":   {"retry", "artifacts"},
	"warmfleet worker": {"drain", "resume"},
}

// requireVerb makes a noun without a known verb a usage error instead of a page of help.
func requireVerb(c *cobra.Command) {
	if !c.HasSubCommands() {
		return
	}
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(c *cobra.Command, args []string) error {
		var verbs []string
		for _, s := range c.Commands() {
			if s.IsAvailableCommand() {
				verbs = append(verbs, s.Name())
			}
		}
		use := strings.Join(verbs, ", ")
		switch {
		case len(args) > 0 && slices.Contains(unbuilt[c.CommandPath()], args[0]):
			return usagef("%s%s: is not built in this version", inCommand(c), args[0])
		case len(args) > 0:
			return usagef("%s%q: no such command: use one of %s", inCommand(c), args[0], use)
		case c.HasParent():
			return usagef("%sname a command: %s", inCommand(c), use)
		default:
			return c.Help()
		}
	}
}

func (a *app) checkFlags() error {
	if a.json {
		a.format = "json"
	}
	if !slices.Contains(formats, a.format) {
		return usagef("--output %q: use one of %s", a.format, strings.Join(formats, ", "))
	}
	return nil
}

func (a *app) printer() printer { return printer{format: a.format, w: a.stdout} }

// log is where the fleet inside this process tells what it does: warnings, or all of it.
func (a *app) log() zerolog.Logger {
	level := zerolog.WarnLevel
	if a.verbose {
		level = zerolog.DebugLevel
	}
	return zerolog.New(zerolog.ConsoleWriter{Out: a.stderr, NoColor: true, TimeFormat: "15:04:05"}).Level(level).With().Timestamp().Logger()
}

func (a *app) note(format string, args ...any) { fmt.Fprintf(a.stderr, format+"\n", args...) }

// inCommand begins a message about a command of the program, whose own name stands before all of them.
func inCommand(c *cobra.Command) string {
	if !c.HasParent() {
		return ""
	}
	return strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" ") + ": "
}

// args is cobra's argument check with our exit code.
func args(n int, usage string) cobra.PositionalArgs {
	return func(c *cobra.Command, got []string) error {
		if len(got) != n {
			return usagef("%stakes %s, not %d arguments: see %s --help", inCommand(c), usage, len(got), c.CommandPath())
		}
		return nil
	}
}
