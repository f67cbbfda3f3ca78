package fleet

import (
	"github.com/spf13/pflag"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/worker"
)

// CgroupsFlag registers which control groups bound plans.
func CgroupsFlag(fs *pflag.FlagSet, c *worker.Config) {
	fs.StringVar(&c.Cgroups, "cgroups", "", "control groups that bound plans: auto, v2, v1 or none (default auto)")
}

// ReserveFlag registers how much is kept free on the disk of a worker's state directory.
func ReserveFlag(fs *pflag.FlagSet, c *worker.Config) {
	fs.Var((*Bytes)(&c.DiskReserve), "disk-reserve", "what is kept free on the disk of the state directory: with less, what grows most is ended and nothing begun; 0: the larger of 1GiB and 2%, a twentieth of a small disk; -1: nothing")
}

// LimitFlags registers what bounds every plan of a worker.
func LimitFlags(fs *pflag.FlagSet, c *worker.Config) {
	CgroupsFlag(fs, c)
	ReserveFlag(fs, c)
	fs.DurationVar(&c.Grace, "grace", isolate.DefaultGrace, "time between SIGTERM and SIGKILL of a step at its timeout or when it is cancelled")
	fs.Var((*Bytes)(&c.Limits.Memory), "memory", "memory of one plan; plans can only ask for less; 0 is no limit")
	fs.Float64Var(&c.Limits.CPUs, "cpu-cores", 0, "cores of one plan; plans can only ask for less; 0 is no limit")
	fs.IntVar(&c.Limits.PIDs, "pids", 0, "processes of one plan; plans can only ask for less; 0 is no limit")
	fs.Var((*Bytes)(&c.Limits.Disk), "disk", "what one plan may write between two checkpoints; plans can only ask for less; 0 is no limit")
}
