// Package bench runs benchmarks and prints what they found: a number of ours, that of a
// comparison measured in turn with it, their ratio, and its target.
//
// It knows samples, rows and processes. It must not know what is measured.
package bench

import (
	"context"
	"fmt"
	"strings"
)

// Benchmark is one program of bench/: it fills some rows.
type Benchmark struct {
	Name string
	Run  func(ctx context.Context, e *Env) error
}

// Env is what a benchmark runs in.
type Env struct {
	// Dir is an empty directory on the file system that is measured, removed afterwards.
	Dir string
	// Bin holds programs of the fleet: warmfleet, worker and warmfleet-init, if they could be built. The
	// running executable lies there too, so that sandboxes start with the lean init.
	Bin string
	// Quick asks for as few samples as show that everything runs.
	Quick bool

	name string
	emit func(Row) error
}

// Row is one line of the result. Its JSON form is read by programs: fields may be added,
// none renamed.
type Row struct {
	Bench string  `json:"bench"`
	What  string  `json:"what"`
	Unit  string  `json:"unit"`
	N     int     `json:"n"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	// Peer is what ours is compared with; "" is nothing, and then the next two are null.
	Peer    string   `json:"peer"`
	PeerP50 *float64 `json:"peer_p50"`
	// Ratio is P50 / PeerP50: below 1 is faster than the peer.
	Ratio  *float64 `json:"ratio"`
	Target string   `json:"target"`
	// Met tells whether the target was reached, null where there is none.
	Met *bool `json:"met"`
	// Skipped says why there are no numbers.
	Skipped string `json:"skipped,omitempty"`
}

// Target is what a row is to reach; a zero field asks nothing.
type Target struct{ P50, Max, Ratio float64 }

// Result is what one row is made of.
type Result struct {
	What   string
	Ours   Samples
	Peer   string // its name, "" for none
	Theirs Samples
	Target Target
	// Unit is "ms" if empty.
	Unit string
}

// Add adds a row.
func (e *Env) Add(r Result) error {
	row := Row{
		Bench: e.name, What: r.What, Unit: r.Unit, N: len(r.Ours), P50: r.Ours.Quantile(0.5), P99: r.Ours.Quantile(0.99), Peer: r.Peer,
	}
	if row.Unit == "" {
		row.Unit = "ms"
	}
	if r.Peer != "" && len(r.Theirs) > 0 {
		theirs := r.Theirs.Quantile(0.5)
		ratio := row.P50 / theirs
		row.PeerP50, row.Ratio = &theirs, &ratio
	}
	row.Target, row.Met = r.Target.judge(row, r.Ours.Quantile(1))
	return e.emit(row)
}

// Skip adds a row that could not be measured here, and why.
func (e *Env) Skip(what, why string) error {
	return e.emit(Row{Bench: e.name, What: what, Skipped: why})
}

// judge writes a target down and tells whether a row meets it.
func (t Target) judge(r Row, largest float64) (string, *bool) {
	var parts []string
	met := true
	add := func(name string, got, limit float64, unit string) {
		if limit == 0 {
			return
		}
		text := fmt.Sprintf("%g", limit)
		if limit < 1 && unit == "" {
			text = fmt.Sprintf("1/%.0f", 1/limit)
		}
		parts = append(parts, name+" <= "+text+unit)
		met = met && got <= limit
	}
	add("p50", r.P50, t.P50, " "+r.Unit)
	add("max", largest, t.Max, " "+r.Unit)
	if r.Ratio != nil {
		add("ratio", *r.Ratio, t.Ratio, "")
	}
	if len(parts) == 0 {
		return "", nil
	}
	return strings.Join(parts, ", "), &met
}
