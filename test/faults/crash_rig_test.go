//go:build fault

package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

const (
	crashHost = "crash-host"
	// crashAckWait is when the command of a killed worker comes again: the sweep waits for it hundreds of times. It is
	// above the heartbeat of a worker, 1 s.
	crashAckWait = 1500 * time.Millisecond
)

// crashRig is a fleet whose server and scheduler live on, and whose workers are killed. The runs of one rig share
// nothing but the server.
type crashRig struct {
	*fleettest.Cluster
	faulty string
	big    []byte // what no compression makes small
}

func newCrashRig(t *testing.T, a fleettest.Account) *crashRig {
	t.Helper()
	r := &crashRig{Cluster: fleettest.StartCluster(t, a), faulty: fleettest.FaultyBin(t), big: make([]byte, 1<<20+1000)}
	rand.NewChaCha8([32]byte{1}).Read(r.big)
	return r
}

// scenario is one plan that passes many points, and how it has to end whenever its worker is killed.
type scenario struct {
	name, strategy string
	head, steps    string
	state          string // the plan's final state
	// approved: another worker ran the steps; what is killed restores and applies.
	approved bool
	// dies is where another worker was killed before, on the same state directory; "" for nowhere.
	dies string
}

// crashTree has one of everything that takes a path of its own through a checkpoint or an apply.
const crashTree = `
mkdir -p d/sub gone keep; echo one >a; ln a hard; echo two >b; echo x >d/sub/x; echo y >d/y; echo g >gone/g; echo k >keep/k
printf '#!/bin/sh\n' >run; chmod 755 run; ln -s a link; truncate -s 64k sparse; chmod 750 keep
find . -exec touch -h -d 2001-02-03T04:05:06.123456789Z {} +
`

// Steps give what they make a time of its own, so that the result of every run is the same.
const (
	crashTouch = "; find . -name .git -prune -o -newermt 2002-01-01 ! -newermt 2030-01-01 -exec touch -h -d 2022-03-04T05:06:07.987654321Z {} +"
	crashOne   = "echo ONE >>a; mv d e; chmod 600 b; echo TWO >>b; tail -c +2 big >big2; cp nonce nonce2" + crashTouch
	crashTwo   = "rm -r gone; rm run; mkdir -p n/m; echo n >n/m/n; echo l >l1; ln l1 l2; cp nonce nonce3; ln -sfn b link; truncate -s 128k sparse; chmod 700 keep; rm hard; mkdir hard" + crashTouch
)

// crashRun is one run of a scenario, with a worker of its own.
type crashRun struct {
	*crashRig
	scenario
	dir, state, bin string
	worker          string
	mount           string // the test's own, "" for none
	before          layertest.Snapshot
	id              string
}

// prepare makes the original and everything else that a run has to itself.
func (r *crashRig) prepare(t *testing.T, s scenario, name string) *crashRun {
	t.Helper()
	return r.prepareOn(t, s, name, 0)
}

// prepareOn gives the original a file system of its own of so many megabytes; 0 is none of its own.
func (r *crashRig) prepareOn(t *testing.T, s scenario, name string, megabytes int) *crashRun {
	t.Helper()
	run := &crashRun{crashRig: r, scenario: s, state: r.Path("state-" + name), worker: name}
	run.dir = r.Path("work", name)
	if megabytes > 0 {
		run.onDisk(t, run.dir, megabytes)
		run.dir = filepath.Join(run.dir, "tree")
	}
	fleettest.Must(t, os.Mkdir(run.dir, 0o755))
	fleettest.Must(t, os.WriteFile(filepath.Join(run.dir, "big"), r.big, 0o644))
	// Layers of equal content would be one object, which the first run stores.
	fleettest.Must(t, os.WriteFile(filepath.Join(run.dir, "nonce"), []byte(events.NewID()), 0o644))
	r.Own(t, run.dir)
	script := crashTree
	if s.strategy == "git_worktree" {
		script += "git init -q -b trunk .; git add -A; " + fleettest.GitIdentity + "commit -qm one\n"
	}
	r.Sh(t, run.dir, script)
	run.before = fleettest.Snapshot(t, run.dir)
	// Whatever runs a program of this directory belongs to this run.
	var err error
	run.bin, err = os.MkdirTemp(r.faulty, name+"-")
	fleettest.Must(t, err)
	fleettest.Must(t, os.Chmod(run.bin, 0o755))
	for _, program := range []string{"worker", "warmfleet-init"} {
		fleettest.Must(t, os.Link(filepath.Join(r.faulty, program), filepath.Join(run.bin, program)))
	}
	t.Cleanup(func() { fleettest.RemoveAll(t, run.bin) })
	return run
}

