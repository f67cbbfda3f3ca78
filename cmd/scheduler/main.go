// Command scheduler validates submissions, admits plans and answers the fleet's API.
package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/warmfleet/warmfleet/internal/daemon"
	"github.com/warmfleet/warmfleet/internal/fleet"
	"github.com/warmfleet/warmfleet/internal/natsboot"
	"github.com/warmfleet/warmfleet/internal/scheduler"
)

func main() {
	d := &daemon.Daemon{Name: "scheduler"}
	var prefix string
	var keep *scheduler.Keep
	c := d.Command("Validate, admit and publish plans; several may run, one leads", func(ctx context.Context, nc *natsboot.Connection) error {
		f, err := fleet.Open(ctx, nc.JS, fleet.Options{Prefix: prefix, Declare: true})
		if err != nil {
			return err
		}
		s := f.Scheduler(0, d.Log)
		s.SetKeep(*keep)
		return s.Run(ctx, func() { d.Ready("scheduler on %s", nc.URL) })
	})
	c.Flags().StringVar(&prefix, "prefix", "", `first token of all subjects (default "fleet")`)
	keep = fleet.KeepFlags(c.Flags())
	c.PreRunE = func(*cobra.Command, []string) error { return daemon.Usage(keep.Validate()) }
	os.Exit(daemon.Main(c))
}
