package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/warmfleet/warmfleet/internal/natsboot"
)

// common are the connection flags that every page of help shows; a topic has all.
var common = map[string]bool{"server": true, "context": true, "creds": true}

// hideRare keeps the connection flags that few need off the pages of help.
func hideRare(f *pflag.FlagSet) {
	f.VisitAll(func(one *pflag.Flag) { one.Hidden = !common[one.Name] })
}

// topics are pages of help that belong to no command.
func topics() []*cobra.Command {
	var conn natsboot.ConnFlags
	all := pflag.NewFlagSet("connection", pflag.ContinueOnError)
	conn.Register(all)
	return []*cobra.Command{
		{
			Use: "connection", Short: "How a fleet is found, and all flags for that",
			Long: fmt.Sprintf(`With a server given (-s, --context, NATS_URL or NATS_CONTEXT), commands talk to the fleet on it. Flags and
variables are those of the nats command line; a context that is merely selected does not count.

With none, commands use the fleet of the state directory: the one that "warmfleet up" or another command
runs there now, or else one that they start in their own process for as long as they last. Plans, events and
checkpoints stay in the state directory. "warmfleet up" also writes the nats context %q.

%s`, natsboot.ContextName, all.FlagUsages()),
		},
		{
			Use: "exit-codes", Short: "What the exit codes mean",
			Long: `  0    done; for run and --wait also: awaits approval
  1    an error
  2    usage, an invalid plan, or a plan that was rejected
  3    the plan failed, and was rolled back
  4    not found
  5    not allowed: credentials, or a path that no worker allows
  6    cancelled or expired
  7    the wait timed out; the plan goes on
  8    NATS cannot be reached, or nobody answers on it
  9    conflict: the original changed meanwhile, and is as it was
  10   a required guarantee does not hold here, or the plan asks for what this version does not do
  130  interrupted`,
		},
	}
}
