package modeltest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The environment of a model test. With a seed only the history of that seed is played; with a number of histories
// that many begin at the seed.
const (
	SeedVariable  = "WARMFLEET_MODEL_SEED"
	OpsVariable   = "WARMFLEET_MODEL_OPS"
	CountVariable = "WARMFLEET_MODEL_COUNT"
)

const (
	// baseOps are the operations that make the tree to start from.
	baseOps = 40
	// keptCheckpoints is how many checkpoints a history can go back to.
	keptCheckpoints = 6
	// shrinkTime and shrinkTries bound the search for a shorter history that fails too.
	shrinkTime  = 2 * time.Minute
	shrinkTries = 250
)

// Model plays random histories, one for each seed, of about ops operations each. A failure prints what differed, the
// command that replays it, and the shortest history that was found to fail.
func Model(t *testing.T, d Driver, ops int, seeds ...uint64) {
	t.Helper()
	ops, seeds, err := asked(ops, seeds)
	if err != nil {
		t.Fatal(err)
	}
	if testing.Short() {
		seeds = seeds[:1]
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("Seed", seed), func(t *testing.T) {
			events, failed := d.random(t.TempDir(), seed, ops)
			if failed == nil {
				return
			}
			t.Errorf("%v", failed)
			t.Logf("replay: %s=%d %s=%d go test -count=1 -run '^%s$' %s", SeedVariable, seed, OpsVariable, ops, t.Name(), packageUnderTest())
			events, failed = d.shrink(t.TempDir(), events, failed)
			t.Logf("shrunk to %d events, which end with: %v", len(events), failed)
			for i, e := range events {
				t.Logf("%3d %v", i, e)
			}
		})
	}
}

// packageUnderTest is what go test has to be given.
func packageUnderTest() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "."
	}
	return strings.TrimSuffix(info.Path, ".test")
}

// History plays one history: what once went wrong.
func History(t *testing.T, d Driver, events ...Event) {
	t.Helper()
	home := filepath.Join(t.TempDir(), "h")
	if err := makeHome(home); err != nil {
		t.Fatal(err)
	}
	if err := d.replay(filepath.Join(home, "one"), events); err != nil {
		t.Error(err)
	}
}

// Change is an event that does an operation.
func Change(o Op) Event { return Event{Do: StepOp, Op: o} }

// asked is what the environment asks for.
func asked(ops int, seeds []uint64) (int, []uint64, error) {
	var err error
	number := func(variable string, otherwise uint64) uint64 {
		v, set := os.LookupEnv(variable)
		if !set {
			return otherwise
		}
		n, convErr := strconv.ParseUint(v, 10, 63)
		if convErr != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", variable, convErr))
		}
		return n
	}
	ops = int(number(OpsVariable, uint64(ops)))
	if _, set := os.LookupEnv(SeedVariable); set {
		first := number(SeedVariable, 0)
		seeds = nil
		for i := range number(CountVariable, 1) {
			seeds = append(seeds, first+i)
		}
	}
	return ops, seeds, err
}

// random plays the history of a seed while it makes it.
func (d Driver) random(dir string, seed uint64, ops int) (events []Event, err error) {
	home := filepath.Join(dir, "h")
	if err := makeHome(home); err != nil {
		return nil, err
	}
	p, err := newPlayer(d, home)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	h := history{player: p, rng: rand.New(rand.NewPCG(seed, 0)), events: &events}
	err = h.make(ops)
	return events, err
}

// makeHome makes a directory that other users may pass.
func makeHome(home string) error {
	return errors.Join(os.Mkdir(home, 0o755), os.Chmod(filepath.Dir(home), 0o755), os.Chmod(filepath.Dir(filepath.Dir(home)), 0o755))
}

// history makes events and plays them.
type history struct {
	*player
	rng    *rand.Rand
	events *[]Event
	made   int // checkpoints
}

func (h *history) do(e Event) error {
	*h.events = append(*h.events, e)
	return h.play(e)
}

func (h *history) make(ops int) error {
	if err := h.batch(baseOps); err != nil {
		return err
	}
	if err := h.do(Event{Do: StepStart}); err != nil {
		return err
	}
	for done := 0; done < ops; {
		n := 1 + h.rng.IntN(10)
		if err := h.batch(n); err != nil {
			return err
		}
		done += n
		if err := h.step(); err != nil {
			return err
		}
	}
	return nil
}

func (h *history) batch(n int) error {
	for _, op := range newGenerator(h.rng, h.driver.Profile, h.tree).batch(n) {
		if err := h.do(Event{Do: StepOp, Op: op}); err != nil {
			return err
		}
	}
	return h.do(Event{Do: StepLook})
}

// step does what may come between operations.
func (h *history) step() error {
	kept := slices.Sorted(maps.Keys(h.saved))
	at := h.rng.IntN(100)
	switch {
	case at < 45:
		return h.mark(kept)
	case len(kept) == 0:
		return nil
	case at < 62 && h.subject.Rollback != nil:
		return h.do(Event{Do: StepRollback, N: kept[h.rng.IntN(len(kept))]})
	case at < 72 && h.subject.Move != nil:
		return h.do(Event{Do: StepMove, N: kept[h.rng.IntN(len(kept))]})
	case at < 78 && len(h.subject.Views) > 0:
		names := slices.Sorted(maps.Keys(h.subject.Views))
		return h.do(Event{Do: StepView, N: kept[h.rng.IntN(len(kept))], Name: names[h.rng.IntN(len(names))]})
	}
	return nil
}

// mark makes a checkpoint, and forgets one when there are many.
func (h *history) mark(kept []int) error {
	h.made++
	if err := h.do(Event{Do: StepCheckpoint, N: h.made}); err != nil || len(kept) < keptCheckpoints {
		return err
	}
	return h.do(Event{Do: StepForget, N: kept[h.rng.IntN(len(kept))]})
}

// replay plays a history from the start.
func (d Driver) replay(home string, events []Event) error {
	if err := os.Mkdir(home, 0o755); err != nil {
		return err
	}
	p, err := newPlayer(d, home)
	if err != nil {
		return err
	}
	for _, e := range events {
		if err = p.play(e); err != nil {
			break
		}
	}
	return errors.Join(err, p.close())
}

// shrink leaves out what a history can fail without. It gives the history itself if it does not fail again.
func (d Driver) shrink(dir string, events []Event, failed error) ([]Event, error) {
	if err := makeHome(filepath.Join(dir, "h")); err != nil {
		return events, err
	}
	deadline, tries := time.Now().Add(shrinkTime), 0
	fails := func(candidate []Event) error {
		tries++
		return d.replay(filepath.Join(dir, "h", strconv.Itoa(tries)), candidate)
	}
	if again := fails(events); again == nil {
		return events, fmt.Errorf("nothing, when played again; before: %w", failed)
	}
	for size := len(events) / 2; size > 0; {
		removed := false
		for at := 0; at+size <= len(events); {
			if time.Now().After(deadline) || tries >= shrinkTries {
				return events, failed
			}
			candidate := slices.Concat(events[:at], events[at+size:])
			if err := fails(candidate); err != nil && sameFault(err, failed) {
				events, failed, removed = candidate, err, true
			} else {
				at += size
			}
		}
		if !removed || size > len(events)/2 {
			size /= 2
		}
	}
	return events, failed
}

// sameFault compares how two failures begin.
func sameFault(a, b error) bool {
	kind := func(err error) string {
		word, _, _ := strings.Cut(err.Error(), " ")
		return word
	}
	return kind(a) == kind(b)
}
