// Command scheduler validates submissions, admits plans and answers the fleet's API.
package main

import (
	"context"
	"os"

	"github.com/warmfleet/warmfleet/internal/daemon"
	"github.com/warmfleet/warmfleet/internal/fleet"
	"github.com/warmfleet/warmfleet/internal/natsboot"
)

func main() {
	d := &daemon.Daemon{Name: "scheduler"}
	var prefix string
	c := d.Command("Validate, admit and publish plans; several may run, one leads", func(ctx context.Context, nc *natsboot.Connection) error {
		f, err := fleet.Open(ctx, nc.JS, fleet.Options{Prefix: prefix, Declare: true})
		if err != nil {
			return err
		}
		return f.Scheduler(0, d.Log).Run(ctx, func() { d.Ready("scheduler on %s", nc.URL) })
	})
	c.Flags().StringVar(&prefix, "prefix", "", `first token of all subjects (default "fleet")`)
	os.Exit(daemon.Main(c))
}
