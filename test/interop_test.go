package test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// natsVersion is the version of the nats command line that these tests are for.
const natsVersion = "v0.5.0"

// natsCLI is the path of the nats command line; without it the test is skipped, loudly.
func natsCLI(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("nats")
	if err != nil {
		out, _ := exec.Command("go", "env", "GOPATH").Output()
		path = filepath.Join(strings.TrimSpace(string(out)), "bin", "nats")
	}
	out, err := exec.Command(path, "--version").CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != natsVersion {
		t.Skipf("NOTHING CHECKS THAT THE nats COMMAND LINE READS OUR STREAMS: %s is not version %s (%q, %v): "+
			"go install github.com/nats-io/natscli/nats@%s", path, natsVersion, out, err, natsVersion)
	}
	return path
}

// onTerminal runs a program that insists on a terminal, to its end, and returns what it printed.
func (p *place) onTerminal(t *testing.T, name string, args ...string) string {
	t.Helper()
	master, slave := pty(t)
	cmd := p.command(context.WithoutCancel(t.Context()), name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
	proc := start(t, name, cmd)
	slave.Close()
	read := make(chan struct{})
	go func() {
		defer close(read)
		for buf := make([]byte, 1<<16); ; {
			n, err := master.Read(buf)
			proc.output.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	proc.exit(t, patience)
	<-read
	return proc.output.String()
}

func TestInterop_NatsCommandLine(t *testing.T) {
	nats := natsCLI(t)
	c := startCluster(t, self())
	o := newOutlet(t, c.place)
	c.worker(t, "w", "--expose", o.dir)
	dir := c.tree(t, "d", sampleScript)

	// The documented submission, word for word.
	id := events.NewID()
	host := strings.TrimSpace(read(t, "/etc/machine-id"))
	plan := fmt.Sprintf(`{"version":1,"name":"n","resource":{"path":%q,"host":%q},"apply":"never","steps":[{"run":%q}]}`, dir, host, "echo x >new; "+o.gate())
	c.do(t, nats, "pub", "-J", "fleet.submit."+id, `{"v":1,"type":"warmfleet.submit.v1","plan":`+plan+`,"requested_by":"svc"}`)
	c.until(t, id, "step started", isType(events.TypeStepStarted))

	t.Run("PagesCommands", func(t *testing.T) {
		out := c.onTerminal(t, nats, "stream", "view", "FLEET_COMMANDS", "--raw")
		if !strings.Contains(out, `"warmfleet.command.v1"`) || !strings.Contains(out, id) {
			t.Errorf("the queued command is not shown: %s", out)
		}
	})
	o.open(t)
	v := c.ended(t, id, events.StateExecuted)

	t.Run("ListsStreams", func(t *testing.T) {
		got := strings.Fields(c.do(t, nats, "stream", "ls", "-n", "-a"))
		for _, want := range []string{
			"FLEET_COMMANDS", "FLEET_DLQ", "FLEET_EVENTS", "FLEET_OUTPUT", "FLEET_SCHEDULES", "FLEET_SUBMISSIONS", "KV_FLEET_CHECKPOINTS",
			"KV_FLEET_IMAGES", "KV_FLEET_LEASES", "KV_FLEET_PLANS", "KV_FLEET_POOLS", "KV_FLEET_WORKERS", "OBJ_FLEET_LAYERS",
		} {
			if !slices.Contains(got, want) {
				t.Errorf("%s is missing in %q", want, got)
			}
		}
	})
	t.Run("PagesEvents", func(t *testing.T) {
		out := c.onTerminal(t, nats, "stream", "view", "FLEET_EVENTS", "--raw", "--subject", "fleet.evt.plan."+id+".>")
		for _, r := range c.records(t, id) {
			if !strings.Contains(out, r.Event.ID) {
				t.Errorf("event %s is not shown", r.Event.Kind())
			}
		}
		if got := c.do(t, nats, "stream", "get", "FLEET_EVENTS", "1"); !strings.Contains(got, `"specversion":"1.0"`) {
			t.Errorf("stream get: %s", got)
		}
	})
	t.Run("FetchesLayers", func(t *testing.T) { fetchesLayers(t, c, nats, v) })
	t.Run("SeesServices", func(t *testing.T) {
		out := c.do(t, nats, "micro", "ls")
		for _, name := range []string{" warmfleet ", " warmfleet-worker "} {
			if !strings.Contains(out, name) {
				t.Errorf("service %q is missing in\n%s", name, out)
			}
		}
		if got := c.do(t, nats, "req", "fleet.api.plan.get", id, "--raw"); !strings.Contains(got, `"state":"executed"`) {
			t.Errorf("fleet.api.plan.get answers %s", got)
		}
	})
}

// fetchesLayers gets every layer of a checkpoint with nats object get; tar lists it.
func fetchesLayers(t *testing.T, c *cluster, nats string, v events.View) {
	last := v.Checkpoints[len(v.Checkpoints)-1]
	cp, err := c.Checkpoint(t.Context(), last.ID)
	must(t, err)
	if len(cp.Layers) != 1 {
		t.Fatalf("layers %q, want one", cp.Layers)
	}
	file := c.path("layer.tar.zst")
	c.do(t, nats, "object", "get", "FLEET_LAYERS", cp.Layers[0], "-O", file, "--no-progress")
	if got := c.do(t, "tar", "--zstd", "-tf", file); !slices.Contains(strings.Fields(got), "new") {
		t.Errorf("tar lists %q, want new among it", got)
	}
	if fi, err := os.Stat(file); err != nil || fi.Size() != last.SizeBytes {
		t.Errorf("fetched %v, %v, want %d bytes", fi.Size(), err, last.SizeBytes)
	}
}

// The nats context that `up` writes points at the fleet and is not selected.
func TestInterop_NatsContext(t *testing.T) {
	nats := natsCLI(t)
	p := newPlace(t, self())
	p.start(t, "up", "warmfleet", "up", "--workers", "0").ready(t)
	p.do(t, nats, "--context", "warmfleet-local", "stream", "info", "FLEET_EVENTS", "-j")
	if r := p.run(t, nats, "stream", "info", "FLEET_EVENTS"); r.code == 0 {
		t.Error("the context was selected")
	}
	env := p.path("state", "warmfleet", "nats.env")
	p.sh(t, p.dir, "set -a; . "+env+"; set +a; "+nats+" stream info FLEET_EVENTS -j; warmfleet plan ls")
	if fi, err := os.Stat(env); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("nats.env: %v, %v, want mode 0600", fi.Mode(), err)
	}
	p.do(t, "warmfleet", "plan", "ls", "--context", "warmfleet-local")
}
