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
		Use:           "warmfleet",
		Short:         "Run plans in sandboxes, roll back, apply: on this machine or on a fleet",
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return a.checkFlags()
		},
	}
	f := root.PersistentFlags()
	a.conn.Register(f)
	f.StringVar(&a.stateDir, "state-dir", "", "directory of the local fleet (WARMFLEET_STATE_DIR; default $XDG_STATE_HOME/warmfleet)")
	f.StringVarP(&a.format, "output", "o", "table", "output: "+strings.Join(formats, ", "))
	f.BoolVarP(&a.json, "json", "j", false, "the same as -o json")
	f.BoolVar(&a.verbose, "verbose", false, "log what the fleet in this process does")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &coded{exitUsage, err} })
	root.AddCommand(
		a.runCommand(), a.upCommand(), a.submitCommand(), a.planCommand(), a.checkpointCommand(),
		a.workerCommand(), a.eventsCommand(), a.doctorCommand(), a.versionCommand(),
	)
	for _, c := range root.Commands() {
		requireVerb(c)
	}
	return root
}

// requireVerb makes a noun without a known verb a usage error instead of a page of help.
func requireVerb(c *cobra.Command) {
	if !c.HasSubCommands() {
		return
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		var verbs []string
		for _, s := range c.Commands() {
			verbs = append(verbs, s.Name())
		}
		if len(args) > 0 {
			return usagef("%s %q: no such verb: use one of %s", c.CommandPath(), args[0], strings.Join(verbs, ", "))
		}
		return usagef("%s: which of %s?", c.CommandPath(), strings.Join(verbs, ", "))
	}
}

func (a *app) checkFlags() error {
	if a.json {
		a.format = "json"
	}
	if !slices.Contains(formats, a.format) {
		return usagef("output %q: use one of %s", a.format, strings.Join(formats, ", "))
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
	return zerolog.New(zerolog.ConsoleWriter{Out: a.stderr, NoColor: true, TimeFormat: "15:04:05.000"}).Level(level).With().Timestamp().Logger()
}

func (a *app) note(format string, args ...any) { fmt.Fprintf(a.stderr, format+"\n", args...) }

// args is cobra's argument check with our exit code.
func args(n int, usage string) cobra.PositionalArgs {
	return func(c *cobra.Command, got []string) error {
		if len(got) != n {
			return usagef("%s: wants %s", c.CommandPath(), usage)
		}
		return nil
	}
}
