package sandbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/limit"
	"github.com/warmfleet/warmfleet/internal/sandboxtest"
)

// onMode is a bed whose inits are bounded by control groups of a version, as its report says.
func onMode(t *testing.T, v limit.Version) *sandboxtest.Bed {
	t.Helper()
	groups := limit.Open(v)
	t.Cleanup(func() {
		if err := groups.Close(); err != nil {
			t.Error(err)
		}
	})
	bed := sandboxtest.New(t)
	bed.Host.Report.ProcessLimit = false
	groups.Describe(&bed.Host.Report)
	bed.Host.Init = func(ctx context.Context, network string, _ bool) (*isolate.Init, error) {
		g, err := groups.New()
		if err != nil {
			return nil, err
		}
		return isolate.Start(ctx, isolate.Config{Rung: bed.Host.Report.Rung, Network: network, Group: g})
	}
	return bed
}

// Every limit ends, or holds back, what is beyond it, by whatever this machine can bound it with in each version of
// control groups and in none; the sandbox goes on.
func TestSandbox_LimitsOnEachMode(t *testing.T) {
	for _, v := range []limit.Version{limit.V1, limit.V2, limit.None} {
		t.Run(string(v), func(t *testing.T) {
			for _, c := range []struct {
				name, needs string
				limits      isolate.Limits
				script      string
				timeout     time.Duration
				want        isolate.Cause
			}{
				{"Hog", isolate.Memory, isolate.Limits{Memory: 64 << 20}, "x=$(head -c 150M /dev/zero | tr '\\0' x); sleep 60", 20 * time.Second, isolate.CauseOOM},
				{"ForkBomb", isolate.Pids, isolate.Limits{PIDs: 32}, bomb, 20 * time.Second, isolate.CausePIDs},
				{"DiskFill", isolate.Disk, isolate.Limits{Disk: 20 << 20}, "dd if=/dev/zero of=fill bs=1M count=60 2>/dev/null; sleep 60", 20 * time.Second, isolate.CauseDisk},
				{"Burn", isolate.CPU, isolate.Limits{CPUs: 0.2}, "while :; do :; done", time.Second, isolate.CauseTimeout},
				{"TimeOut", isolate.TreeKill, isolate.Limits{PIDs: 32}, "trap '' TERM; setsid sleep 60 & sleep 60", time.Second, isolate.CauseTimeout},
			} {
				t.Run(c.name, func(t *testing.T) {
					bed := onMode(t, v)
					var in *isolate.Init
					start := bed.Host.Init
					bed.Host.Init = func(ctx context.Context, network string, noSetuid bool) (_ *isolate.Init, err error) {
						in, err = start(ctx, network, noSetuid)
						return in, err
					}
					s := boxOf(t, bed, c.limits)
					res, err := s.Exec(t.Context(), isolate.Command{Argv: []string{"/bin/sh", "-euc", c.script}, Env: s.BaseEnv(), Timeout: c.timeout, Grace: 100 * time.Millisecond})
					if err != nil {
						t.Fatal(err)
					}
					held := bed.Host.Report.Guarantees[c.needs]
					if res.Cause != c.want && held.State != isolate.Absent {
						t.Errorf("%s is %s: cause %q, want %q: %+v", c.needs, held.State, res.Cause, c.want, res)
					}
					if n, _ := in.Usage(); n != 0 {
						t.Errorf("%d processes are left", n)
					}
					if c.needs == isolate.CPU && held.State == isolate.Enforced {
						throttled(t, in)
					}
					goesOn(t, s)
				})
			}
		})
	}
}

// throttled fails the test unless the processor was withheld.
func throttled(t *testing.T, in *isolate.Init) {
	t.Helper()
	if e, err := in.Group().Exhausted(); err != nil || e.Throttled == 0 {
		t.Errorf("%+v, %v, want periods in which the processor was withheld", e, err)
	}
}
