package worker

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// metric is one number of a worker's record.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func gauge(name, help string, labels ...string) metric {
	return metric{prometheus.NewDesc("warmfleet_"+name, help, labels, nil), prometheus.GaugeValue}
}

func counter(name, help string) metric {
	return metric{prometheus.NewDesc("warmfleet_"+name, help, []string{"pool"}, nil), prometheus.CounterValue}
}

// metrics shows what a worker says of itself as Prometheus metrics, read at each scrape.
type metrics struct {
	record func() events.Worker

	slots, free                                metric
	idle, target, making, prewarmed            metric
	hits, misses, wasted                       metric
	behind, staleness, oldest, refill, failing metric
}

// Metrics are the worker's slots and what it has of each pool: hits, misses and what went unused since it started; ages in seconds.
func (w *Worker) Metrics() prometheus.Collector { return newMetrics(w.Record) }

func newMetrics(record func() events.Worker) *metrics {
	return &metrics{
		record:    record,
		slots:     gauge("worker_slots", "Plans that may run at once."),
		free:      gauge("worker_slots_free", "Slots that no plan has."),
		idle:      gauge("pool_idle", "Warm sandboxes that wait for a claim.", "pool"),
		target:    gauge("pool_target", "Warm sandboxes that this worker is to keep.", "pool"),
		making:    gauge("pool_making", "Warm sandboxes that are being made.", "pool"),
		prewarmed: gauge("pool_prewarmed", "Of the target, those that a prewarm asked for.", "pool"),
		hits:      counter("pool_hits_total", "Claims that found a warm sandbox."),
		misses:    counter("pool_misses_total", "Claims that found none."),
		wasted:    counter("pool_wasted_total", "Warm sandboxes that ended unused: too old, of an old image, or dead."),
		behind:    gauge("pool_behind_commits", "Commits that the idle sandbox that is furthest behind lacks.", "pool"),
		staleness: gauge("pool_staleness_seconds", "Time since the remote was last asked; absent before that.", "pool"),
		oldest:    gauge("pool_oldest_seconds", "Age of the oldest idle sandbox.", "pool"),
		refill:    gauge("pool_refill_seconds", "How long the last replacement took from the claim.", "pool"),
		failing:   gauge("pool_failing", "1 while the pool has an error here; `warmfleet pool show` says which.", "pool"),
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, one := range []metric{
		m.slots, m.free, m.idle, m.target, m.making, m.prewarmed, m.hits, m.misses, m.wasted, m.behind, m.staleness, m.oldest, m.refill, m.failing,
	} {
		ch <- one.desc
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	r := m.record()
	send := func(one metric, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(one.desc, one.kind, v, labels...)
	}
	send(m.slots, float64(r.Slots))
	send(m.free, float64(r.Free))
	for pool, warm := range r.Warm {
		failing := 0
		if warm.Error != "" {
			failing = 1
		}
		send(m.idle, float64(warm.Idle), pool)
		send(m.target, float64(warm.Target), pool)
		send(m.making, float64(warm.Making), pool)
		send(m.prewarmed, float64(warm.Prewarmed), pool)
		send(m.hits, float64(warm.Hits), pool)
		send(m.misses, float64(warm.Misses), pool)
		send(m.wasted, float64(warm.Wasted), pool)
		send(m.behind, float64(warm.Behind), pool)
		send(m.oldest, seconds(warm.OldestMS), pool)
		send(m.refill, seconds(warm.RefillMS), pool)
		send(m.failing, float64(failing), pool)
		if !warm.SyncedAt.IsZero() {
			send(m.staleness, time.Since(warm.SyncedAt).Seconds(), pool)
		}
	}
}

func seconds(ms int64) float64 { return float64(ms) / 1000 }
