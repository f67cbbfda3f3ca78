package test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/internal/fleet"
	"github.com/warmfleet/warmfleet/pkg/client"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// cluster is a fleet of processes: `warmfleet up --workers 0`, and workers that a test adds.
// Commands of the place use its server.
type cluster struct {
	*place
	*client.Client
	fleet *fleet.Fleet
	up    *process
}

func startCluster(t testing.TB, a account) *cluster {
	t.Helper()
	c := &cluster{place: newPlace(t, a)}
	c.serve(t)
	return c
}

// serve starts server and scheduler on the cluster's state directory and connects to it.
func (c *cluster) serve(t testing.TB, flags ...string) {
	t.Helper()
	c.serveBy(t, c.place, "warmfleet", flags...)
}

// serveBy is serve with a program, and in an environment, of the caller's choice.
func (c *cluster) serveBy(t testing.TB, p *place, program string, flags ...string) {
	t.Helper()
	args := append([]string{"up", "--workers", "0", "--state-dir", c.path("ctl")}, flags...)
	c.up = p.start(t, "up", program, args...).ready(t)
	env := readEnv(t, c.path("ctl", "nats.env"))
	c.place = c.with("NATS_URL="+env["NATS_URL"], "NATS_USER="+env["NATS_USER"], "NATS_PASSWORD="+env["NATS_PASSWORD"])
	c.connect(t, env["NATS_URL"], nats.UserInfo(env["NATS_USER"], env["NATS_PASSWORD"]))
}

// connect opens the test's own handle on the fleet.
func (c *cluster) connect(t testing.TB, url string, opts ...nats.Option) {
	t.Helper()
	nc, err := nats.Connect(url, opts...)
	must(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	must(t, err)
	c.fleet, err = fleet.Open(t.Context(), js, fleet.Options{})
	must(t, err)
	c.Client, err = client.New(nc, "")
	must(t, err)
}

// readEnv reads nats.env as a shell that sources it would.
func readEnv(t testing.TB, file string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(file)
	must(t, err)
	env := map[string]string{}
	for line := range strings.Lines(string(b)) {
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		if ok {
			env[name] = strings.Trim(value, `'"`)
		}
	}
	return env
}

// worker starts a worker with a state directory of its own that allows everything below work.
func (c *cluster) worker(t testing.TB, name string, flags ...string) *process {
	t.Helper()
	args := append([]string{"--name", name, "--state-dir", c.path(name), "--slots", "4", "--allow-path", c.path("work")}, flags...)
	return c.start(t, name, "worker", args...).ready(t)
}

// submit submits a plan file and returns the plan's id.
func (c *cluster) submit(t testing.TB, file string, flags ...string) string {
	t.Helper()
	return strings.TrimSpace(c.do(t, "warmfleet", append([]string{"submit", file}, flags...)...))
}

// until waits for an event of a plan for which cond holds. What a final event shows cannot come later.
func (c *cluster) until(t testing.TB, id, what string, cond func(events.Event) bool) events.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := c.Wait(ctx, id, func(r events.Record) bool { return cond(r.Event) })
	if err != nil || !cond(r.Event) {
		t.Fatalf("plan %s: waited for %s: got %s %s: %v\n%s", id, what, r.Event.Kind(), r.Event.Data.Error, err, c.story(t, id))
	}
	return r.Event
}

// ends waits until a plan is final and returns it.
func (c *cluster) ends(t testing.TB, id string) events.View {
	t.Helper()
	c.until(t, id, "a final event", func(e events.Event) bool { return e.Data.Final })
	return events.BuildView(c.records(t, id))
}

// ended waits until a plan is final in a state.
func (c *cluster) ended(t testing.TB, id, state string) events.View {
	t.Helper()
	v := c.ends(t, id)
	if v.State != state {
		t.Fatalf("plan %s: got state %s, want %s\n%s", id, v.State, state, c.story(t, id))
	}
	return v
}

// records are all events of a plan so far.
func (c *cluster) records(t testing.TB, id string) []events.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	all, err := c.Events(ctx, id)
	if err != nil {
		t.Fatalf("events of plan %s: %v", id, err)
	}
	return all
}

// story is a plan's events in short, for messages of failed tests.
func (c *cluster) story(t testing.TB, id string) string {
	t.Helper()
	var b strings.Builder
	for _, r := range c.records(t, id) {
		d := r.Event.Data
		fmt.Fprintf(&b, "  %s %s %s %s %s %s %s\n", r.Event.Time.Format("05.000"), r.Event.Kind(), r.Event.Source, d.Step, d.Worker, d.Reason, d.Error)
	}
	return b.String()
}

// count counts the events of a plan for which all conditions hold.
func (c *cluster) count(t testing.TB, id string, conds ...func(events.Event) bool) int {
	t.Helper()
	n := 0
	for _, r := range c.records(t, id) {
		if all(conds...)(r.Event) {
			n++
		}
	}
	return n
}

func all(conds ...func(events.Event) bool) func(events.Event) bool {
	return func(e events.Event) bool {
		for _, cond := range conds {
			if !cond(e) {
				return false
			}
		}
		return true
	}
}

func isType(typ string) func(events.Event) bool {
	return func(e events.Event) bool { return e.Kind() == typ }
}

func ofStep(id string) func(events.Event) bool {
	return func(e events.Event) bool { return e.Data.Step == id }
}

func byWorker(name string) func(events.Event) bool {
	return func(e events.Event) bool { return e.Source == "/worker/"+name }
}

func isFinal(e events.Event) bool { return e.Data.Final }

// once fails the test unless the plan was claimed as often as said and has one final event.
func (c *cluster) once(t testing.TB, id string, claims int) {
	t.Helper()
	if got := c.count(t, id, isType(events.TypeClaimed)); got != claims {
		t.Errorf("plan %s: got %d claims, want %d\n%s", id, got, claims, c.story(t, id))
	}
	if got := c.count(t, id, isFinal); got != 1 {
		t.Errorf("plan %s: got %d final events, want 1\n%s", id, got, c.story(t, id))
	}
}

// queueEmpties waits until no command is queued or held.
func (c *cluster) queueEmpties(t testing.TB) {
	t.Helper()
	eventually(t, "an empty queue of commands", func() bool {
		s, err := c.fleet.JetStream.Stream(t.Context(), c.fleet.Subjects.CommandsStream())
		return err == nil && s.CachedInfo().State.Msgs == 0
	})
}

// plan writes a plan file of run steps step-1, step-2, ... Lines of head are its other keys.
func (p *place) plan(t testing.TB, head string, scripts ...string) string {
	t.Helper()
	var steps []string
	for _, s := range scripts {
		steps = append(steps, "{run: "+quoted(s)+"}")
	}
	return p.planOf(t, head, steps...)
}

// planOf writes a plan file; each step is a YAML flow mapping.
func (p *place) planOf(t testing.TB, head string, steps ...string) string {
	t.Helper()
	text := "version: 1\nname: " + quoted(filepath.Base(t.Name())) + "\n" + strings.TrimSpace(head) + "\nsteps:\n"
	for _, s := range steps {
		text += "  - " + s + "\n"
	}
	f, err := os.CreateTemp(p.path("home"), "plan-*.yaml")
	must(t, err)
	_, err = f.WriteString(text)
	must(t, err)
	must(t, f.Close())
	must(t, os.Chmod(f.Name(), 0o644))
	return f.Name()
}

// quoted is text as a double-quoted YAML scalar, which any JSON string is.
func quoted(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string always encodes
	}
	return string(b)
}

// resource is the line of a plan file that names a directory.
func resource(dir string) string { return "resource: {path: " + quoted(dir) + "}" }
