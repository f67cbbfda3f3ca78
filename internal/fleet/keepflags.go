package fleet

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/warmfleet/warmfleet/internal/scheduler"
	"github.com/warmfleet/warmfleet/internal/worker"
)

// KeepFlags registers the flags that say how long checkpoints are kept, and returns where they end up.
func KeepFlags(fs *pflag.FlagSet) *scheduler.Keep {
	k := scheduler.DefaultKeep()
	for _, f := range []struct {
		name  string
		value *time.Duration
		usage string
	}{
		{"keep-applied", &k.Applied, "how long checkpoints of applied plans are kept; -1s is for ever"},
		{"keep-executed", &k.Executed, "the same for plans that were executed and never applied"},
		{"keep-failed", &k.Failed, "the same for failed and dead plans"},
		{"keep-conflict", &k.Conflict, "the same for plans whose apply met a conflict"},
		{"keep-cancelled", &k.Cancelled, "the same for cancelled, rejected and expired plans"},
		{"keep-session", &k.Session, "the same for checkpoints of no plan, since they were taken"},
		{"gc-grace", &k.Grace, "how long stored layers must have been without a checkpoint before they go"},
		{"gc-every", &k.Every, "how often garbage is collected"},
	} {
		fs.DurationVar(f.value, f.name, *f.value, f.usage)
	}
	fs.Var((*Bytes)(&k.Budget), "checkpoint-budget", "what all checkpoints may take in the object store, as in 50GiB; those of ended plans go early then; 0 is no bound")
	return &k
}

// BudgetFlags registers the flags that bound what a worker stores.
func BudgetFlags(fs *pflag.FlagSet, c *worker.Config) {
	c.CacheBudget, c.PlanBudget = worker.DefaultCacheBudget, worker.DefaultPlanBudget
	fs.Var((*Bytes)(&c.CacheBudget), "cache-budget", "what layers that nothing uses now may take in the worker's cache; -1 keeps none")
	fs.Var((*Bytes)(&c.PlanBudget), "plan-budget", "what the layers of one plan may take in the object store; the plan fails beyond it; -1 is no bound")
}
