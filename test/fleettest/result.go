package fleettest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// Result is how a command ended.
type Result struct {
	Code           int // -1: by a signal
	Stdout, Stderr string
}

// Exits fails the test unless the command ended with the exit code.
func (r Result) Exits(t testing.TB, code int) Result {
	t.Helper()
	if r.Code != code {
		t.Fatalf("got exit code %d, want %d\nstdout: %s\nstderr: %s", r.Code, code, r.Stdout, r.Stderr)
	}
	return r
}

// OneLine fails the test unless a command said what is wrong in one line that holds all words.
func (r Result) OneLine(t *testing.T, code int, words ...string) {
	t.Helper()
	var lines []string
	for _, l := range strings.Split(strings.TrimSpace(r.Stderr), "\n") {
		if strings.HasPrefix(l, "warmfleet:") {
			lines = append(lines, l)
		}
	}
	if r.Code != code || len(lines) != 1 {
		t.Fatalf("got exit code %d and %d lines, want %d and one line\nstderr: %s", r.Code, len(lines), code, r.Stderr)
	}
	for _, w := range words {
		if !strings.Contains(lines[0], w) {
			t.Errorf("%q does not say %q", lines[0], w)
		}
	}
}

// View reads the JSON of a plan from what the command printed.
func (r Result) View(t testing.TB) events.View {
	t.Helper()
	var v events.View
	if err := json.Unmarshal([]byte(r.Stdout), &v); err != nil {
		t.Fatalf("read the plan's JSON: %v\nstdout: %s\nstderr: %s", err, r.Stdout, r.Stderr)
	}
	return v
}
