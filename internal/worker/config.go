package worker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/limit"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// DefaultDrain is how long running steps may go on after a daemon was asked to stop.
const DefaultDrain = 60 * time.Second

// DefaultPullWait is when a pull of commands expires: a stop is noticed as late.
const DefaultPullWait = time.Second

// Config is what people set about a worker.
type Config struct {
	// Name is unique in the fleet: letters, digits, - and _.
	Name string
	// HostID is the id of the host whose paths this worker serves; "" serves no paths.
	HostID string
	// StateDir is private to this worker.
	StateDir string
	// Slots is how many plans run at once.
	Slots int
	// Pools are the named pools that are served, once they are applied; none: all that are.
	Pools []string
	// Rungs are what is tried to isolate with, the best first; none: isolate.Rungs. Tests set it.
	Rungs []isolate.Rung
	// NoPools serves no named pools; Pools is empty then.
	NoPools bool
	// AllowPaths are the directories (with all below them) that path plans may name.
	AllowPaths []string
	// Isolation is Required where empty.
	Isolation Isolation
	// Expose are host directories that every sandbox sees read-only.
	Expose []string
	// Caches are host directories, by name, that every sandbox has a private copy of, made as it writes.
	Caches map[string]string
	Labels map[string]string
	// Author is who commits are by where neither plan, repository nor pool names anybody; zero refuses such plans.
	Author gitrepo.Identity
	// SecretsDir holds secrets of plans, one file each, "" for none; see secret.Dir.
	SecretsDir string
	// Layers names the driver that sandboxes' trees are made with: auto (also ""), overlay, reflink or copy.
	Layers string
	// Cgroups names the control groups that bound plans: auto (also ""), v2, v1 or none.
	Cgroups string
	// BaseBudget is how much bases of paths and repositories may take on disk, in bytes, before those that were not
	// used for longest go; a fifth of the state directory's file system if zero, Unbounded for no bound.
	BaseBudget int64
	// RemoteStall is how long a git remote may give no sign of life; gitrepo.DefaultTimeout if zero.
	RemoteStall time.Duration
	// Warm is how many started inits wait for a plan.
	Warm int
	// PullWait is how long one pull of commands waits, and with it how long a stop may take to
	// be noticed; DefaultPullWait if zero.
	PullWait time.Duration
	// CacheBudget bounds the layers in the cache that nothing here uses, in bytes; 0 is
	// DefaultCacheBudget, less keeps none.
	CacheBudget int64
	// PlanBudget bounds what the layers of one plan take in the object store, in bytes; 0 is
	// DefaultPlanBudget, less is no bound.
	PlanBudget int64
	// DrainTimeout bounds how long running steps may go on after a stop was asked.
	DrainTimeout time.Duration
	// Grace is the time between SIGTERM and SIGKILL of a step; isolate.DefaultGrace if zero.
	Grace time.Duration
	// DiskReserve is how much is kept free on the file system of StateDir, in bytes: with less, what grows most is ended and
	// nothing is begun. reserve.Default if zero, Unbounded for none.
	DiskReserve int64
	// Limits bound every plan; a plan can only ask for less.
	Limits isolate.Limits
}

// Validate fills in defaults and says which field is wrong, and why.
func (c *Config) Validate() error {
	if c.PullWait == 0 {
		c.PullWait = DefaultPullWait
	}
	if c.Isolation == "" {
		c.Isolation = Required
	}
	for _, pool := range c.Pools {
		if err := events.ValidPool(pool); err != nil || pool == "default" || strings.HasPrefix(pool, "h-") {
			return fmt.Errorf("worker: config: pools: %q is not the name of a pool: use a-z, 0-9 and -, up to 40, not default and not beginning with h-", pool)
		}
	}
	if _, err := layer.ParseDriver(c.Layers); err != nil {
		return fmt.Errorf("worker: config: %w", err)
	}
	if _, err := limit.ParseVersion(c.Cgroups); err != nil {
		return fmt.Errorf("worker: config: %w", err)
	}
	switch {
	case events.ValidToken(c.Name) != nil:
		return fmt.Errorf("worker: config: name is %q: use letters, digits, - and _", c.Name)
	case c.Slots < 1:
		return fmt.Errorf("worker: config: slots is %d, at least 1 is needed", c.Slots)
	case !slices.Contains([]Isolation{Strong, Required, Preferred, Off}, c.Isolation):
		return fmt.Errorf("worker: config: isolation is %q: use required, preferred, strong or off", c.Isolation)
	case c.BaseBudget < Unbounded:
		return fmt.Errorf("worker: config: base-budget is %d: use a number of bytes, 0 for the default or -1 for no bound", c.BaseBudget)
	case c.DiskReserve < Unbounded:
		return fmt.Errorf("worker: config: disk-reserve is %d: use a number of bytes, 0 for the default or -1 for none", c.DiskReserve)
	case c.RemoteStall < 0:
		return fmt.Errorf("worker: config: remote-stall is %s: use a duration above 0", c.RemoteStall)
	case c.Grace < 0:
		return fmt.Errorf("worker: config: grace is %s: use a duration above 0", c.Grace)
	case c.DrainTimeout < 0:
		return fmt.Errorf("worker: config: drain-timeout is %s: use 0 or more", c.DrainTimeout)
	case c.NoPools && len(c.Pools) > 0:
		return errors.New("worker: config: pools are named, and none is to be served: choose one")
	case len(c.AllowPaths) > 0 && c.HostID == "":
		return errors.New("worker: config: paths are allowed but this host has no id: no /etc/machine-id; set --host-id")
	case len(c.AllowPaths) > 0 && events.ValidPool(events.PoolToken(c.HostID, "/")) != nil:
		return fmt.Errorf("worker: config: host-id is %q: use letters, digits and -, up to 50", c.HostID)
	}
	return nil
}

func (c Config) rungs() []isolate.Rung {
	if len(c.Rungs) > 0 {
		return c.Rungs
	}
	return isolate.Rungs()
}