// start starts the run's worker; false says that it was killed before it was ready.
func (r *crashRun) start(t *testing.T, env ...string) (*fleettest.Process, bool) {
	t.Helper()
	for try := 1; ; try++ {
		w := r.With(env...).Start(t, r.worker, filepath.Join(r.bin, "worker"), "--name", r.worker, "--state-dir", r.state,
			"--slots", "1", "--allow-path", r.dir, "--host-id", crashHost)
		if w.Output.Await(fleettest.Patience, func(all string) bool { return strings.Contains(all, "ready") }) {
			r.hurry(t)
			return w, true
		}
		<-w.Ended
		// A probe of isolation takes what is slow for what does not work.
		if try == 3 || w.Cmd.ProcessState.ExitCode() == -1 || !strings.Contains(w.Output.String(), "probe") {
			return w, false
		}
	}
}

// hurry makes the server give the command of a dead worker to the next one sooner.
func (r *crashRun) hurry(t *testing.T) {
	t.Helper()
	s, err := r.Fleet.JetStream.Stream(t.Context(), r.Fleet.Subjects.CommandsStream())
	fleettest.Must(t, err)
	token := events.PoolToken(crashHost, r.dir)
	for c := range s.ListConsumers(t.Context()).Info() {
		if !strings.Contains(c.Config.FilterSubject, token) || c.Config.AckWait == crashAckWait {
			continue
		}
		c.Config.AckWait = crashAckWait
		_, err := s.UpdateConsumer(t.Context(), c.Config)
		fleettest.Must(t, err)
	}
}

// body is the plan's text. Attempts are not what is tested, and a busy machine loses some.
func (r *crashRun) body() string {
	head := "version: 1\nname: crash\nresource: {path: " + fleettest.Quoted(r.dir) + ", host: " + crashHost + "}\nstrategy: " + r.strategy + "\nmax_attempts: 20\n"
	return head + r.head + "\nsteps:\n" + r.steps
}

func (r *crashRun) submit(t *testing.T) {
	t.Helper()
	if r.id != "" {
		return
	}
	r.id = r.submitText(t, r.body())
}

func (r *crashRig) submitText(t *testing.T, text string) string {
	t.Helper()
	p, err := plan.ParseYAML("crash.yaml", []byte(text))
	fleettest.Must(t, err)
	got, err := r.Client.Submit(t.Context(), events.NewSubmission(p.Canonical(), "test"))
	fleettest.Must(t, err)
	return got.ID
}

// begin lets the worker have something to do.
func (r *crashRun) begin(t *testing.T) {
	t.Helper()
	if !r.approved {
		r.submit(t)
		return
	}
	_, err := r.Client.Approve(t.Context(), r.id, "test")
	fleettest.Must(t, err)
}

// dieBefore leaves what a worker leaves that was killed.
func (r *crashRun) dieBefore(t *testing.T) {
	t.Helper()
	if r.dies == "" {
		return
	}
	w, ready := r.start(t, "WARMFLEET_FAULT="+r.dies+":kill")
	if !ready {
		t.Fatal("the worker that is to die first does not start")
	}
	r.begin(t)
	if r.finished(t, w) {
		t.Fatalf("the worker did not die at %s", r.dies)
	}
}

// unnamed are the layers of the cache that nobody can find again.
func (r *crashRun) unnamed(t *testing.T) (ids []string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(r.state, "worker/layers/*/layer.json"))
	fleettest.Must(t, err)
	if len(found) == 0 {
		t.Error("the cache has no layers")
	}
	for _, file := range found {
		b, err := os.ReadFile(file)
		fleettest.Must(t, err)
		var l struct {
			Name string `json:"name"`
		}
		fleettest.Must(t, json.Unmarshal(b, &l))
		if l.Name == "" {
			ids = append(ids, filepath.Base(filepath.Dir(file)))
		}
	}
	return ids
}

