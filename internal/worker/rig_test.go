package worker

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/events/eventstest"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

func TestMain(m *testing.M) {
	isolate.Main()
	if err := flag.Set("test.parallel", strconv.Itoa(max(atOnce, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	flag.Parse() // the command line wins
	os.Exit(m.Run())
}

const (
	testHost = "h1"
	// testAckWait is when a lost worker's command is given to another.
	testAckWait = 2 * time.Second
	patience    = 60 * time.Second
	// atOnce is how many tests run at once unless -parallel says so: they wait for commands and servers more than they compute.
	atOnce = 4
)

// rig is a fleet without a scheduler: the test accepts and approves plans itself. tree is the
// original that they work on.
type rig struct {
	server *server.Server
	js     jetstream.JetStream
	fleet  Fleet
	tree   string
	pool   string
	repo   string // of the pool of a poolRig
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{server: eventstest.Start(t), tree: filepath.Join(t.TempDir(), "tree")}
	r.js = eventstest.Connect(t, r.server)
	if err := events.Declare(t.Context(), r.js, events.Options{}); err != nil {
		t.Fatal(err)
	}
	r.fleet = r.open(t, r.js)
	r.pool = events.PoolToken(testHost, r.tree)
	for _, pool := range []string{"default", r.pool} {
		if err := r.fleet.Queue.EnsurePool(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
	}
	r.write(t, "a", "one\n")
	r.write(t, "d/b", "two\n")
	return r
}

// open returns the fleet's handles on a connection.
func (r *rig) open(t *testing.T, js jetstream.JetStream) Fleet {
	t.Helper()
	subjects, err := events.NewSubjects("")
	if err != nil {
		t.Fatal(err)
	}
	f := Fleet{
		Conn: js.Conn(), Subjects: subjects, Log: events.NewLog(js, subjects), Output: events.NewOutput(js, subjects),
		Queue: events.NewQueue(js, subjects, events.QueueOptions{AckWait: testAckWait}),
	}
	names := subjects.Buckets()
	for name, bucket := range map[string]*kv.Store{
		names.Workers: &f.Workers, names.Checkpoints: &f.Checkpoints, names.Pools: &f.Pools, names.Images: &f.Images, names.Sessions: &f.Sessions,
	} {
		if *bucket, err = kv.Open(t.Context(), js, name); err != nil {
			t.Fatal(err)
		}
	}
	if f.Sessions, err = kv.Open(t.Context(), js, names.Sessions); err != nil {
		t.Fatal(err)
	}
	if f.Store, err = objectstore.NewJetStream(js, objectstore.Options{Bucket: subjects.LayersBucket()}); err != nil {
		t.Fatal(err)
	}
	return f
}

// make returns a worker that was made on the fleet's handles, and is not run.
func (r *rig) make(t *testing.T, name string, f Fleet) *Worker {
	t.Helper()
	w, err := New(t.Context(), r.config(t, name), f, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	if missing := w.report.Unmet(isolate.NetworkNone); len(missing) > 0 {
		t.Fatalf("this machine does not isolate: %v", missing)
	}
	return w
}

func (r *rig) config(t *testing.T, name string) Config {
	return Config{
		Name: name, HostID: testHost, StateDir: t.TempDir(), Slots: 2, AllowPaths: []string{r.tree}, Warm: 1,
		PullWait: 50 * time.Millisecond, DrainTimeout: 5 * time.Second,
	}
}

// worker runs a worker on a connection of its own until stop, or the end of the test.
func (r *rig) worker(t *testing.T, name string) (w *Worker, stop func()) {
	t.Helper()
	w = r.make(t, name, r.open(t, eventstest.Connect(t, r.server)))
	return w, run(t, w)
}

func run(t *testing.T, w *Worker) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ready, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer w.Close()
		if err := w.Run(ctx, func() { close(ready) }); err != nil {
			t.Error(err)
		}
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	select {
	case <-ready:
	case <-done:
		t.FailNow()
	case <-time.After(patience):
		t.Fatal("worker not ready")
	}
	return stop
}

func (r *rig) write(t *testing.T, name, content string) {
	t.Helper()
	path := filepath.Join(r.tree, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// has fails the test unless a file of the original has the content; "" means that there is none.
func (r *rig) has(t *testing.T, name, want string) {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(r.tree, name))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s holds %q, want %q", name, got, want)
	}
}

// accept appends a plan's first event, as a scheduler does, and returns its writer.
func (r *rig) accept(t *testing.T, text string) *events.Writer {
	t.Helper()
	if !strings.Contains(text, "resource:") && !strings.Contains(text, "pool:") {
		text = "resource: {path: " + r.tree + ", host: " + testHost + "}\n" + text
	}
	p, err := plan.ParseYAML("test.yaml", []byte("version: 1\nname: t\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	network := p.Network
	p.Defaults()
	p.Network = network // absent is what the pool says
	w, err := events.OpenWriter(t.Context(), r.fleet.Log, events.NewID(), "/test")
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]string, len(p.Steps))
	for i, s := range p.Steps {
		ids[i] = s.ID
	}
	r.append(t, w, events.TypeAccepted, events.Data{Body: p.Canonical(), Steps: ids, Plan: &events.Fold{
		Strategy: string(p.Strategy), Apply: string(p.Apply), MaxAttempts: p.MaxAttempts, Created: time.Now(),
		Resource: r.resourceOf(p), Pool: p.Pool,
	}})
	return w
}

// resourceOf is what the fold of an accepted plan says; a plan that names only its pool works on the pool's repository.
func (r *rig) resourceOf(p *plan.Plan) events.Resource {
	if p.Resource == nil {
		return events.Resource{Repo: r.repo}
	}
	return events.Resource{Path: p.Resource.Path, Host: p.Resource.Host, Repo: p.Resource.Repo, Ref: p.Resource.Ref}
}

func (r *rig) append(t *testing.T, w *events.Writer, typ string, d events.Data) {
	t.Helper()
	if err := w.Append(t.Context(), typ, d); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) command(t *testing.T, verb, id string) {
	t.Helper()
	if err := r.fleet.Queue.Publish(t.Context(), events.NewCommand(r.pool, verb, id)); err != nil {
		t.Fatal(err)
	}
}

// submit accepts a plan and publishes its command.
func (r *rig) submit(t *testing.T, text string) *events.Writer {
	t.Helper()
	w := r.accept(t, text)
	r.command(t, events.VerbRun, w.PlanID())
	return w
}

// approve lets a plan that awaits it be applied.
func (r *rig) approve(t *testing.T, w *events.Writer) {
	t.Helper()
	r.append(t, w, events.TypeApproved, events.Data{By: "test"})
	r.command(t, events.VerbApply, w.PlanID())
}

// until returns the plan's first event that is as wanted, with all before it.
func (r *rig) until(t *testing.T, id, what string, wanted func(events.Event) bool) []events.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	records, err := r.fleet.Log.Follow(ctx, events.Filter{Plan: id})
	if err != nil {
		t.Fatal(err)
	}
	var seen []events.Event
	var kinds []string
	for rec := range records {
		seen = append(seen, rec.Event)
		kinds = append(kinds, rec.Event.Kind())
		if wanted(rec.Event) {
			return seen
		}
		if rec.Event.Data.Final {
			t.Fatalf("plan ended before %s: %v, %s %s", what, kinds, rec.Event.Data.Code, rec.Event.Data.Error)
		}
	}
	t.Fatalf("no %s: %v", what, kinds)
	return nil
}

// ends waits for a plan to be in a state and returns its last event.
func (r *rig) ends(t *testing.T, id, state string) events.Data {
	t.Helper()
	seen := r.until(t, id, "state "+state, func(e events.Event) bool { return e.Data.Plan.State == state })
	return seen[len(seen)-1].Data
}

func ofKind(kind string) func(events.Event) bool {
	return func(e events.Event) bool { return e.Kind() == kind }
}

func count(seen []events.Event, kind string) (n int) {
	for _, e := range seen {
		if e.Kind() == kind {
			n++
		}
	}
	return n
}
