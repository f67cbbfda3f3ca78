package worker

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/warmfleet/warmfleet/pkg/events"
)

func TestMetrics_Collect(t *testing.T) {
	r := events.Worker{Slots: 4, Free: 1, Warm: map[string]events.Warm{"api": {
		Idle: 2, Target: 3, Making: 1, Hits: 7, Misses: 2, Wasted: 5, Behind: 4, OldestMS: 1500, RefillMS: 250, Error: "disk full",
		SyncedAt: time.Now().Add(-time.Hour),
	}, "web": {}}}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(newMetrics(func() events.Worker { return r }))
	want := `
# HELP warmfleet_pool_behind_commits Commits that the idle sandbox that is furthest behind lacks.
# TYPE warmfleet_pool_behind_commits gauge
warmfleet_pool_behind_commits{pool="api"} 4
warmfleet_pool_behind_commits{pool="web"} 0
# HELP warmfleet_pool_hits_total Claims that found a warm sandbox.
# TYPE warmfleet_pool_hits_total counter
warmfleet_pool_hits_total{pool="api"} 7
warmfleet_pool_hits_total{pool="web"} 0
# HELP warmfleet_pool_oldest_seconds Age of the oldest idle sandbox.
# TYPE warmfleet_pool_oldest_seconds gauge
warmfleet_pool_oldest_seconds{pool="api"} 1.5
warmfleet_pool_oldest_seconds{pool="web"} 0
# HELP warmfleet_worker_slots_free Slots that no plan has.
# TYPE warmfleet_worker_slots_free gauge
warmfleet_worker_slots_free 1
`
	err := testutil.GatherAndCompare(reg, strings.NewReader(want),
		"warmfleet_pool_behind_commits", "warmfleet_pool_hits_total", "warmfleet_pool_oldest_seconds", "warmfleet_worker_slots_free")
	if err != nil {
		t.Error(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	told := false
	for _, f := range families {
		if f.GetName() != "warmfleet_pool_staleness_seconds" {
			continue
		}
		told = true
		if n, v := len(f.GetMetric()), f.GetMetric()[0].GetGauge().GetValue(); n != 1 || v < 3600 || v > 4000 {
			t.Errorf("staleness of %d pools, %v s; want an hour, and none of a pool that was never synced", n, v)
		}
	}
	if !told {
		t.Error("no staleness is told")
	}
}