// finished waits until the plan is final, or the worker dead, and tells which.
func (r *crashRun) finished(t *testing.T, w *fleettest.Process) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fleettest.Patience)
	defer cancel()
	go func() {
		select {
		case <-w.Ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	rec, err := r.Client.Wait(ctx, r.id, nil)
	if err == nil {
		return rec.Event.Data.Final
	}
	select {
	case <-w.Ended:
		return false
	default:
		t.Fatalf("plan %s does not end: %v\n%s", r.id, err, r.Story(t, r.id))
		return false
	}
}

// stop ends the worker in order, after it has cleaned up, and looks at what is left.
func (r *crashRun) stop(t *testing.T, w *fleettest.Process) {
	t.Helper()
	cache := filepath.Join(r.state, "worker")
	fleettest.Eventually(t, "the command of "+r.worker+" to be settled", func() bool { return !r.queued(t) })
	fleettest.Eventually(t, "the sandbox of "+r.worker+" to be cleaned up", func() bool {
		found, _ := filepath.Glob(filepath.Join(cache, "layers/staging/*/*"))
		return len(found) == 0
	})
	w.Signal(t, syscall.SIGTERM)
	if code := w.Exit(t, fleettest.Patience); code != 0 {
		t.Errorf("the worker's exit code is %d", code)
	}
	for _, name := range []string{"layers/staging", "scratch", "inplace"} {
		if left := names(t, filepath.Join(cache, name)); len(left) > 0 {
			t.Errorf("%s holds %v", name, left)
		}
	}
	if fleettest.Exists(filepath.Join(r.dir, ".warmfleet-apply")) {
		t.Errorf("the original holds a journal's directory: %v", names(t, filepath.Join(r.dir, ".warmfleet-apply")))
	}
	r.noProcess(t)
	r.noMount(t)
}

// queued tells whether the run's plan has a command in the queue, or in some worker's hands.
func (r *crashRun) queued(t *testing.T) bool {
	t.Helper()
	s, err := r.Fleet.JetStream.Stream(t.Context(), r.Fleet.Subjects.CommandsStream())
	fleettest.Must(t, err)
	info, err := s.Info(t.Context(), jetstream.WithSubjectFilter("fleet.cmd.*.*."+r.id))
	fleettest.Must(t, err)
	return len(info.State.Subjects) > 0
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// noProcess fails the test if a program of this run is still there.
func (r *crashRun) noProcess(t *testing.T) {
	t.Helper()
	left := func() (found []string) {
		exes, _ := filepath.Glob("/proc/[0-9]*/exe")
		for _, exe := range exes {
			if to, err := os.Readlink(exe); err == nil && strings.HasPrefix(to, r.bin+"/") {
				found = append(found, exe)
			}
		}
		return found
	}
	fleettest.Eventually(t, "the end of all processes of "+r.worker, func() bool { return len(left()) == 0 })
}

func (r *crashRun) noMount(t *testing.T) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	fleettest.Must(t, err)
	for line := range strings.Lines(string(b)) {
		ours := strings.Contains(line, r.state) || strings.Contains(line, r.dir)
		if ours && (r.mount == "" || !strings.Contains(line, " "+r.mount+" ")) {
			t.Errorf("a mount is left: %s", line)
		}
	}
}

// point is one passage that a run recorded.
type point struct {
	name string
	n    int
	err  bool // an operation may fail there
}

func (p point) String() string { return p.name + ":" + strconv.Itoa(p.n) }

// passages reads what a run recorded, in order.
func passages(t *testing.T, file string) []point {
	t.Helper()
	f, err := os.Open(file)
	fleettest.Must(t, err)
	defer f.Close()
	var all []point
	for s := bufio.NewScanner(f); s.Scan(); {
		var p point
		var kind string
		if _, err := fmt.Sscan(s.Text(), &p.name, &p.n, &kind); err != nil {
			t.Fatalf("read %q: %v", s.Text(), err)
		}
		p.err = kind == "err"
		all = append(all, p)
	}
	return all
}

// chosen are the passages at which workers are killed: the first and the last of each point that no scenario before
// swept. With WARMFLEET_SWEEP=each every scenario sweeps all its points, with WARMFLEET_SWEEP=all every passage.
func chosen(all []point, swept map[string]bool) []point {
	depth, last := os.Getenv("WARMFLEET_SWEEP"), map[string]int{}
	for _, p := range all {
		last[p.name] = max(last[p.name], p.n)
	}
	var some []point
	for _, p := range all {
		if depth == "all" || (p.n == 1 || p.n == last[p.name]) && (depth == "each" || !swept[p.name]) {
			some = append(some, p)
		}
	}
	for name := range last {
		swept[name] = true
	}
	return some
}
